"""The process of `receiver_server`, and what it has received."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.outbox import receiver_server


@dataclass
class Hooks:
    """A receiver at a port; whatever it has received survives it."""

    port: int
    database: Path
    secret: str
    process: subprocess.Popen[str] | None = field(default=None, init=False)

    def start(self) -> None:
        """Start it, and wait until it listens."""
        command = [sys.executable, receiver_server.__file__, str(self.port), str(self.database)]
        environment = {**os.environ, "ISCP_WEBHOOK_SECRET": self.secret}
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert json.loads(self.process.stdout.readline()) == {"port": self.port}

    def kill(self) -> None:
        """Kill it at once."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.database, timeout=30)) as connection:
            return connection.execute(query).fetchall()

    def count(self, table: str) -> int:
        return int(self.rows(f"SELECT count(*) FROM {table}")[0][0])

    def handled(self) -> list[dict[str, Any]]:
        """Return the bodies of the events that were handled, in their order."""
        rows = self.rows("SELECT body FROM handled ORDER BY number")
        return [json.loads(body) for (body,) in rows]


@contextmanager
def receiving_at(port: int, database: Path, secret: str) -> Iterator[Hooks]:
    """Run a receiver until the end of the block."""
    hooks = Hooks(port, database, secret)
    hooks.start()
    try:
        yield hooks
    finally:
        hooks.kill()
