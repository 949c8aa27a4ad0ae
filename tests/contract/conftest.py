"""The ISCP logs that one suite runs over: in memory, on SQLite, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest
from logs import Advancing, Hand

from iscp_dagster.joblog.memory import MemoryLog
from iscp_dagster.joblog.protocol import JobLog
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.joblog.sql.tables import METADATA


@pytest.fixture
def hand() -> Hand:
    """Return the clock of leases, which only a test moves."""
    return Hand()


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def make_log(request, tmp_path, hand) -> Iterator[Callable[[], JobLog]]:
    """Give a function that opens a log over one shared, empty store, as each process would."""
    clock, ids = Advancing(), count(1)
    if request.param == "memory":
        log = MemoryLog(clock=clock, new_id=lambda: next(ids), who="tester", lease_clock=hand)
        yield lambda: log
        return
    url = f"sqlite:///{tmp_path}/log.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres")
    engines = []

    def make() -> JobLog:
        log = SqlLog(url, clock=clock, new_id=lambda: next(ids), who="tester", lease_clock=hand)
        engines.append(log.engine)
        log.ensure()
        return log

    yield make
    for engine in engines:
        METADATA.drop_all(engine)
        engine.dispose()


@pytest.fixture
def sql_log(make_log) -> SqlLog:
    log = make_log()
    if not isinstance(log, SqlLog):
        pytest.skip("one process and one lock: nothing interleaves")
    return log


@pytest.fixture
def log(make_log) -> JobLog:
    return make_log()
