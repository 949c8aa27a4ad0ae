"""Runs the GraphQL server of a deployment."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial

import uvicorn
from starlette.routing import WebSocketRoute

from asgi_guards.connections import make_uvicorn_options
from iscp_dagster.api.discovery import load_endpoints, load_tables
from iscp_dagster.api.environment import get_user, parse_clickhouse_endpoints
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.variables import CLICKHOUSE_URL, CLICKHOUSE_URLS, LAKE, LOG_URL
from iscp_dagster.serve.access import load_access
from iscp_dagster.serve.catalog import ServedCatalog
from iscp_dagster.serve.graph.schema import create_schema
from iscp_dagster.serve.graph.schema_cache import CatalogLoader, SchemaCache
from iscp_dagster.serve.live.service import SubscriptionService
from iscp_dagster.serve.live.transport.socket import SocketServer
from iscp_dagster.serve.web.app import (
    GRAPHQL_PATH,
    BackgroundService,
    GraphQLServerSettings,
    check_host,
    create_app,
)
from iscp_dagster.serve.web.declaration_watch import end_when_changed
from iscp_dagster.webhooks.service import SenderService, run_service

HOST, PORT = "127.0.0.1", 4000
TOKENS_VARIABLE = "ISCP_GRAPHQL_TOKENS"
WEBSOCKET_BYTES = 1024 * 1024
"""A larger frame ends its connection before it is read; smaller ones get a reason."""
_END_SECONDS = 5
_CONNECT_SECONDS = 3.0
_ANSWER_SECONDS = 30.0
"""Longer than any query may take: ClickHouse ends those."""


class LazyCatalogLoader:
    """Reads the catalog of the location's tables, which are imported at the first call."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._loader: CatalogLoader | None = None

    def __call__(self) -> ServedCatalog:
        """Raises ConfigError when the declarations or the settings are wrong."""
        if self._loader is None:
            self._loader = _build_loader(self._environ)
        return self._loader()


def _build_loader(environ: Mapping[str, str]) -> CatalogLoader:
    if not (environ.get(CLICKHOUSE_URL) or environ.get(CLICKHOUSE_URLS)):
        raise ConfigError(
            f"{CLICKHOUSE_URL} is not set, and no stack is up. Start one with `iscp up`, or name "
            "the ClickHouse of your deployment."
        )
    timeouts = {"connect_timeout": _CONNECT_SECONDS, "query_timeout": _ANSWER_SECONDS}
    endpoints = parse_clickhouse_endpoints(environ, **timeouts)
    return CatalogLoader(
        tables=load_tables(environ), endpoints=endpoints, lake=environ.get(LAKE, "")
    )


def render_schema(environ: Mapping[str, str]) -> str:
    """Return the schema as SDL. Raises ConfigError, and UnavailableError without ClickHouse."""
    from graphql import print_schema

    return print_schema(create_schema(LazyCatalogLoader(environ)()))


def build_settings(environ: Mapping[str, str], host: str, tokens: str) -> GraphQLServerSettings:
    """Return the server's settings. Raises ConfigError for tokens or a host that cannot be used.

    With an ISCP log, which records how far each index has come, changes are streamed, and events
    are delivered to the declared endpoints.
    """
    token_access = load_access(tokens or environ.get(TOKENS_VARIABLE, ""))
    check_host(host, token_access)
    log = environ.get(LOG_URL)
    live = SubscriptionService(log=SqlLog(log, actor=get_user())) if log else None
    schemas = SchemaCache(
        load=LazyCatalogLoader(environ), subscribe=live.subscribe if live else None
    )
    sockets = SocketServer(schemas=schemas, access=token_access)
    return GraphQLServerSettings(
        schemas=schemas,
        access=token_access,
        environ=environ,
        routes=[WebSocketRoute(GRAPHQL_PATH, sockets.serve_websocket)],
        background=[sockets.watch_connections, *_list_senders(environ)],
    )


def check_sender(environ: Mapping[str, str]) -> SenderService | None:
    """What delivers webhooks beside the server; None without an ISCP log. Raises ConfigError."""
    return SenderService(environ, load_endpoints(environ)) if environ.get(LOG_URL) else None


def _list_senders(environ: Mapping[str, str]) -> list[BackgroundService]:
    def load() -> SenderService:
        return SenderService(environ, load_endpoints(environ))

    return [partial(run_service, load)] if environ.get(LOG_URL) else []


def serve(
    settings: GraphQLServerSettings,
    host: str,
    port: int,
    announce: Callable[[str], None],
    *,
    follow: bool = False,
) -> None:
    """Serve until SIGINT or SIGTERM; `announce` gets one line once the port is open.

    With `follow` it also ends when the declarations change. Raises ConfigError when the address
    cannot be listened on.
    """
    with open_listener(host, port) as listener:
        url_host = f"[{host}]" if ":" in host else host
        announce(f"GraphQL: http://{url_host}:{listener.getsockname()[1]}{GRAPHQL_PATH}")
        config = uvicorn.Config(
            create_app(settings),
            **make_uvicorn_options(),
            ws="websockets-sansio",
            ws_max_size=WEBSOCKET_BYTES,
            # A slow client gets a reason before it counts as gone.
            ws_ping_timeout=120,
            # Its buffers would be most of an idle subscriber's memory.
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=_END_SECONDS,
        )
        server = uvicorn.Server(config)
        with end_when_changed(settings.environ, server) if follow else nullcontext():
            server.run(sockets=[listener])


@contextmanager
def open_listener(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens at this address. Raises ConfigError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ConfigError(
            f"The server cannot listen on {host} port {port}: {reason}. Name another --port, "
            "or end what listens there."
        ) from error
    with listener:
        yield listener


def log_to_stderr() -> None:
    """Write the warnings of the server and of the invocation runtime to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    for name in ("iscp_dagster", "durable_invocations"):
        logging.getLogger(name).addHandler(handler)
