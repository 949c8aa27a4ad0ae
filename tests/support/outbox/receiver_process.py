"""The process of `receiver_server`, and what it has received."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.invocations.asgi_process import Served
from support.outbox import receiver_server


@dataclass(kw_only=True)
class Hooks(Served):
    """A receiver at a port; whatever it has received survives it."""

    database: Path

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
    hooks = Hooks(
        command=(sys.executable, receiver_server.__file__, str(port), str(database)),
        port=port,
        log=database.with_suffix(".log"),
        environment=os.environ | {"ISCP_WEBHOOK_SECRET": secret},
        database=database,
    )
    hooks.start()
    try:
        yield hooks
    finally:
        hooks.kill()
