"""Runs an ASGI application in a separate process, over HTTP/1.1 and HTTP/2."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from iscp_dagster.local.stack.ports import find_free_port

Command = Callable[[Path | str, str, int], tuple[str, ...]]
START_SECONDS = 120.0
"""The limit on a machine busy with other tests."""
HERE = Path(__file__).parent


@dataclass
class Served:
    """A server that can be killed and started again at the same address."""

    command: tuple[str, ...]
    port: int
    log: Path
    process: subprocess.Popen[bytes] | None = None
    folder: Path = HERE
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ | {"PYTHONPATH": ""})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def told(self) -> str:
        """What it wrote to its standard output and error."""
        return self.log.read_text()

    def start(self) -> None:
        """Start it, and wait until it listens."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, cwd=self.folder, stdout=log, stderr=log, env=self.environment
            )
        until = time.monotonic() + START_SECONDS
        while not self._listens():
            assert self.process.poll() is None, self.told
            assert time.monotonic() < until, self.told
            time.sleep(0.02)

    def _listens(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def kill(self) -> None:
        """Kill it as a crash does."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def hypercorn(python: Path | str, app: str, port: int) -> tuple[str, ...]:
    # It notices a connection that broke off when that has been idle for so long.
    # Without workers, which would outlive it when it is killed.
    given = ("--workers", "0", "--keep-alive", "1", "--bind", f"127.0.0.1:{port}")
    return (str(python), "-m", "hypercorn", *given, app)


def uvicorn(python: Path | str, app: str, port: int) -> tuple[str, ...]:
    return (str(python), "-m", "uvicorn", "--port", str(port), "--lifespan", "off", app)


@contextmanager
def served(
    python: Path | str, app: str, folder: Path, command: Command = hypercorn
) -> Iterator[Served]:
    """Run `module:name` of this folder until the end of the block."""
    port = find_free_port()
    server = Served(command(python, app, port), port, folder / f"{command.__name__}.log")
    server.start()
    try:
        yield server
    finally:
        # Not asked to end: an SDK may keep its streams, and with them its server.
        server.kill()
