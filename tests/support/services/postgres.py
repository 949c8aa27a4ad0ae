"""What tests do to a PostgreSQL of sql_transactions.testing."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import psutil
import sqlalchemy as sa

GONE_SECONDS = 30.0


def driven(url: str) -> sa.URL:
    """Return the URL with the project's driver."""
    return sa.make_url(url).set(drivername="postgresql+psycopg")


def kill(server: Any) -> None:
    """Kill the server with all its processes, as a crash of its machine would.

    Its `ensure_postgres_running` starts it again; it recovers from its write-ahead log.
    """
    first = psutil.Process(server.get_pid())
    processes = [first, *first.children(recursive=True)]
    for process in processes:
        # The others may end by themselves after the first.
        with suppress(psutil.NoSuchProcess):
            process.kill()
    _, left = psutil.wait_procs(processes, GONE_SECONDS)
    assert not left, left
