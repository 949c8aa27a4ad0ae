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

from asgi_guards.connections import options
from iscp_dagster.api.discovery import declared, declared_endpoints
from iscp_dagster.api.environment import endpoints_of, user
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.variables import CLICKHOUSE_URL, CLICKHOUSE_URLS, LAKE, LOG_URL
from iscp_dagster.serve.access import access
from iscp_dagster.serve.catalog import Catalog
from iscp_dagster.serve.graph.schema import schema
from iscp_dagster.serve.graph.schemas import Loader, Schemas
from iscp_dagster.serve.live.service import Live
from iscp_dagster.serve.live.transport.socket import Sockets
from iscp_dagster.serve.web.app import PATH, Beside, Settings, check_host, create_app
from iscp_dagster.serve.web.following import end_when_changed
from iscp_dagster.webhooks.service import SenderService, beside

HOST, PORT = "127.0.0.1", 4000
TOKENS_VARIABLE = "ISCP_GRAPHQL_TOKENS"
WEBSOCKET_BYTES = 1024 * 1024
"""A larger frame ends its connection before it is read; smaller ones are told what is allowed."""
_END_SECONDS = 5
_CONNECT_SECONDS = 3.0
_ANSWER_SECONDS = 30.0
"""Longer than any query may take: ClickHouse ends those."""


class Declared:
    """Reads the catalog of the location's tables, which are imported at the first call."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._loader: Loader | None = None

    def __call__(self) -> Catalog:
        """Raises ConfigError when the declarations or the settings are wrong."""
        if self._loader is None:
            self._loader = _loader(self._environ)
        return self._loader()


def _loader(environ: Mapping[str, str]) -> Loader:
    if not (environ.get(CLICKHOUSE_URL) or environ.get(CLICKHOUSE_URLS)):
        raise ConfigError(
            f"{CLICKHOUSE_URL} is not set, and no stack is up. Start one with `iscp up`, or name "
            "the ClickHouse of your deployment."
        )
    timeouts = {"connect_timeout": _CONNECT_SECONDS, "query_timeout": _ANSWER_SECONDS}
    endpoints = endpoints_of(environ, **timeouts)
    return Loader(tables=declared(environ), endpoints=endpoints, lake=environ.get(LAKE, ""))


def printed(environ: Mapping[str, str]) -> str:
    """Return the schema as SDL. Raises ConfigError, and UnavailableError without ClickHouse."""
    from graphql import print_schema

    return print_schema(schema(Declared(environ)()))


def settings_of(environ: Mapping[str, str], host: str, tokens: str) -> Settings:
    """Return the server's settings. Raises ConfigError for tokens or a host that cannot be used.

    Changes are told if the ISCP log is known, which says how far each index has come; then events
    are delivered to the declared endpoints, too.
    """
    known = access(tokens or environ.get(TOKENS_VARIABLE, ""))
    check_host(host, known)
    log = environ.get(LOG_URL)
    live = Live(log=SqlLog(log, who=user())) if log else None
    schemas = Schemas(load=Declared(environ), subscribe=live.subscribe if live else None)
    sockets = Sockets(schemas=schemas, access=known)
    return Settings(
        schemas=schemas,
        access=known,
        environ=environ,
        routes=[WebSocketRoute(PATH, sockets.endpoint)],
        beside=[sockets.beside, *_senders(environ)],
    )


def sender_of(environ: Mapping[str, str]) -> SenderService | None:
    """What delivers webhooks beside the server; None without an ISCP log. Raises ConfigError."""
    return SenderService(environ, declared_endpoints(environ)) if environ.get(LOG_URL) else None


def _senders(environ: Mapping[str, str]) -> list[Beside]:
    def load() -> SenderService:
        return SenderService(environ, declared_endpoints(environ))

    return [partial(beside, load)] if environ.get(LOG_URL) else []


def serve(
    settings: Settings,
    host: str,
    port: int,
    tell: Callable[[str], None],
    *,
    follow: bool = False,
) -> None:
    """Serve until SIGINT or SIGTERM; `tell` gets one line once the port is there.

    With `follow` it also ends when the declarations change. Raises ConfigError when the address
    cannot be listened on.
    """
    with listening(host, port) as place:
        shown = f"[{host}]" if ":" in host else host
        tell(f"GraphQL: http://{shown}:{place.getsockname()[1]}{PATH}")
        config = uvicorn.Config(
            create_app(settings),
            **options(),
            ws="websockets-sansio",
            ws_max_size=WEBSOCKET_BYTES,
            # A client that is slow is told so before it counts as gone.
            ws_ping_timeout=120,
            # Its buffers would be most of what an idle subscriber costs.
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=_END_SECONDS,
        )
        server = uvicorn.Server(config)
        with end_when_changed(settings.environ, server) if follow else nullcontext():
            server.run(sockets=[place])


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens there. Raises ConfigError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        place = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise ConfigError(
            f"The server cannot listen on {host} port {port}: {why}. Name another --port, or end "
            "what listens there."
        ) from error
    with place:
        yield place


def log_to_stderr() -> None:
    """Have the warnings of the server, and of the runtime of invocations, written to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    for name in ("iscp_dagster", "durable_invocations"):
        logging.getLogger(name).addHandler(handler)
