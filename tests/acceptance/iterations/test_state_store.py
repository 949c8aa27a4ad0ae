"""Iterations with a state store: a run may die between any two of its writes."""

import re
import sqlite3
from dataclasses import replace
from datetime import timedelta

import pytest

from iscp_dagster import Mirror
from iscp_dagster.batchstates.keepermap import KeeperMapStates
from iscp_dagster.batchstates.sql import SqlStates
from iscp_dagster.clickhouse.connect.quoting import quote_identifier
from iscp_dagster.joblog.iterations import FailedStep
from iscp_dagster.model.batch import Case, Phase
from iscp_dagster.model.errors import BatchError, FenceError, UnavailableError
from iscp_dagster.model.states import JobState
from iscp_dagster.sync.bounds import IterationBounds
from iscp_dagster.sync.iteration.outcomes import RowDelivery
from iscp_dagster.sync.ledger import make_state_key
from iscp_dagster.upkeep.maintenance import delete_garbage, find_garbage
from support.errors import assert_names, raises_naming
from support.jobs.log_rows import fail
from support.lake.delta_tables import Table, deployment_at, ledger_of, one_by_one, publish_one
from support.workers.killable import CrashPoint, run_until_crash


@pytest.fixture(params=["sql", pytest.param("keepermap", marks=pytest.mark.soak)])
def states(request, tmp_path):
    """Open a store in another database than the log's; `test_states_contract` compares them."""
    if request.param == "sql":
        states = SqlStates(f"sqlite:///{tmp_path / 'states.sqlite'}")
        states.ensure()
        yield states
        return
    keeper, database = request.getfixturevalue("keeper"), tmp_path.name
    states = KeeperMapStates(keeper.endpoint, database=database, path=f"/{database}")
    states.ensure()
    yield states
    keeper.endpoint.get_client().command(f"DROP DATABASE {quote_identifier(database)}")


@pytest.fixture
def deployment(clickhouse_url, near_spark, tmp_path, states):
    return deployment_at(clickhouse_url, near_spark, tmp_path, open_state_store=lambda: states)


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
NO_ANSWER = "The state store does not answer; start it again."
CRASHES = {
    "begun": ("after", "claim_jobs", 1),
    "not before": ("before", "write_many", 1),
    "before": ("after", "write_many", 1),
    "written": ("before", "write_many", 2),
    "after": ("after", "write_many", 2),
    "not completed": ("before", "complete", 1),
    "completed": ("after", "complete", 1),
}


def crash(table, iteration, point):
    """Run the iteration in a process that dies there; another writer takes `taken` at once.

    The store then has AFTER only for the tenants that the run wrote and confirmed.
    """
    log, store = table.deployment.log, table.deployment.open_state_store()
    taken = [key for key in iteration.jobs if key.tenant.startswith("taken")]
    life = CrashPoint(*CRASHES[point], meanwhile={"claim_jobs": lambda: log.cancel(taken)})
    run_until_crash(table, iteration, life)
    log.recover_run_jobs({"dead"})
    jobs = [job for job in table.jobs() if job.key in iteration.jobs]
    found = store.read([make_state_key(job) for job in jobs])
    now = {key.tenant: each.record for key, each in found.items()}
    written = point in {"after", "not completed", "completed"}
    for tenant in iteration.tenants:
        confirmed = written and tenant not in {key.tenant for key in taken}
        recorded = point not in {"begun", "not before"}
        ended = tenant in now and now[tenant].range.to == iteration.to
        assert ended is recorded, tenant
        if recorded:
            assert now[tenant].phase is (Phase.AFTER if confirmed else Phase.BEFORE), tenant


def test_a_run_that_dies_at_any_write_of_state_loses_and_doubles_nothing_of_any_tenant(deployment):
    """Of three tenants one is written, a row of one is set aside, and one is taken meanwhile."""
    mirror = Mirror(append=True, types={"n": "UInt8"}, errors="dead_letter")
    events = Table.make(deployment, mirror, columns="tenant STRING, n INT", key=())
    trios = {point: [f"{who} {point}" for who in ("plain", "odd", "taken")] for point in CRASHES}

    def put(*numbers):
        """Insert these rows for each tenant, and for `odd` one that the mirror cannot hold."""
        rows = [
            f"('{tenant}', {n})"
            for tenants in trios.values()
            for tenant in tenants
            for n in (*numbers, *((300,) if tenant.startswith("odd") else ()))
        ]
        events.sql(f"INSERT INTO {{t}} VALUES {', '.join(rows)}")

    def check(dead):
        rows = 0
        for each in events.verdicts():
            aside = dead if each.tenant.startswith("odd") else 0
            wrong = (each.missing, each.extra, each.different, each.dead)
            assert wrong == (aside, 0, 0, aside), each
            rows += each.rows - aside
        assert events.query("SELECT count() FROM {mirror}") == [(rows,)]

    put(7, 7)
    for point in ("begun", "written", "not completed"):
        crash(events, events.iteration(*trios[point]), point)
    events.follow()
    check(dead=1)
    put(8, 1, 1)
    iterations = {point: events.iteration(*tenants) for point, tenants in trios.items()}
    for point, iteration in iterations.items():
        crash(events, iteration, point)
    add(events, 7, tenant="plain written")
    outcomes = events.follow()
    assert not [each for each in outcomes if isinstance(each, FailedStep)]
    # The store decides: it has AFTER where the log has no end, and nothing where nothing began.
    found = {each.tenant: (each.claim.case, each.claim.previous.phase) for each in outcomes}
    nothing, unsure = (Case.NEW, Phase.AFTER), (Case.OVERLAPPING, Phase.BEFORE)
    confirmed = (Case.OVERLAPPING, Phase.AFTER)
    by_point = {
        "begun": nothing,
        "not before": nothing,
        "before": unsure,
        "written": unsure,
        "after": confirmed,
        "not completed": confirmed,
    }
    alike = {f"{who} {point}": by_point[point] for point in by_point for who in ("plain", "odd")}
    # Nothing that another writer has taken is confirmed.
    begun = {"begun", "not before"}
    of_taken = {f"taken {point}": nothing if point in begun else unsure for point in CRASHES}
    assert found == alike | of_taken
    check(dead=2)
    held = events.deployment.open_state_store().read([make_state_key(job) for job in events.jobs()])
    assert {each.record.phase for each in held.values()} == {Phase.AFTER}


def test_a_run_that_was_thought_dead_cannot_say_that_it_wrote(events):
    add(events, 1)
    events.follow()
    add(events, 2)
    iteration = events.iteration("a")
    zombie = one_by_one(events.deployment, events.source, iteration, run_id="zombie")
    late = next(zombie)
    assert isinstance(late, RowDelivery)
    events.deployment.log.recover_run_jobs({"zombie"})
    events.follow()
    (job,) = events.jobs()
    before = events.deployment.open_state_store().read([make_state_key(job)])
    (error,) = ledger_of(late).record_after([late.claim]).values()
    assert_names(str(error), "zombie")
    with pytest.raises(FenceError):
        publish_one(events.deployment, late)
    zombie.close()
    assert events.deployment.open_state_store().read([make_state_key(job)]) == before
    check(events)


def test_a_store_that_another_run_writes_to_stops_the_one_that_comes_late(events):
    add(events, 1)
    events.follow()
    add(events, 2)
    (job,) = events.jobs()
    store = events.deployment.open_state_store()
    (seen,) = store.read([make_state_key(job)]).values()

    class Late:
        """A store where another run writes between this run's look and its first write."""

        def __getattr__(self, name):
            return getattr(store, name)

        def write_many(self, writes):
            store.write(make_state_key(job), seen.record, holder="quicker", expected=seen)
            return store.write_many(writes)

    late = replace(events, deployment=replace(events.deployment, open_state_store=Late))
    (failure,) = late.run(events.iteration("a"))
    assert_names(failure.message, "quicker")
    (failed,) = events.jobs()
    assert failed.status.code == failure.code == FenceError.code
    assert events.query("SELECT n FROM {mirror}") == [(1,)]
    events.deployment.log.repair([failed.key])
    events.materialize()
    check(events)


def test_what_a_log_that_was_put_back_has_forgotten_is_not_written_twice(events, tmp_path):
    """A range before the store's record stops the job, unless that is tolerated."""
    log, copy = (sqlite3.connect(tmp_path / name) for name in ("iscp_log.sqlite", "copy.sqlite"))
    for number in range(4):
        add(events, number)
        events.follow()
        if number == 1:
            log.backup(copy)

    def put_back(**changes):
        """Restore the log from the copy, which has two batches only."""
        copy.backup(log)
        (job,) = events.jobs()
        assert job.watermark.version == 2
        return replace(events, cursor=None, deployment=replace(events.deployment, **changes))

    by_version = {"bounds": IterationBounds(versions=1)}
    tolerant = put_back(**by_version, tolerate_state_mismatch=True)
    found = [(each.claim.case, each.inserted) for each in tolerant.follow()]
    assert found == [(Case.INVALID, 0), (Case.SAME, 0)]
    check(tolerant)
    add(tolerant, 4)
    (last,) = tolerant.follow()
    assert (last.claim.case, last.inserted) == (Case.NEW, 1)
    check(tolerant)

    back = put_back()
    (outcome,) = back.follow()
    assert (outcome.claim.case, outcome.inserted) == (Case.SAME, 0)
    check(back)
    add(back, 5)
    back.follow()
    check(back)

    small = put_back(**by_version)
    (failed,) = small.follow()
    assert failed.code == BatchError.code
    said = r"\(2, 3\] lies before .* \(5, 6\].*ISCP_TOLERATE_STATE_MISMATCH"
    assert re.search(said, failed.message)
    (job,) = small.jobs()
    assert (job.state, job.watermark.version) == (JobState.ERROR, 2)
    small.deployment.log.repair([job.key])
    small.follow()
    check(small)
    log.close()
    copy.close()


def test_a_store_that_does_not_answer_is_said_of_the_jobs_which_come_again(events):
    add(events, 1)
    events.follow()
    add(events, 2)
    # A person has made the store forget the batch.
    (claim,) = events.deployment.log.claim_jobs(events.iteration("a"), "fails", {})
    fail(events.deployment.log, claim, 10_430, "a row is refused")
    events.deployment.log.repair([claim.key])

    def gone():
        raise UnavailableError(NO_ANSWER)

    cut = replace(events, deployment=replace(events.deployment, open_state_store=gone))
    (due,) = cut.look().dispatches
    with raises_naming(UnavailableError, NO_ANSWER):
        cut.run(due.iteration, queued_as=due.name)
    (job,) = events.jobs()
    assert job.state is JobState.COMPLETED
    assert job.status.code == UnavailableError.code
    assert job.status.message == NO_ANSWER
    assert job.batch is None
    events.materialize()
    check(events)
    # The state of a job that is collected is forgotten.
    assert events.deployment.open_state_store().read([make_state_key(job)])
    events.deployment.log.unregister(job.key.tenant, job.name, job.key.table_id)
    found = find_garbage(events.deployment, [events.source], retention=timedelta(seconds=-60))
    delete_garbage(events.deployment, [events.source], found)
    assert events.deployment.open_state_store().read([make_state_key(job)]) == {}
