"""A server for tests: uvicorn in a thread of the test's own process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from socket import socket
from threading import Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

_END_SECONDS = 60


@dataclass(frozen=True)
class RunningServer:
    """A server on this machine; it shuts down when `server.should_exit` is set."""

    port: int
    server: uvicorn.Server

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def run_server(
    app: ASGIApp, *, port: int = 0, listening: socket | None = None, **options: Any
) -> Iterator[RunningServer]:
    """Serve an app over HTTP/1.1 until the block ends, and yield it when it has begun.

    At `port`, or at a socket that listens already, which is closed at the end. `options` are those
    of `uvicorn.Config`; the app's lifespan does not run without `lifespan="on"`. Needs the extra
    `uvicorn`. Raises RuntimeError for a server that does not start or does not end.
    """
    import uvicorn

    defaults = {"log_level": "error", "lifespan": "off", "timeout_graceful_shutdown": 1}
    options = {**defaults, **options}
    server = uvicorn.Server(uvicorn.Config(app, port=port, **options))
    sockets = None if listening is None else [listening]
    thread = Thread(target=server.run, args=(sockets,), daemon=True)
    thread.start()
    try:
        while not server.started:
            if not thread.is_alive():
                raise RuntimeError("The server ended before it started; its log says why.")
            thread.join(0.01)
        yield RunningServer(server.servers[0].sockets[0].getsockname()[1], server)
    finally:
        server.should_exit = True
        thread.join(_END_SECONDS)
    if thread.is_alive():
        raise RuntimeError(f"The server did not end within {_END_SECONDS} s.")
