"""The ISCP logs that one suite runs over: on SQLite, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.joblog.sql.tables import METADATA
from support.jobs.log_rows import Advancing, Hand


@pytest.fixture
def hand() -> Hand:
    """Return the clock of leases, which only a test moves."""
    return Hand()


@pytest.fixture(params=["sqlite", "postgresql"])
def make_log(request, tmp_path, hand) -> Iterator[Callable[[], SqlLog]]:
    """Give a function that opens a log over one shared, empty store, as each process would."""
    clock, ids = Advancing(), count(1)
    url = f"sqlite:///{tmp_path}/log.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres")
    engines = []

    def make() -> SqlLog:
        log = SqlLog(url, clock=clock, new_id=lambda: next(ids), actor="tester", lease_clock=hand)
        engines.append(log.engine)
        log.ensure()
        return log

    yield make
    for engine in engines:
        METADATA.drop_all(engine)
        engine.dispose()


@pytest.fixture
def log(make_log) -> SqlLog:
    return make_log()
