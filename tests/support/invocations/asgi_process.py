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
from support.paths import ROOT

Command = Callable[[Path | str, str, int], tuple[str, ...]]
PROJECT_SERVICES = "support.invocations.project_services:app"
SDK_SERVICES = "support.invocations.sdk_services:app"
START_SECONDS = 120.0
"""The limit on a machine busy with other tests."""


def await_port(port: int, is_alive: Callable[[], bool], output: Callable[[], str]) -> None:
    """Wait until a process listens at the port; fail with its output if it ends."""
    end = time.monotonic() + START_SECONDS
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        assert is_alive(), output()
        assert time.monotonic() < end, output()
        time.sleep(0.01)


@dataclass
class Served:
    """A server that can be killed and started again at the same address."""

    command: tuple[str, ...]
    port: int
    log: Path
    process: subprocess.Popen[bytes] | None = None
    folder: Path = ROOT / "tests"
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ | {"PYTHONPATH": ""})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def output(self) -> str:
        """What it wrote to its standard output and error."""
        return self.log.read_text()

    def start(self) -> None:
        """Start it, and wait until it listens."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, cwd=self.folder, stdout=log, stderr=log, env=self.environment
            )
        await_port(self.port, lambda: self.process.poll() is None, lambda: self.output)

    def kill(self) -> None:
        """Kill it as a crash does."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def hypercorn(python: Path | str, app: str, port: int) -> tuple[str, ...]:
    # It notices a broken connection after this many idle seconds.
    # Without workers, which would outlive it when it is killed.
    options = ("--workers", "0", "--keep-alive", "1", "--bind", f"127.0.0.1:{port}")
    return (str(python), "-m", "hypercorn", *options, app)


def uvicorn(python: Path | str, app: str, port: int) -> tuple[str, ...]:
    return (str(python), "-m", "uvicorn", "--port", str(port), "--lifespan", "off", app)


@contextmanager
def served(
    python: Path | str, app: str, folder: Path, command: Command = hypercorn
) -> Iterator[Served]:
    """Run `module:name` until the end of the block."""
    port = find_free_port()
    server = Served(command(python, app, port), port, folder / f"{command.__name__}.log")
    server.start()
    try:
        yield server
    finally:
        # Not terminated: an SDK may keep its streams, and with them its server.
        server.kill()
