"""A database on SQLite, and one on PostgreSQL."""

import pytest
import sqlalchemy as sa

from sql_transactions.engine import DatabaseUse, open_engine, prepare_engine
from sql_transactions.testing import run_postgres


class AwayError(Exception):
    """What the shop raises while its database does not answer."""


SHOP = DatabaseUse(name="shop", setting="SHOP_URL", unavailable=AwayError)


@pytest.fixture
def shop():
    """Return the role in which tests open databases."""
    return SHOP


@pytest.fixture(scope="session")
def postgres(tmp_path_factory):
    """Run a PostgreSQL, and return its URL."""
    with run_postgres(tmp_path_factory.mktemp("runtime")) as server:
        yield server.get_uri()


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request, tmp_path):
    """Return the engine of a database without tables."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/shop.db"
    else:
        url = request.getfixturevalue("postgres")
    engine = prepare_engine(open_engine(url, SHOP), SHOP)
    yield engine
    tables = sa.MetaData()
    tables.reflect(engine)
    tables.drop_all(engine)
    engine.dispose()
