"""One suite over every ISCP log: in memory, on SQLite, on PostgreSQL."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import count

import pytest
import sqlalchemy as sa

from iscp_dagster.core import lifecycle
from iscp_dagster.core.batch import Action, Case, Phase, Range
from iscp_dagster.core.errors import (
    BatchError,
    ConfigError,
    FenceError,
    TableGoneError,
    UnavailableError,
)
from iscp_dagster.core.iterations import Iteration
from iscp_dagster.core.jobs import ERROR_TEXT_LIMIT, JobID, JobKey, Registration
from iscp_dagster.core.moment import START, Moment
from iscp_dagster.core.specs import ConsumerInfo, IterationDetail, JobSpec, TriggerSpec
from iscp_dagster.core.states import Event, JobState
from iscp_dagster.core.updates import SpecUpdate
from iscp_dagster.log import JobLog, MemoryLog, SqlLog, statements
from iscp_dagster.log.engine import transaction
from iscp_dagster.log.flush import flush
from iscp_dagster.log.protocol import Interrupted
from iscp_dagster.log.tables import METADATA

T0 = datetime(2025, 6, 18, 12, tzinfo=timezone.utc)
LAYOUT = {"partitions": 2, "rows": 1000}


class Ticks:
    """A clock that goes on by a second a look."""

    def __init__(self) -> None:
        self.now = T0

    def __call__(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def make_log(request, tmp_path) -> Iterator[Callable[[], JobLog]]:
    """Makes logs over the same, empty, store: what several processes would open."""
    clock, ids = Ticks(), count(1)
    if request.param == "memory":
        log = MemoryLog(clock=clock, new_id=lambda: next(ids), who="tester")
        yield lambda: log
        return
    url = f"sqlite:///{tmp_path}/log.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres")
    engines = []

    def make() -> JobLog:
        log = SqlLog(url, clock=clock, new_id=lambda: next(ids), who="tester")
        engines.append(log.engine)
        log.ensure()
        return log

    yield make
    for engine in engines:
        METADATA.drop_all(engine)
        engine.dispose()


@pytest.fixture
def log(make_log) -> JobLog:
    return make_log()


def name(job: str = "mirror") -> JobID:
    return JobID(db="docs", table="symbols", job=job)


def spec(job: str = "mirror", priority: int = 0, **trigger) -> JobSpec:
    consumer = ConsumerInfo(type="mirror", table="symbols", db="docs", job=job, columns=("a",))
    detail = IterationDetail(priority=priority, consumer=consumer)
    return JobSpec(trigger=TriggerSpec(**trigger), detail=detail)


def key(job: str = "mirror", account: str = "acme", table_id: str = "t-1") -> JobKey:
    return JobKey(account=account, table_id=table_id, job_name=job)


def add(log: JobLog, *keys: JobKey) -> None:
    for k in keys:
        assert log.register(k.account, name(k.job_name), k.table_id, spec(k.job_name))


def over(*keys: JobKey, start: int = -1, to: int = 5) -> Iteration:
    return Iteration(
        table_id=keys[0].table_id,
        tenants=frozenset(k.account for k in keys),
        jobs=keys,
        from_=moment(start),
        to=moment(to),
    )


def moment(version: int) -> Moment:
    return START if version < 0 else Moment(version, version * 1_000_000)


def span(start: int, to: int) -> Range:
    return Range(from_=moment(start), to=moment(to))


def at(log: JobLog, version: int, *keys: JobKey) -> None:
    """Register the jobs and bring them to `version`."""
    add(log, *keys)
    for claim in log.begin(over(*keys, to=version), "first", LAYOUT):
        log.complete(claim, moment(version), {})


# --- registration


def test_a_registered_job_is_completed_at_the_start_with_its_creation_time(log):
    assert log.register("acme", name(), "t-1", spec(priority=3, schedule={"interval": "10s"}))
    job = log.job(key())
    assert job is not None
    assert (job.key, job.name) == (key(), name())
    assert job.spec == spec(priority=3, schedule={"interval": "10s"})
    assert (job.state, job.watermark) == (JobState.COMPLETED, START)
    assert job.create_at == T0 + timedelta(seconds=1)
    assert job.create_at.tzinfo is timezone.utc
    assert (job.drop_at, job.batch, job.run_id) == (None, None, None)


def test_registering_a_live_name_is_false_and_changes_nothing(log):
    add(log, key())
    before = log.job(key())
    assert not log.register("acme", name(), "t-1", spec(priority=9))
    assert log.job(key()) == before


def test_a_dropped_name_is_replaced_with_a_new_job_id_from_the_start(log):
    at(log, 5, key())
    old = log.job(key())
    assert log.unregister("acme", name(), "t-1")
    assert log.job(key()) is None
    assert log.register("acme", name(), "t-1", spec(priority=1))
    new = log.job(key())
    assert new.job_id != old.job_id
    assert new.seq > old.seq
    assert (new.watermark, new.drop_at, new.batch, new.run_id) == (START, None, None, None)
    assert new.spec.detail.priority == 1


def test_unregistering_says_whether_there_was_such_a_job(log):
    assert not log.unregister("acme", name(), "t-1")
    add(log, key())
    assert not log.unregister("other", name(), "t-1")
    assert not log.unregister("acme", name(), "t-2")
    assert log.unregister("acme", name())
    assert not log.unregister("acme", name())
    dropped = log.jobs(include_dropped=True)[0]
    assert dropped.drop_at is not None
    assert log.jobs() == []


def test_many_are_registered_at_once_and_counted(log):
    add(log, key("j3", "t3"), key("j4", "t4"))
    log.unregister("t4", name("j4"))
    rows = [
        Registration(account=f"t{i}", name=name(f"j{i}"), table_id="t-1", spec=spec(f"j{i}"))
        for i in range(1500)
    ]
    assert log.register_many([*rows, rows[7]]) == 1499
    assert log.register_many(rows) == 0
    assert log.register_many([]) == 0
    jobs = log.jobs()
    assert len({job.job_id for job in jobs}) == len(jobs) == 1500
    assert {job.spec.detail.consumer.job for job in jobs} == {f"j{i}" for i in range(1500)}


def test_jobs_are_found_by_table_tenant_and_state_in_the_order_of_keys(log):
    keys = [key("b"), key("a"), key("a", "Zed"), key("a", "acme", "t-2"), key("ü", "ñandú")]
    add(log, *keys)
    log.begin(over(key("a"), key("b")), "r", {})
    assert [job.key for job in log.jobs()] == sorted(keys)
    assert [job.key for job in log.jobs(table_id="t-2")] == [key("a", "acme", "t-2")]
    assert [job.key for job in log.jobs(account="Zed")] == [key("a", "Zed")]
    assert [job.key for job in log.jobs(state=JobState.RUNNING)] == [key("a"), key("b")]
    assert log.count() == dict.fromkeys(JobState, 0) | {
        JobState.RUNNING: 2,
        JobState.COMPLETED: 3,
    }
    assert log.count("t-2")[JobState.COMPLETED] == 1


def test_odd_names_are_kept_exactly(log):
    odd = key("j'; DROP TABLE iscp_log --", 'q"u\\o%te', "t 1")
    assert log.register(odd.account, name(odd.job_name), odd.table_id, spec(odd.job_name))
    assert log.register("", name(), "t 1", spec())
    assert [job.key for job in log.jobs()] == sorted([odd, key("mirror", "", "t 1")])
    with pytest.raises(ConfigError, match="not storable"):
        log.register("nul\0", name(), "t-1", spec())


# --- iterations


def test_begin_records_before_and_complete_records_after(log):
    add(log, key())
    (claim,) = log.begin(over(key()), "run-1", LAYOUT)
    job = log.job(key())
    assert (job.state, job.run_id, job.watermark) == (JobState.RUNNING, "run-1", START)
    assert (job.batch.range, job.batch.phase, job.batch.layout) == (
        span(-1, 5),
        Phase.BEFORE,
        LAYOUT,
    )
    assert (job.status.from_, job.status.to) == (START, moment(5))
    assert job.status.start_at is not None
    assert job.status.end_at is None
    assert (claim.fence, claim.job_id, claim.previous) == (job.seq, job.job_id, None)
    assert [(step.action, step.range) for step in claim.steps] == [(Action.INSERT, span(-1, 5))]

    log.complete(claim, moment(5), {"inserted": 7, "deleted": 1})
    job = log.job(key())
    assert (job.state, job.watermark) == (JobState.COMPLETED, moment(5))
    assert job.batch.phase is Phase.AFTER
    assert job.status.end_at > job.status.start_at
    assert (job.status.error_code, job.status.counts) == (0, {"inserted": 7, "deleted": 1})


def test_begin_claims_every_job_in_the_iterations_order(log):
    keys = (key("b"), key("a", "zed"), key("a"))
    add(log, *keys)
    claims = log.begin(over(*keys), "run-1", LAYOUT)
    assert [claim.key for claim in claims] == list(keys)
    log.fail(claims[0], 500, "slow")
    log.complete(claims[1], moment(5), {})
    assert [job.state.label for job in log.jobs()] == ["running", "completed", "completed"]


def test_a_layout_may_have_any_json(log):
    add(log, key())
    layout = {"cuts": [1, 2.5, "ü", None, {"deep": [True]}], "big": 2**53}
    log.begin(over(key()), "run-1", layout)
    assert log.job(key()).batch.layout == layout


@pytest.mark.parametrize(
    ("prepare", "iteration", "reason"),
    [
        (lambda log: add(log, key("a")), over(key("a"), key("b")), "'b'.* is not registered"),
        (
            lambda log: (
                add(log, key("a"), key("b")),
                log.unregister("acme", name("b")),
            ),
            over(key("a"), key("b")),
            "'b'.* is not registered",
        ),
        (
            lambda log: (add(log, key("a"), key("b")), log.begin(over(key("b")), "run-0", {})),
            over(key("a"), key("b")),
            "'b'.* is running in run run-0",
        ),
        (
            lambda log: (add(log, key("a")), at(log, 3, key("b"))),
            over(key("a"), key("b")),
            "'b'.* stands at version 3, .* from -1",
        ),
        (
            lambda log: (add(log, key("a"), key("b")), log.enqueue(over(key("b")), "run-0")),
            over(key("a"), key("b")),
            "'b'.* is queued for run run-0",
        ),
    ],
)
def test_begin_names_the_job_that_does_not_match_and_changes_nothing(
    log, prepare, iteration, reason
):
    prepare(log)
    before = log.jobs(include_dropped=True)
    with pytest.raises(FenceError, match=reason):
        log.begin(iteration, "run-1", LAYOUT)
    assert log.jobs(include_dropped=True) == before


def test_a_queued_job_begins_in_the_run_it_waits_for_under_either_name(log):
    add(log, key("a"), key("b"))
    log.enqueue(over(key("a")), "run-1")
    log.enqueue(over(key("b")), "ticket-2")
    assert log.active_runs() == {"run-1", "ticket-2"}
    with pytest.raises(FenceError, match="is pending"):
        log.enqueue(over(key("a")), "run-2")
    log.begin(over(key("a")), "run-1", {})
    log.begin(over(key("b")), "run-2", {}, queued_as="ticket-2")
    assert log.active_runs() == {"run-1", "run-2"}


def test_only_the_last_claim_counts(log):
    add(log, key())
    (stale,) = log.begin(over(key()), "run-1", LAYOUT)
    assert log.recover({"run-1"}) == (key(),)
    (claim,) = log.begin(over(key()), "run-2", LAYOUT)
    before = log.job(key())
    for late in (
        lambda: log.complete(stale, moment(5), {}),
        lambda: log.fail(stale, 500, "late"),
        lambda: log.advance(stale, {}),
    ):
        with pytest.raises(FenceError, match="another writer has taken it"):
            late()
    assert log.job(key()) == before
    log.complete(claim, moment(5), {})
    with pytest.raises(FenceError):
        log.complete(claim, moment(5), {})


def test_a_claim_does_not_outlive_its_registration(log):
    add(log, key())
    (claim,) = log.begin(over(key()), "run-1", LAYOUT)
    log.unregister("acme", name())
    with pytest.raises(FenceError):
        log.complete(claim, moment(5), {})
    add(log, key())
    with pytest.raises(FenceError):
        log.complete(claim, moment(5), {})
    with pytest.raises(FenceError):
        log.complete(replace(claim, fence=log.job(key()).seq), moment(5), {})
    assert log.job(key()).watermark == START


def test_completing_elsewhere_than_at_the_ranges_end_is_refused(log):
    add(log, key())
    (claim,) = log.begin(over(key()), "run-1", LAYOUT)
    for version in (4, 6):
        with pytest.raises(BatchError, match=f"cannot complete at version {version}"):
            log.complete(claim, moment(version), {})
    assert log.job(key()).watermark == START


def test_a_temporary_failure_is_completed_with_its_code_and_a_permanent_one_is_error(log):
    at(log, 5, key("a"), key("b"))
    a, b = log.begin(over(key("a"), key("b"), start=5, to=6), "run-1", LAYOUT)
    log.fail(a, 9_999, "down\0 \ud800" + "x" * ERROR_TEXT_LIMIT)
    log.fail(b, 10_000, "no such column")
    first, second = log.jobs()
    assert (first.state, first.status.error_code) == (JobState.COMPLETED, 9_999)
    assert first.status.error_msg.startswith("down ?xxx")
    assert len(first.status.error_msg) == ERROR_TEXT_LIMIT
    assert (second.state, second.status.error_code) == (JobState.ERROR, 10_000)
    for job in (first, second):
        assert (job.watermark, job.batch.phase) == (moment(5), Phase.BEFORE)
        assert job.status.end_at is not None
    with pytest.raises(FenceError, match=r"'b'.* is error"):
        log.begin(over(key("b"), start=5, to=6), "run-2", LAYOUT)


def test_the_next_iteration_after_a_success_forgets_its_code_and_counts(log):
    at(log, 5, key())
    (claim,) = log.begin(over(key(), start=5, to=6), "run-1", LAYOUT)
    log.fail(claim, 500, "slow")
    (claim,) = log.begin(over(key(), start=5, to=6), "run-2", {"other": 1})
    assert log.job(key()).status.error_code == 0
    assert [(step.action, step.layout) for step in claim.steps] == [(Action.REPLAY, LAYOUT)]


def test_what_a_dead_run_left_is_replayed_before_the_rest_with_its_own_before(log):
    at(log, 5, key())
    log.begin(over(key(), start=5, to=7), "run-1", {"old": 1})
    log.recover({"run-1"})
    (claim,) = log.begin(over(key(), start=5, to=9), "run-2", {"new": 2})
    assert (claim.case, claim.previous.range) == (Case.OVERLAPPING, span(5, 7))
    assert [(s.action, s.range, s.layout) for s in claim.steps] == [
        (Action.REPLAY, span(5, 7), {"old": 1}),
        (Action.INSERT, span(7, 9), {"new": 2}),
    ]
    # A death here finds the batch that is being replayed, not the whole.
    assert log.job(key()).batch.range == span(5, 7)
    with pytest.raises(BatchError, match="1 steps left"):
        log.complete(claim, moment(9), {})
    second = log.advance(claim, {"inserted": 3, "bytes": 10})
    job = log.job(key())
    assert (job.watermark, job.state) == (moment(7), JobState.RUNNING)
    assert (job.batch.range, job.batch.phase) == (span(7, 9), Phase.BEFORE)
    with pytest.raises(FenceError):
        log.advance(claim, {})
    with pytest.raises(BatchError, match="no step follows"):
        log.advance(second, {})
    log.complete(second, moment(9), {"inserted": 4, "deleted": 1})
    job = log.job(key())
    assert job.watermark == moment(9)
    assert job.status.counts == {"inserted": 7, "deleted": 1, "bytes": 10}


def test_an_unconfirmed_batch_is_taken_whole_by_a_shorter_iteration(log):
    at(log, 5, key())
    log.begin(over(key(), start=5, to=9), "run-1", LAYOUT)
    log.recover({"run-1"})
    (claim,) = log.begin(over(key(), start=5, to=7), "run-2", {})
    assert (claim.range, claim.step.action) == (span(5, 9), Action.REPLAY)
    log.complete(claim, moment(9), {})
    assert log.job(key()).watermark == moment(9)


def test_an_interrupted_initial_synchronization_starts_from_scratch(log):
    add(log, key())
    log.begin(over(key(), to=5), "run-1", LAYOUT)
    log.recover({"run-1"})
    (claim,) = log.begin(over(key(), to=8), "run-2", {})
    assert [(s.action, s.range) for s in claim.steps] == [(Action.INSERT, span(-1, 8))]
    assert claim.previous.range == span(-1, 5)


# --- cancel, recover, idle


def test_cancel_takes_the_active_jobs_and_their_claims(log):
    add(log, key("a"), key("b"), key("c"))
    (claim,) = log.begin(over(key("a")), "run-1", LAYOUT)
    log.enqueue(over(key("b")), "run-2")
    everything = [key("c"), key("b"), key("a"), key("none")]
    assert log.cancel(everything) == (key("a"), key("b"))
    assert log.cancel(everything) == ()
    assert [job.state.label for job in log.jobs()] == ["canceled", "canceled", "completed"]
    assert log.job(key("a")).status.end_at is not None
    with pytest.raises(FenceError):
        log.complete(claim, moment(5), {})
    with pytest.raises(FenceError, match="was canceled in run run-2"):
        log.begin(over(key("b")), "run-2", {})
    log.begin(over(key("b")), "run-3", {})
    assert log.job(key("a")).batch.phase is Phase.BEFORE


def test_recover_frees_the_jobs_of_gone_runs_only(log):
    add(log, key("a"), key("b"), key("c"), key("d"))
    log.begin(over(key("a")), "gone", LAYOUT)
    log.enqueue(over(key("b")), "gone too")
    log.begin(over(key("c")), "alive", LAYOUT)
    assert log.active_runs() == {"gone", "gone too", "alive"}
    assert log.active_runs([("docs", "symbols")]) == log.active_runs()
    assert log.active_runs([("docs", "others"), ("symbols", "docs")]) == frozenset()
    assert log.active_runs([]) == frozenset()
    assert log.recover([]) == ()
    assert log.recover(["gone", "gone too", "unheard of"]) == (key("a"), key("b"))
    assert log.recover(["gone", "gone too"]) == ()
    assert [job.state.label for job in log.jobs()] == [
        "completed",
        "completed",
        "running",
        "completed",
    ]
    assert log.job(key("a")).batch.phase is Phase.BEFORE
    assert log.active_runs() == {"alive"}


def test_repair_sets_jobs_in_error_completed_to_be_read_anew(log):
    at(log, 5, key("a"), key("b"))
    a, _ = log.begin(over(key("a"), key("b"), start=5, to=6), "run-1", LAYOUT)
    log.fail(a, 10_200, "no such file")
    everything = [key("none"), key("b"), key("a")]
    assert log.repair(everything) == (key("a"),)
    assert log.repair(everything) == ()
    repaired = log.job(key("a"))
    assert (repaired.state, repaired.watermark) == (JobState.COMPLETED, moment(5))
    assert (repaired.status.error_code, repaired.status.error_msg) == (0, "")
    assert log.job(key("b")).state is JobState.RUNNING
    (claim,) = log.begin(over(key("a"), start=5, to=7), "run-2", LAYOUT)
    assert [(step.action, step.range) for step in claim.steps] == [(Action.INSERT, claim.range)]
    assert (claim.range.from_, claim.range.to) == (moment(5), moment(7))


def test_places_are_those_of_the_tables_live_jobs(log):
    assert log.places("t-1") == frozenset()
    at(log, 5, key("a"), key("b"), key("a", "zed"))
    add(log, key("c"), key("d", "acme", "t-2"), key("dropped"))
    log.begin(over(key("b"), start=5, to=6), "run-1", LAYOUT)
    log.cancel([key("b")])
    log.unregister("acme", name("dropped"))
    assert log.places("t-1") == {
        ("a", 5, JobState.COMPLETED),
        ("b", 5, JobState.CANCELED),
        ("c", -1, JobState.COMPLETED),
    }
    assert log.waiting("t-1") == {"acme"}
    assert log.waiting("t-2") == {"acme"}
    assert log.table_ids("docs", "symbols") == {"t-1", "t-2"}
    assert log.table_ids("docs", "others") == frozenset()
    assert log.accounts("t-1") == {"acme", "zed"}
    names = {("acme", name) for name in ("a", "b", "c", "dropped")}
    assert log.registered("t-1") == names | {("zed", "a")}


def test_a_dropped_job_is_not_recovered_or_canceled(log):
    add(log, key())
    log.begin(over(key()), "gone", LAYOUT)
    log.unregister("acme", name())
    assert log.active_runs() == frozenset()
    assert log.recover({"gone"}) == ()
    assert log.cancel([key()]) == ()


def test_idle_jobs_move_with_the_table(log):
    idle, behind, other = key("idle"), key("behind"), key("idle", "other")
    fresh, running, failed = key("fresh"), key("running"), key("failed")
    at(log, 5, idle, other, running, failed)
    at(log, 4, behind)
    add(log, fresh)
    log.begin(over(running, start=5, to=6), "run-1", LAYOUT)
    (claim,) = log.begin(over(failed, start=5, to=6), "run-2", LAYOUT)
    log.fail(claim, 500, "slow")
    seq = log.job(idle).seq
    assert log.flush("t-1", ["acme", "unknown"], moment(5), moment(9)) == 1
    assert log.job(idle).watermark == moment(9)
    assert log.job(idle).seq > seq
    assert log.flush("t-1", ["acme"], moment(5), moment(9)) == 0
    assert log.flush("t-1", ["acme"], moment(5), moment(8)) == 0
    assert log.flush("t-1", [], moment(5), moment(8)) == 0
    assert log.flush("t-1", ["acme"], START, moment(7)) == 1
    stands = {job.key.job_name: job.watermark.version for job in log.jobs(account="acme")}
    assert stands == {"behind": 7, "failed": 5, "fresh": -1, "idle": 9, "running": 5}
    assert log.job(other).watermark == moment(5)


def test_a_plan_made_before_an_idle_move_is_refused(log):
    at(log, 5, key())
    planned = over(key(), start=5, to=6)
    log.flush("t-1", ["acme"], moment(5), moment(6))
    with pytest.raises(FenceError, match="stands at version 6"):
        log.begin(planned, "run-1", LAYOUT)


def test_more_jobs_than_one_statement_takes_are_claimed_and_recovered(log, monkeypatch):
    monkeypatch.setattr(statements, "KEYS_PER_STATEMENT", 300)
    rows = [
        Registration(account=f"t{i:04}", name=name(), table_id="t-1", spec=spec())
        for i in range(1000)
    ]
    assert log.register_many(rows) == 1000
    claims = log.begin(over(*(row.key for row in rows)), "run-1", LAYOUT)
    assert len(claims) == 1000
    assert log.count()[JobState.RUNNING] == 1000
    assert len(log.cancel(row.key for row in rows[:10])) == 10
    assert len(log.recover({"run-1"})) == 990
    assert log.flush("t-1", [row.account for row in rows], moment(0), moment(3)) == 0


# --- specs, pauses, jobs for everybody


def test_a_new_spec_is_kept_and_the_run_that_holds_the_job_goes_on(log):
    add(log, key())
    (claim,) = log.begin(over(key()), "run-1", LAYOUT)
    assert log.update("acme", name(), SpecUpdate(priority=5)) == Interrupted(changed=True)
    assert log.update("acme", name(), SpecUpdate(priority=5)) == Interrupted()
    assert log.job(key()).priority == 5
    log.complete(claim, moment(5), {})
    assert log.job(key()).watermark == moment(5)


def test_an_interruption_cancels_what_is_queued_or_runs_and_names_its_runs(log):
    add(log, key("a"), key("b"), key("c"))
    (claim,) = log.begin(over(key("a")), "run-1", LAYOUT)
    log.enqueue(over(key("b")), "ticket")
    done = [log.update("acme", name(j), SpecUpdate(priority=5), interrupt=True) for j in "abc"]
    assert done == [
        Interrupted(keys=(key("a"),), runs=frozenset({"run-1"}), changed=True),
        Interrupted(keys=(key("b"),), runs=frozenset({"ticket"}), changed=True),
        Interrupted(changed=True),
    ]
    assert [job.state.label for job in log.jobs()] == ["canceled", "canceled", "completed"]
    with pytest.raises(FenceError):
        log.complete(claim, moment(5), {})


def test_a_new_spec_ends_an_error_but_not_of_a_job_whose_table_is_gone(log):
    add(log, key("broken"), key("gone", table_id="t-2"))
    (claim,) = log.begin(over(key("broken")), "run-1", LAYOUT)
    log.fail(claim, 10_300, "no such type")
    log.strand("t-2", TableGoneError.code, "dropped")
    for job in ("broken", "gone"):
        assert log.update("acme", name(job), SpecUpdate(priority=5)) == Interrupted(changed=True)
    broken, gone = (log.job(key("broken")), log.job(key("gone", table_id="t-2")))
    assert (broken.state, broken.priority) == (JobState.COMPLETED, 5)
    assert (broken.status.error_code, broken.batch) == (0, None)
    assert (gone.state, gone.priority) == (JobState.ERROR, 5)
    told = [each.event for each in log.history(name=name("broken"))]
    assert told == [Event.REGISTER, Event.START, Event.FAIL_PERMANENT, Event.REPAIR, Event.UPDATE]


def test_a_job_that_is_not_there_is_not_updated_paused_or_resumed(log):
    assert log.update("acme", name(), SpecUpdate(priority=5)) is None
    assert not log.pause("acme", name())
    assert not log.resume("acme", name())


def test_another_consumer_gets_all_rows_anew(log):
    at(log, 5, key("rests"), key("runs"))
    (claim,) = log.begin(over(key("runs"), start=5, to=9), "run-1", LAYOUT)
    for job in ("rests", "runs"):
        log.update("acme", name(job), SpecUpdate(columns=("b",)))
    assert log.job(key("rests")).watermark == START
    log.complete(claim, moment(9), {})
    assert (log.job(key("runs")).watermark, log.job(key("runs")).batch) == (START, None)


def test_pausing_is_kept_until_resumed(log):
    add(log, key())
    assert log.pause("acme", name()) == (key(),)
    since = log.job(key()).paused_at
    assert since is not None
    assert log.pause("acme", name()) == ()
    assert log.job(key()).paused_at == since
    assert log.resume("acme", name()) == (key(),)
    assert log.resume("acme", name()) == ()
    assert log.job(key()).paused_at is None


def test_what_is_registered_for_all_is_kept_once(log):
    assert log.stand(name("b"), spec("b"))
    assert log.stand(name("a"), spec("a", priority=3))
    assert not log.stand(name("a"), spec("a", priority=9))
    assert list(log.standing().items()) == [
        (name("a"), spec("a", priority=3)),
        (name("b"), spec("b")),
    ]
    assert log.update(None, name("b"), SpecUpdate(priority=5)) == Interrupted(changed=True)
    assert log.standing()[name("b")] == spec("b", priority=5)
    assert log.unregister(None, name("a"))
    assert not log.unregister(None, name("a"))
    assert log.update(None, name("a"), SpecUpdate(priority=5)) is None
    assert list(log.standing()) == [name("b")]


def test_for_all_is_every_tenants_job_and_what_stands(log):
    everyones = [key("a", account) for account in ("acme", "zed")]
    rows = [
        Registration(account=k.account, name=name("a"), table_id=k.table_id, spec=spec("a"))
        for k in everyones
    ]
    add(log, key("b"), everyones[0])
    assert log.stand(name("a"), spec("a"), rows)
    assert not log.stand(name("a"), spec("a"), rows)
    assert [job.key for job in log.jobs()] == [everyones[0], key("b"), everyones[1]]
    assert log.pause("zed", name("a")) == (everyones[1],)
    assert log.pause(None, name("a")) == (everyones[0],)
    assert log.resume(None, name("a")) == tuple(everyones)
    assert log.unregister(None, name("a"))
    assert [job.key for job in log.jobs()] == [key("b")]
    assert dict(log.standing()) == {}
    # Of the standing registration alone there may be something new, and of the rows alone.
    assert log.stand(name("a"), spec("a"))
    assert log.stand(name("a"), spec("a"), rows)


def wish(account, **consumer):
    asked = spec("index")
    info = replace(asked.detail.consumer, **{"type": "mirror", **consumer})
    changed = replace(asked, detail=replace(asked.detail, consumer=info))
    return Registration(account=account, name=name("index"), table_id="t-1", spec=changed)


def consumers(log):
    return {job.key.account: job.spec.detail.consumer for job in log.jobs(name=name("index"))}


def test_the_tenants_of_an_index_have_one_consumer(log):
    first = wish("a", columns=("x",))
    assert log.register_many([first]) == 1
    assert log.register_many([wish("b", columns=("y",))]) == 1
    with pytest.raises(ConfigError, match="a mirror index of columns x, not a mirror index of col"):
        log.register_many([wish("c"), wish("d", columns=("y",))], adopt=False)
    with pytest.raises(ConfigError, match="not a text index"):
        log.stand(name("index"), wish("a", type="text").spec)
    assert log.standing() == {}
    # One that exists stays as it is, whatever is asked.
    assert log.register_many([wish("a", columns=("y",))], adopt=False) == 0
    assert consumers(log) == dict.fromkeys("ab", first.spec.detail.consumer)
    with pytest.raises(ConfigError, match="for all of them: --account"):
        log.update("a", name("index"), SpecUpdate(columns=("y",)))
    assert log.update(None, name("index"), SpecUpdate(columns=("y",))).changed
    other = replace(first.spec.detail.consumer, columns=("y",), generation=1)
    assert log.register_many([wish("c", columns=("y",))], adopt=False) == 1
    assert consumers(log) == dict.fromkeys("abc", other)


def test_one_tenant_alone_may_have_another_consumer(log):
    log.register_many([wish("a"), wish("b")])
    log.unregister("b", name("index"))
    assert log.update("a", name("index"), SpecUpdate(columns=("y",))).changed
    assert consumers(log)["a"].generation == 1
    log.unregister("a", name("index"))
    # The tables of those that are gone are there for a day.
    assert log.register_many([wish("b", columns=("z",))], adopt=False) == 1
    assert consumers(log) == {"b": wish("b", columns=("z",), generation=2).spec.detail.consumer}


def test_consumers_of_the_users_own_differ_by_tenant(log):
    log.register_many([wish("a", type="my:Own"), wish("b", type="my:Own")])
    assert log.update("a", name("index"), SpecUpdate(columns=("y",))).changed
    assert [each.columns for each in consumers(log).values()] == [("y",), ("a",)]


def test_a_tenant_that_comes_has_what_stands_at_that_moment(log):
    assert log.stand(name("index"), wish("a").spec, [wish("a")])
    log.update(None, name("index"), SpecUpdate(columns=("y",), priority=4))
    assert log.register_many([wish("b")], revive=False) == 1
    first, second = log.jobs(name=name("index"))
    assert first.spec == second.spec == log.standing()[name("index")]
    assert (second.spec.detail.consumer.generation, second.priority) == (1, 4)


def test_what_is_declared_stands_once_it_was_changed_for_all(log):
    declared = wish("a").spec
    assert log.update(None, name("index"), SpecUpdate(priority=4), declared=declared).changed
    assert log.standing()[name("index")] == SpecUpdate(priority=4).applied(declared)
    assert not log.update(None, name("index"), SpecUpdate(priority=4), declared=declared).changed


def test_jobs_that_lack_rows_of_their_consumer_are_counted(log):
    at(log, 5, key("index"), key("index", account="b"))
    log.register_many([wish("c")])
    assert log.unbuilt(name("index")) == 1
    log.begin(over(key("index"), start=5, to=9), "run-1", LAYOUT)
    log.update(None, name("index"), SpecUpdate(rebuild=True))
    assert log.unbuilt(name("index")) == 3
    assert log.unbuilt(name("other")) == 0
    log.unregister("c", name("index"))
    assert log.unbuilt(name("index")) == 2


def test_a_job_is_rebuilt_after_what_runs_and_at_once_where_nothing_does(log):
    at(log, 5, key("rests"), key("runs"), key("waits"))
    (claim,) = log.begin(over(key("runs"), start=5, to=7), "run-1", LAYOUT)
    log.enqueue(over(key("waits"), start=5, to=7), "run-2")
    keys = (key("rests"), key("runs"), key("waits"))
    assert log.rebuild([*keys, key("other")]) == tuple(sorted(keys))
    stand = {k.job_name: log.job(k).watermark.version for k in keys}
    assert stand == {"rests": -1, "runs": 5, "waits": -1}
    with pytest.raises(FenceError, match="stands at version -1"):
        log.begin(over(key("waits"), start=5, to=7), "run-2", LAYOUT)
    log.complete(claim, moment(7), {})
    assert log.job(key("runs")).watermark == START


def test_another_consumer_of_a_queued_job_gets_all_rows_too(log):
    at(log, 5, key())
    log.enqueue(over(key(), start=5, to=7), "run-1")
    log.update("acme", name(), SpecUpdate(columns=("other",)))
    assert (log.job(key()).watermark, log.job(key()).rebuild) == (START, False)


def test_jobs_of_a_table_that_is_gone_are_stopped_whatever_they_do(log):
    add(log, key("a"), key("b"), key("c", table_id="t-2"))
    (claim,) = log.begin(over(key("a")), "run-1", LAYOUT)
    assert log.strand("t-1", 10_220, "gone") == (key("a"), key("b"))
    assert log.strand("t-1", 10_220, "gone") == ()
    found = {job.key.job_name: (job.state.label, job.status.error_code) for job in log.jobs()}
    assert found == {"a": ("error", 10_220), "b": ("error", 10_220), "c": ("completed", 0)}
    with pytest.raises(FenceError):
        log.complete(claim, moment(5), {})


def test_a_young_dispatch_is_not_recovered(log):
    add(log, key("a"), key("b"))
    log.enqueue(over(key("a")), "ticket")
    log.begin(over(key("b")), "run-1", LAYOUT)
    gone = {"ticket", "run-1"}
    assert log.recover(gone, T0) == (key("b"),)
    assert log.recover(gone, T0 + timedelta(hours=1)) == (key("a"),)


# --- garbage, history, usage


def test_a_dropped_row_is_forgotten_when_it_is_old_and_still_dropped(log):
    add(log, key("a"), key("b"), key("c"))
    log.unregister("acme", name("a"))
    log.unregister("acme", name("b"))
    dropped = log.dropped(T0 + timedelta(hours=1))
    assert [job.key for job in dropped] == [key("a"), key("b")]
    assert log.dropped(T0) == []
    add(log, key("b"))
    assert log.mark_collected([*dropped, *log.jobs()]) == 1
    marked = {job.key: job.collected_at for job in log.jobs(include_dropped=True)}
    assert [each for each, at in marked.items() if at is not None] == [key("a")]
    assert log.forget([*dropped, *log.jobs()]) == 1
    assert [job.key for job in log.jobs(include_dropped=True)] == [key("b"), key("c")]


def test_history_says_who_did_what_when(log):
    add(log, key())
    for claim in log.begin(over(key()), "run-1", LAYOUT):
        log.complete(claim, moment(5), {"inserted": 3, "bytes": 9})
    for claim in log.begin(over(key(), start=5, to=7), "run-2", LAYOUT):
        log.fail(claim, 1_100, "away")
    log.pause("acme", name())
    log.unregister("acme", name())
    found = log.history(account="acme", name=name())
    shown = [
        (e.event.value, e.before and e.before.label, e.after.label, e.who, e.code) for e in found
    ]
    assert shown == [
        ("register", None, "completed", "tester", 0),
        ("start", "completed", "running", "run-1", 0),
        ("complete", "running", "completed", "run-1", 0),
        ("start", "completed", "running", "run-2", 0),
        ("fail temporarily", "running", "completed", "run-2", 1_100),
        ("pause", "completed", "completed", "tester", 0),
        ("unregister", "completed", "completed", "tester", 0),
    ]
    assert [e.number for e in found] == sorted({e.number for e in found})
    assert all(one.at < other.at for one, other in itertools.pairwise(found))
    assert (found[2].from_, found[2].to, found[2].inserted) == (START, moment(5), 3)
    assert found[2].seconds > 0
    assert log.history(since=found[5].at) == found[5:]
    assert log.history(most=2) == found[5:]
    assert log.history(account="zed") == log.history(name=name("other")) == []


def test_usage_sums_what_ended_by_tenant_and_job(log):
    at(log, 5, key("a"), key("a", "zed"))
    for claim in log.begin(over(key("a"), start=5, to=7), "run-1", LAYOUT):
        log.complete(claim, moment(7), {"inserted": 2, "deleted": 1, "bytes": 10})
    later = log.history()[-1].at
    for claim in log.begin(over(key("a"), start=7, to=9), "run-2", LAYOUT):
        log.fail(claim, 1_100, "away")
    acme, zed = log.usage()
    assert (acme.account, acme.name, acme.iterations, acme.failures) == ("acme", name("a"), 2, 1)
    assert (acme.inserted, acme.deleted, acme.bytes) == (2, 1, 10)
    assert acme.seconds == sum(e.seconds for e in log.history(account="acme"))
    assert (zed.account, zed.iterations, zed.failures) == ("zed", 1, 0)
    (since,) = log.usage(later + timedelta(microseconds=1))
    assert (since.iterations, since.failures, since.canceled) == (0, 1, 0)


def test_usage_charges_the_time_of_what_was_canceled_or_lost(log):
    at(log, 5, *map(key, "abcd"))
    before = {each.name: each.seconds for each in log.usage()}
    for each in "abc":
        log.begin(over(key(each), start=5, to=7), f"run-{each}", LAYOUT)
    log.cancel([key("a")])
    log.recover({"run-b"})
    log.strand("t-1", 10_220, "gone")
    cut = {each.name: each for each in log.usage() if each.canceled}
    assert list(cut) == [name("a"), name("b"), name("c")]
    assert all(each.seconds > before[each.name] for each in cut.values())
    assert cut[name("a")].seconds == sum(e.seconds for e in log.history(name=name("a")))


def test_what_only_waited_has_used_nothing(log):
    add(log, key())
    log.enqueue(over(key()), "run-1")
    log.cancel([key()])
    assert log.usage() == []


def test_touched_are_the_tenants_that_something_happened_to(log):
    add(log, key())
    since = log.history()[-1].at + timedelta(microseconds=1)
    add(log, key(account="zed"), key(account="zed", table_id="t-2"))
    assert log.touched(since) == {("t-1", "zed"), ("t-2", "zed")}
    assert log.touched(since + timedelta(hours=1)) == frozenset()


def test_old_history_is_pruned(log):
    add(log, key("a"))
    before = log.history()[-1].at + timedelta(microseconds=1)
    add(log, key("b"))
    assert log.prune(before) == 1
    assert [e.key for e in log.history()] == [key("b")]


# --- the flush, while others write


class Meanwhile:
    """A call in a thread of its own, which waits for a transaction that is open here."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.found: list[object] = []
        self.thread = threading.Thread(target=lambda: self.found.append(call()), daemon=True)

    def starts(self) -> None:
        self.thread.start()
        # Enough for it to ask for the lock; too little would only test less.
        self.thread.join(0.3)
        assert not self.found

    def result(self) -> object:
        self.thread.join(60)
        (found,) = self.found
        return found


@pytest.fixture
def sql_log(make_log) -> SqlLog:
    log = make_log()
    if not isinstance(log, SqlLog):
        pytest.skip("one process and one lock: nothing interleaves")
    return log


def test_a_flush_that_waits_for_an_unregistration_leaves_the_row_dropped(sql_log):
    at(sql_log, 5, key("a"), key("b"))
    meanwhile = Meanwhile(lambda: sql_log.flush("t-1", ["acme"], moment(5), moment(9)))
    with transaction(sql_log.engine, writes=True) as connection:
        rows = statements.locked(connection, [key("a")])
        gone = lifecycle.unregistered(rows[key("a")], T0)
        statements.write_back(connection, rows, [gone], log=lambda *_: None)
        meanwhile.starts()
    assert meanwhile.result() == 1
    (dropped, kept) = sql_log.jobs(include_dropped=True)
    assert (dropped.drop_at, dropped.watermark) == (T0, moment(5))
    assert (kept.drop_at, kept.watermark) == (None, moment(9))


@pytest.mark.parametrize(
    ("act", "state"),
    [
        (lambda log: log.unregister("acme", name("a")), "dropped"),
        (lambda log: log.pause("acme", name("a")), "paused"),
        (lambda log: len(log.begin(over(key("a"), start=9, to=11), "r", {})), "running"),
        (lambda log: not log.register("acme", name("a"), "t-1", spec("a")), "completed"),
    ],
)
def test_who_waits_for_a_flush_finds_the_row_that_it_wrote(sql_log, act, state):
    at(sql_log, 5, key("a"), key("b"))
    meanwhile = Meanwhile(lambda: act(sql_log))
    with transaction(sql_log.engine, writes=True) as connection:
        assert flush(connection, "t-1", ["acme"], moment(5), moment(9)) == 2
        meanwhile.starts()
    assert meanwhile.result()
    job = sql_log.jobs(include_dropped=True)[0]
    assert job.watermark == moment(9)
    found = "dropped" if job.drop_at else "paused" if job.paused_at else job.state.label
    assert found == state


def test_a_flush_changes_the_watermark_and_nothing_else(log):
    at(log, 5, key())
    for claim in log.begin(over(key(), start=5, to=7), "run-2", LAYOUT):
        log.complete(claim, moment(7), {"inserted": 4})
    log.pause("acme", name())
    before = log.job(key())
    history = log.history()
    assert log.flush("t-1", ["acme"], moment(7), moment(9)) == 1
    assert log.job(key()) == replace(before, watermark=moment(9), seq=before.seq + 1)
    assert log.history() == history


# --- several openers of one store


def test_a_second_opener_sees_committed_rows(make_log):
    one, two = make_log(), make_log()
    add(one, key())
    assert two.jobs() == one.jobs()
    assert not two.register("acme", name(), "t-1", spec())


def test_threads_that_begin_the_same_iteration_get_one_claim(make_log):
    logs = [make_log() for _ in range(6)]
    add(logs[0], key("a"), key("b"))
    gate, claims, refused = threading.Barrier(len(logs)), [], []

    def begin(log: JobLog, run: str) -> None:
        gate.wait(timeout=30)
        try:
            claims.append(log.begin(over(key("a"), key("b")), run, LAYOUT))
        except FenceError as error:
            refused.append(error)

    threads = [threading.Thread(target=begin, args=(log, f"r{i}")) for i, log in enumerate(logs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert (len(claims), len(refused)) == (1, 5)
    assert {claim.run_id for claim in claims[0]} == logs[0].active_runs()


# --- what only the SQL log has


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("mysql://u:hush@host/db", r"mysql://u:\*\*\*@host/db: .* sqlite or postgresql"),
        ("not a url hush", "is not a database URL"),
    ],
)
def test_a_wrong_url_is_refused_without_its_password(url, message):
    with pytest.raises(ConfigError, match=message) as caught:
        SqlLog(url)
    assert "hush" not in str(caught.value)


def test_an_unreachable_database_is_unavailable_and_its_password_hidden():
    log = SqlLog("postgresql://me:hush%21@127.0.0.1:1/db?password=hush%21&connect_timeout=2")
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1") as caught:
        log.ensure()
    assert "hush" not in str(caught.value)


def test_a_log_that_was_never_set_up_says_so(tmp_path):
    with pytest.raises(UnavailableError, match="no such table"):
        SqlLog(f"sqlite:///{tmp_path}/empty.db").jobs()


def test_sqlite_readers_and_the_writer_work_side_by_side(tmp_path):
    log = SqlLog(sa.create_engine(f"sqlite:///{tmp_path}/log.db"))
    log.ensure()
    log.ensure()
    add(log, key())
    with log.engine.begin() as writer:
        writer.exec_driver_sql("UPDATE iscp_log SET seq = 99")
        assert log.job(key()).seq == 0
    assert log.job(key()).seq == 99
    with log.engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
