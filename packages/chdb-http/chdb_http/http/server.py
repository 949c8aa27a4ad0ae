"""Runs the server's process: one socket, one engine, a clean end."""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import uvicorn

from asgi_guards.admission import Admission
from asgi_guards.connections import make_uvicorn_options
from chdb_http.engine.engine import Engine
from chdb_http.engine.sessions import Sessions
from chdb_http.engine.slots import StatementRunner
from chdb_http.errors import StartError
from chdb_http.http.app import build_app
from chdb_http.http.exchange import Exchange
from chdb_http.http.handler import QueryHandler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from starlette.types import ASGIApp

    from chdb_http.engine.confine import Reach
    from chdb_http.http.auth import Account

_GRACE_SECONDS = 2
_MOST_HEAD_BYTES = 1 << 21
"""Queries and settings come in the URL."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Port 0 is any free one; `max_connections` statements run at once; no account: open to all."""

    reach: Reach
    host: str
    port: int
    account: Account | None
    max_connections: int
    config_file: Path | None = None
    admission: Admission = field(default_factory=Admission)


def serve(config: ServerConfig, announce: Callable[[str, int], None]) -> None:
    """Serve until SIGTERM or SIGINT; `announce(host, port)` is called when it is ready.

    Raises `StartError` when the port or the data is not available. Statements that still run at
    the end are canceled after a short grace.
    """
    _raise_file_limit()
    with _bind_socket(config.host, config.port) as listener:
        engine = Engine(
            config.reach, workers=config.max_connections, config_file=config.config_file
        )
        try:
            sessions = Sessions(
                lambda wait, call: asyncio.get_running_loop().call_later(wait, call)
            )
            exchange = Exchange(engine=engine, slots=StatementRunner(engine, sessions))
            app = build_app(QueryHandler(exchange, config.account), config.admission)
            _AnnouncingServer(app, listener, announce).run(sockets=[listener])
            sessions.close()
        finally:
            engine.close()


def _raise_file_limit() -> None:
    """Raise the limit of file descriptors: the engine holds three for each of its threads."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))


def _bind_socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends small answers at once only if the protocol is named.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise StartError(
            f"ClickHouse cannot listen on {host}:{port}: {error.strerror}; name another --port"
        ) from error
    return listener


class _AnnouncingServer(uvicorn.Server):
    """uvicorn that announces when it listens, and ends with exit code 0 on a signal."""

    def __init__(
        self, app: ASGIApp, listener: socket.socket, announce: Callable[[str, int], None]
    ) -> None:
        config = uvicorn.Config(
            app,
            **make_uvicorn_options(_MOST_HEAD_BYTES),
            log_config=None,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        super().__init__(config)
        self._listener = listener
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        host, port = self._listener.getsockname()[:2]
        self._announce(host, port)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        old_handlers = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in old_handlers.items():
                signal.signal(number, handler)
