"""An empty store of invocations on SQLite and on PostgreSQL."""

import pytest
import sqlalchemy as sa

from durable_invocations.runtime.sql.database import open_database
from durable_invocations.runtime.sql.store import SqlStore
from runtime_support.manual_clock import Watch
from runtime_support.runtimes.manual_runtime import TABLES, Desk


@pytest.fixture(scope="module")
def database(new_postgres):
    engine = open_database(new_postgres(), keep_open=True)
    SqlStore(engine).ensure()
    yield engine
    engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request, tmp_path):
    if request.param == "sqlite":
        engine = open_database(f"sqlite:///{tmp_path}/log.db", keep_open=True)
        SqlStore(engine).ensure()
        yield engine
        engine.dispose()
        return
    engine = request.getfixturevalue("database")
    yield engine
    with engine.begin() as connection:
        # A TRUNCATE syncs every file of every table.
        for table in TABLES:
            connection.execute(sa.delete(table))


@pytest.fixture
def watch():
    return Watch(1_000)


@pytest.fixture
def desk(engine, watch):
    return Desk(engine, watch)


@pytest.fixture
def other(engine, watch):
    """Another runtime on the same database."""
    return Desk(engine, watch, owner="two")
