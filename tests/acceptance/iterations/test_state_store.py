"""Iterations whose batch states are in KeeperMap: a run may die between any two of its writes."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import replace
from datetime import timedelta

import pytest
from logs import fail
from mortal import Crash, Life, Mortal
from tables import Table, deployment_at, one_by_one, publish_one

from iscp_dagster import Mirror
from iscp_dagster.batches.keepermap import KeeperMapStates
from iscp_dagster.clickhouse.connect.quoting import ident
from iscp_dagster.joblog.iterations import Failed
from iscp_dagster.model.batch import Case, Phase
from iscp_dagster.model.errors import BatchError, FenceError, UnavailableError
from iscp_dagster.model.states import JobState
from iscp_dagster.sync.bounds import Bounds
from iscp_dagster.sync.ledger import state_key
from iscp_dagster.sync.publish import Delivery
from iscp_dagster.upkeep.maintenance import collect, garbage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def states(keeper, tmp_path):
    """Open a store in a Keeper; the indexes are in a ClickHouse without Keeper."""
    database = tmp_path.name
    states = KeeperMapStates(keeper.endpoint, database=database, path=f"/{database}")
    states.ensure()
    yield states
    keeper.endpoint.client().command(f"DROP DATABASE {ident(database)}")


@pytest.fixture
def deployment(clickhouse_url, near_spark, tmp_path, states):
    return deployment_at(clickhouse_url, near_spark, tmp_path, states=lambda: states)


@pytest.fixture
def events(deployment):
    """Make a table without a key: a row written twice is stored twice."""
    return Table.make(deployment, Mirror(append=True), columns="tenant STRING, n INT", key=())


def add(table, *numbers, tenant="a"):
    rows = ", ".join(f"('{tenant}', {n})" for n in numbers)
    table.sql(f"INSERT INTO {{t}} VALUES {rows}")


def check(table):
    assert table.query("SELECT count() FROM {mirror}") == [(table.agreed()["mirror"],)]


# The first write of the store is BEFORE, the second AFTER.
CRASHES = {
    "begun": ("after", "begin", 1),
    "not before": ("before", "write_many", 1),
    "before": ("after", "write_many", 1),
    "written": ("before", "write_many", 2),
    "after": ("after", "write_many", 2),
    "not completed": ("before", "complete", 1),
    "completed": ("after", "complete", 1),
}


def crash(table, iteration, deadly):
    life, deployment, store = Life(*deadly), table.deployment, table.deployment.states()
    mortal = replace(
        deployment, log=Mortal(deployment.log, life), states=lambda: Mortal(store, life)
    )
    with pytest.raises(Crash):
        replace(table, deployment=mortal).run(iteration, "dead")
    deployment.log.recover({"dead"})


def test_a_run_that_dies_at_any_write_of_state_loses_and_doubles_nothing(events):
    for number, tenant in enumerate(CRASHES):
        add(events, number, number, tenant=tenant)
    for tenant, deadly in CRASHES.items():
        crash(events, events.iteration(tenant), deadly)
    events.follow()
    check(events)
    for number, tenant in enumerate(CRASHES):
        add(events, number, 1, 1, tenant=tenant)
    iterations = {tenant: events.iteration(tenant) for tenant in CRASHES}
    for tenant, iteration in iterations.items():
        crash(events, iteration, CRASHES[tenant])
    add(events, 7, tenant="written")
    outcomes = events.follow()
    assert not [each for each in outcomes if isinstance(each, Failed)]
    # The store decides: AFTER where the log has no end, nothing where nothing began.
    found = {each.tenant: (each.claim.case, each.claim.previous.phase) for each in outcomes}
    assert found == {
        "begun": (Case.NEW, Phase.AFTER),
        "not before": (Case.NEW, Phase.AFTER),
        "before": (Case.OVERLAPPING, Phase.BEFORE),
        "written": (Case.OVERLAPPING, Phase.BEFORE),
        "after": (Case.OVERLAPPING, Phase.AFTER),
        "not completed": (Case.OVERLAPPING, Phase.AFTER),
    }
    check(events)
    held = events.deployment.states().read([state_key(job) for job in events.jobs()])
    assert {each.record.phase for each in held.values()} == {Phase.AFTER}


def test_a_run_that_was_thought_dead_cannot_say_that_it_wrote(events):
    add(events, 1)
    events.follow()
    add(events, 2)
    iteration = events.iteration("a")
    zombie = one_by_one(events.deployment, events.source, iteration, run_id="zombie")
    late = next(zombie)
    assert isinstance(late, Delivery)
    events.deployment.log.recover({"zombie"})
    events.follow()
    (job,) = events.jobs()
    before = events.deployment.states().read([state_key(job)])
    (error,) = late.ledger.after([late.claim]).values()
    assert "run zombie saw fence" in str(error)
    with pytest.raises(FenceError):
        publish_one(events.deployment, late)
    zombie.close()
    assert events.deployment.states().read([state_key(job)]) == before
    check(events)


def test_a_store_that_another_run_writes_to_stops_the_one_that_comes_late(events):
    add(events, 1)
    events.follow()
    add(events, 2)
    (job,) = events.jobs()
    store = events.deployment.states()
    (seen,) = store.read([state_key(job)]).values()

    class Late:
        """A store where another run writes between this run's look and its first write."""

        def __getattr__(self, name):
            return getattr(store, name)

        def write_many(self, writes):
            store.write(state_key(job), seen.record, holder="quicker", seen=seen)
            return store.write_many(writes)

    late = replace(events, deployment=replace(events.deployment, states=Late))
    (failure,) = late.run(events.iteration("a"))
    assert re.search(r"found fence \d+ of run quicker", failure.message)
    (failed,) = events.jobs()
    assert failed.status.code == failure.code == FenceError.code
    assert events.query("SELECT n FROM {mirror}") == [(1,)]
    events.deployment.log.repair([failed.key])
    events.materialize()
    check(events)


@pytest.fixture
def put_back(events, tmp_path):
    """Write five batches, then restore the log from a copy that knows only two."""
    log, copy = (sqlite3.connect(tmp_path / name) for name in ("iscp_log.sqlite", "copy.sqlite"))
    for number in range(5):
        add(events, number)
        events.follow()
        if number == 1:
            log.backup(copy)
    copy.backup(log)
    log.close()
    copy.close()
    (job,) = events.jobs()
    assert job.watermark.version == 2
    return replace(events, cursor=None)


def test_what_a_log_that_was_put_back_has_forgotten_is_not_written_twice(put_back):
    (outcome,) = put_back.follow()
    assert outcome.claim.case is Case.SAME
    assert outcome.inserted == 0
    check(put_back)
    add(put_back, 5)
    put_back.follow()
    check(put_back)


def test_a_range_before_its_record_stops_the_job_until_it_is_repaired(put_back):
    small = replace(put_back, deployment=replace(put_back.deployment, bounds=Bounds(versions=1)))
    (failed,) = small.follow()
    assert failed.code == BatchError.code
    said = r"\(2, 3\] lies before .* \(4, 5\].*ISCP_TOLERATE_STATE_MISMATCH"
    assert re.search(said, failed.message)
    (job,) = small.jobs()
    assert (job.state, job.watermark.version) == (JobState.ERROR, 2)
    small.deployment.log.repair([job.key])
    small.follow()
    check(small)


def test_a_range_before_its_record_is_passed_over_where_that_is_tolerated(put_back):
    changes = {"bounds": Bounds(versions=1), "tolerate_state_mismatch": True}
    tolerant = replace(put_back, deployment=replace(put_back.deployment, **changes))
    outcomes = tolerant.follow()
    assert [(each.claim.case, each.inserted) for each in outcomes] == [
        (Case.INVALID, 0),
        (Case.INVALID, 0),
        (Case.SAME, 0),
    ]
    check(tolerant)
    add(tolerant, 5)
    (last,) = tolerant.follow()
    assert (last.claim.case, last.inserted) == (Case.NEW, 1)
    check(tolerant)


def test_a_store_that_does_not_answer_is_said_of_the_jobs_which_come_again(events):
    add(events, 1)
    events.follow()
    add(events, 2)
    # A person has made the store forget the batch.
    (claim,) = events.deployment.log.begin(events.iteration("a"), "fails", {})
    fail(events.deployment.log, claim, 10_430, "a row is refused")
    events.deployment.log.repair([claim.key])

    def gone():
        raise UnavailableError("The state store does not answer; start it again.")

    cut = replace(events, deployment=replace(events.deployment, states=gone))
    (due,) = cut.look().dispatches
    with pytest.raises(UnavailableError, match="state store does not answer"):
        cut.run(due.iteration, queued_as=due.name)
    (job,) = events.jobs()
    assert job.state is JobState.COMPLETED
    assert job.status.code == UnavailableError.code
    assert job.status.message == "The state store does not answer; start it again."
    assert job.batch is None
    events.materialize()
    check(events)


def test_the_state_of_a_job_that_is_collected_is_forgotten(events):
    add(events, 1)
    events.follow()
    (job,) = events.jobs()
    assert events.deployment.states().read([state_key(job)])
    events.deployment.log.unregister(job.key.tenant, job.name, job.key.table_id)
    found = garbage(events.deployment, [events.source], kept=timedelta(seconds=-60))
    collect(events.deployment, [events.source], found)
    assert events.deployment.states().read([state_key(job)]) == {}
