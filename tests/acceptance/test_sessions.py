"""Spark sessions and the Python workers they leave: bounded, however many runs there are."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest
from stackfixture import wait_for
from tables import Table, engine_at, rows

from iscp_dagster import Mirror
from iscp_dagster.engine.iterate import Delivery
from iscp_dagster.lake.feed import ReadKind
from iscp_dagster.spark.daemon import IDLE_SECONDS
from iscp_dagster.spark.session import disconnect, private, shared
from iscp_dagster.stack.settings import SPARK

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ITERATIONS, VERIFIES = 50, 20
SOAK = 1000
GROWTH = 1.5
MIB = 2**20
TIME_ZONE = "spark.sql.session.timeZone"
COUNTS = """
import sys
from iscp_dagster.spark.session import shared
print(shared(sys.argv[1]).range(10).mapInArrow(lambda batches: batches, "id bigint").count())
"""


@pytest.fixture
def engine(stack, tmp_path):
    return engine_at(stack.clickhouse_url, stack.spark_remote, tmp_path)


def python_processes(stack):
    """The daemons and workers of Spark's executors."""
    found = psutil.Process(stack.pid(SPARK)).children(recursive=True)
    return [each for each in found if "python" in each.name()]


def daemons(stack):
    python = python_processes(stack)
    pids = {each.pid for each in python}
    return [each for each in python if each.ppid() not in pids]


def resident(stack):
    """MiB of all Python processes; one that has ended meanwhile holds none."""
    sizes = 0
    for each in python_processes(stack):
        try:
            sizes += each.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return sizes / MIB


def work(table, iterations, verifies, every=lambda: None):
    """Iterations and verifies, each with a connection of its own, as if it were a process."""
    tenants = [f"t{number}" for number in range(iterations)]
    table.sql("INSERT INTO {t} VALUES " + ", ".join(rows(1, tenant=each) for each in tenants))
    for tenant in tenants:
        disconnect()
        (outcome,) = table.run(table.iteration(tenant), f"run of {tenant}")
        assert isinstance(outcome, Delivery), outcome
        assert outcome.plan.kind is ReadKind.SNAPSHOT
        every()
    for _ in range(verifies):
        disconnect()
        assert all(each.agrees for each in table.verdicts())
        every()


def test_iterations_and_verifies_leave_no_workers_behind(engine, stack):
    table = Table.make(engine, Mirror())
    work(table, 4, 2)
    most, held = len(daemons(stack)), resident(stack)
    work(Table.make(engine, Mirror()), ITERATIONS, VERIFIES)
    assert len(daemons(stack)) <= most
    assert resident(stack) <= held * GROWTH, (held, resident(stack), python_processes(stack))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_thousand_iterations_leave_no_workers_behind(engine, stack, capsys):
    table = Table.make(engine, Mirror())
    work(table, 4, 2)
    most, held = len(daemons(stack)), resident(stack)
    seen = []
    work(
        Table.make(engine, Mirror()),
        SOAK,
        VERIFIES,
        lambda: seen.append((len(daemons(stack)), resident(stack))),
    )
    counts, sizes = zip(*seen, strict=True)
    with capsys.disabled():
        print(f"\ndaemons {most}, at most {max(counts)}")  # noqa: T201
        print(f"MiB {held:.0f}, at most {max(sizes):.0f}")  # noqa: T201
    assert max(counts) <= most
    assert max(sizes) <= held * GROWTH


def test_processes_share_one_session_and_its_workers(engine, stack):
    for _ in range(2):
        found = subprocess.run(
            [sys.executable, "-c", COUNTS, stack.spark_remote],
            check=True,
            capture_output=True,
            text=True,
        )
        assert found.stdout == "10\n"
        before = {each.pid for each in daemons(stack)}
    engine.spark().range(10).mapInArrow(lambda batches: batches, "id bigint").count()
    assert {each.pid for each in daemons(stack)} == before


def test_a_session_that_the_server_closed_is_followed_by_another(stack):
    first = shared(stack.spark_remote)
    name = first.session_id
    first.client.release_session()
    second = shared(stack.spark_remote)
    assert second.session_id != name
    assert second.range(3).count() == 3
    disconnect()
    assert shared(stack.spark_remote).session_id == second.session_id


def test_stopping_the_shared_session_leaves_it_to_the_others(stack):
    name = shared(stack.spark_remote).session_id
    shared(stack.spark_remote).stop()
    assert shared(stack.spark_remote).session_id == name


def test_what_a_users_code_sets_in_its_session_nobody_else_sees(engine, stack):
    before = engine.spark().conf.get(TIME_ZONE)
    with engine.users_session() as session:
        session.conf.set(TIME_ZONE, "Asia/Tokyo")
        session.range(1).createOrReplaceTempView("mine")
        assert engine.spark().conf.get(TIME_ZONE) == before
        assert not engine.spark().catalog.tableExists("mine")
    assert session.is_stopped


@pytest.mark.soak
def test_a_private_sessions_workers_end_with_it(stack):
    session = private(stack.spark_remote)
    before = {each.pid for each in daemons(stack)}
    session.range(10).mapInArrow(lambda batches: batches, "id bigint").count()
    (mine,) = [each for each in daemons(stack) if each.pid not in before]
    session.stop()
    # Spark ends its workers a minute after their last task.
    wait_for(lambda: not mine.is_running(), 60 + 3 * IDLE_SECONDS, lambda: str(mine))
