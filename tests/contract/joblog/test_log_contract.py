"""Registrations and iterations, in the ISCP log on SQLite and on PostgreSQL."""

from dataclasses import replace
from datetime import timedelta, timezone

import pytest

from iscp_dagster.joblog.sql import statements
from iscp_dagster.joblog.sql.watermarks import IndexWatermarks, read_watermarks
from iscp_dagster.joblog.updates import SpecUpdate
from iscp_dagster.model.batch import BatchAction, Case, Phase, Range
from iscp_dagster.model.errors import BatchError, ConfigError, FenceError
from iscp_dagster.model.jobs import ERROR_TEXT_LIMIT, NewJob
from iscp_dagster.model.moment import START, Moment
from iscp_dagster.model.states import JobState
from support.errors import assert_names, raises_naming
from support.jobs.log_rows import (
    LAYOUT,
    T0,
    add,
    advance,
    at,
    complete,
    fail,
    key,
    moment,
    mostly_on_sqlite,
    name,
    over,
    span,
    spec,
)

pytestmark = mostly_on_sqlite

# --- registration


def test_a_registered_job_is_completed_at_the_start_and_stays_when_registered_again(log):
    assert log.register("acme", name(), "t-1", spec(priority=3, schedule={"interval": "10s"}))
    job = log.find_job(key())
    assert (job.key, job.name) == (key(), name())
    assert job.spec == spec(priority=3, schedule={"interval": "10s"})
    assert (job.state, job.watermark) == (JobState.COMPLETED, START)
    assert job.create_at == T0 + timedelta(seconds=1)
    assert job.create_at.tzinfo is timezone.utc
    assert (job.drop_at, job.batch, job.run_id) == (None, None, None)
    assert not log.register("acme", name(), "t-1", spec(priority=9))
    assert log.find_job(key()) == job


def test_unregistering_says_whether_there_was_such_a_job_and_frees_its_name(log):
    assert not log.unregister("acme", name(), "t-1")
    at(log, 5, key())
    old = log.find_job(key())
    assert not log.unregister("other", name(), "t-1")
    assert not log.unregister("acme", name(), "t-2")
    assert log.unregister("acme", name(), "t-1")
    assert not log.unregister("acme", name())
    assert (log.find_job(key()), log.list_jobs()) == (None, [])
    assert log.list_jobs(include_dropped=True)[0].drop_at is not None
    assert log.register("acme", name(), "t-1", spec(priority=1))
    new = log.find_job(key())
    assert new.registration != old.registration
    assert new.seq > old.seq
    assert (new.watermark, new.drop_at, new.batch, new.run_id) == (START, None, None, None)
    assert new.spec.detail.priority == 1
    assert log.unregister("acme", name())


def test_many_are_registered_at_once_and_counted(log):
    add(log, key("j3", "t3"), key("j4", "t4"))
    log.unregister("t4", name("j4"))
    rows = [
        NewJob(tenant=f"t{tenant}", name=name(f"j{job}"), table_id="t-1", spec=spec(f"j{job}"))
        for tenant in range(150)
        for job in range(10)
    ]
    assert log.register_many([*rows, rows[7]]) == 1499
    assert log.register_many(rows) == 0
    assert log.register_many([]) == 0
    jobs = log.list_jobs()
    assert len({job.registration for job in jobs}) == len(jobs) == 1500
    assert {job.spec.detail.consumer.job for job in jobs} == {f"j{i}" for i in range(10)}


def test_jobs_are_found_by_table_tenant_and_state_in_the_order_of_keys(log):
    keys = [key("b"), key("a"), key("a", "Zed"), key("a", "acme", "t-2"), key("ü", "ñandú")]
    add(log, *keys)
    log.claim_jobs(over(key("a"), key("b")), "r", {})
    assert [job.key for job in log.list_jobs()] == sorted(keys)
    assert [job.key for job in log.list_jobs(table_id="t-2")] == [key("a", "acme", "t-2")]
    assert [job.key for job in log.list_jobs(tenant="Zed")] == [key("a", "Zed")]
    assert [job.key for job in log.list_jobs(state=JobState.RUNNING)] == [key("a"), key("b")]
    assert log.count() == dict.fromkeys(JobState, 0) | {
        JobState.RUNNING: 2,
        JobState.COMPLETED: 3,
    }
    assert log.count("t-2")[JobState.COMPLETED] == 1
    assert log.read_fences("t-1", ["acme", "nobody"]) == {
        ("acme", job.key.job_name): (job.registration, job.seq)
        for job in log.list_jobs(table_id="t-1", tenant="acme")
    }


def test_odd_names_are_kept_exactly(log):
    odd = key("j'; DROP TABLE iscp_log --", 'q"u\\o%te', "t 1")
    assert log.register(odd.tenant, name(odd.job_name), odd.table_id, spec(odd.job_name))
    assert log.register("", name(), "t 1", spec())
    assert [job.key for job in log.list_jobs()] == sorted([odd, key("mirror", "", "t 1")])
    with raises_naming(ConfigError, repr("nul\0")):
        log.register("nul\0", name(), "t-1", spec())


# --- iterations


def test_begin_records_before_and_complete_records_after(log):
    add(log, key())
    (claim,) = log.claim_jobs(over(key()), "run-1", LAYOUT)
    job = log.find_job(key())
    assert (job.state, job.run_id, job.watermark) == (JobState.RUNNING, "run-1", START)
    batch = (job.batch.range, job.batch.phase, job.batch.layout)
    assert batch == (span(-1, 5), Phase.BEFORE, LAYOUT)
    assert (job.status.from_, job.status.to) == (START, moment(5))
    assert job.status.start_at is not None
    assert job.status.end_at is None
    assert (claim.fence, claim.registration, claim.previous) == (job.seq, job.registration, None)
    assert [(s.action, s.range) for s in claim.steps] == [(BatchAction.INSERT, span(-1, 5))]
    # An iteration ends at the end of its range, and nowhere else.
    for version in (4, 6):
        with raises_naming(BatchError, "'mirror'", version, claim.range):
            complete(log, claim, moment(version), {})
    assert log.find_job(key()) == job
    complete(log, claim, moment(5), {"inserted": 7, "deleted": 1})
    job = log.find_job(key())
    assert (job.state, job.watermark) == (JobState.COMPLETED, moment(5))
    assert job.batch.phase is Phase.AFTER
    assert job.status.end_at > job.status.start_at
    assert (job.status.code, job.status.counts) == (0, {"inserted": 7, "deleted": 1})


def test_begin_claims_jobs_in_the_iterations_order_and_a_tenant_may_have_its_own_layout(log):
    keys = (key("b"), key("a", "zed"), key("a"))
    add(log, *keys)
    layout = {"cuts": [1, 2.5, "ü", None, {"deep": [True]}], "big": 2**53}
    own = {"zed": layout, "nobody": {}}
    claims = log.claim_jobs(over(*keys), "run-1", LAYOUT, layouts=own)
    assert [claim.key for claim in claims] == list(keys)
    assert [claim.step.layout for claim in claims] == [LAYOUT, layout, LAYOUT]
    assert [log.find_job(each).batch.layout for each in keys] == [LAYOUT, layout, LAYOUT]
    fail(log, claims[0], 500, "slow")
    complete(log, claims[1], moment(5), {})
    assert [job.state.label for job in log.list_jobs()] == ["running", "completed", "completed"]


@pytest.mark.parametrize(
    ("prepare", "named"),
    [
        (lambda log: None, ["registered"]),
        (lambda log: (add(log, key("b")), log.unregister("acme", name("b"))), ["registered"]),
        (
            lambda log: (add(log, key("b")), log.claim_jobs(over(key("b")), "run-0", {})),
            ["running", "run-0"],
        ),
        (lambda log: at(log, 3, key("b")), [3, -1]),
        (
            lambda log: (add(log, key("b")), log.enqueue(over(key("b")), "run-0")),
            ["run-0", "run-1"],
        ),
    ],
    ids=["unknown", "unregistered", "running", "ahead", "queued"],
)
def test_begin_names_the_job_that_does_not_match_and_changes_nothing(log, prepare, named):
    add(log, key("a"))
    prepare(log)
    before = log.list_jobs(include_dropped=True)
    with raises_naming(FenceError, "'b'", *named):
        log.claim_jobs(over(key("a"), key("b")), "run-1", LAYOUT)
    assert log.list_jobs(include_dropped=True) == before


def test_a_queued_job_begins_in_the_run_it_waits_for_under_either_name(log):
    add(log, key("a"), key("b"))
    log.enqueue(over(key("a")), "run-1")
    log.enqueue(over(key("b")), "ticket-2")
    assert log.list_active_runs() == {"run-1", "ticket-2"}
    assert log.enqueue(over(key("a")), "run-2").keys() == {key("a")}
    log.claim_jobs(over(key("a")), "run-1", {})
    log.claim_jobs(over(key("b")), "run-2", {}, queued_as="ticket-2")
    assert log.list_active_runs() == {"run-1", "run-2"}


def test_jobs_that_were_taken_since_are_left_as_they_are_and_the_others_are_queued(log):
    planned = over(key("a"), key("b"), key("c"), key("d"))
    add(log, *planned.jobs)
    log.enqueue(over(key("b")), "run-1")
    log.unregister("acme", name("c"))
    lost = log.enqueue(planned, "ticket")
    assert lost.keys() == {key("b"), key("c")}
    assert_names(str(lost[key("b")]), "'b'", "pending", "run-1")
    assert_names(str(lost[key("c")]), "'c'", "registered")
    assert log.list_queued("ticket") == (planned.select_jobs([key("a"), key("d")]),)
    assert log.find_job(key("b")).run_id == "run-1"
    assert lost.keys() == log.enqueue(planned.select_jobs(lost), "another").keys()
    assert log.check_or_grant_leases(["another"], 9) == frozenset()


def test_an_iteration_is_found_under_the_name_that_it_was_queued_by(make_log):
    log, log_of_run = make_log(), make_log()
    planned, other = over(key("a"), key("b"), key("c"), start=2), over(key("d"), to=7)
    at(log, 2, *planned.jobs)
    add(log, *other.jobs)
    log.enqueue(planned, "ticket-1")
    log.enqueue(other, "ticket-2")
    assert log_of_run.list_queued("ticket-1") == (planned,)
    assert log_of_run.list_queued("ticket-2") == (other,)
    assert log_of_run.list_queued("ticket-3") == ()
    # Events that do not concern the iteration do not change it.
    log.pause("acme", name("a"))
    log.update("acme", name("a"), SpecUpdate(job_type="greedy"))
    assert log_of_run.list_queued("ticket-1") == (planned,)
    log.cancel([key("c")])
    assert log_of_run.list_queued("ticket-1") == (over(key("a"), key("b"), start=2),)
    log.rebuild([key("b")])
    rest, anew = over(key("a"), start=2), over(key("b"))
    assert log_of_run.list_queued("ticket-1") == (anew, rest)
    log_of_run.claim_jobs(rest, "run-1", {}, queued_as="ticket-1")
    assert log_of_run.list_queued("ticket-1") == (anew,)
    assert {each.key.job_name: each.queued_to for each in log.list_jobs()} == {
        **dict.fromkeys("ac"),
        "b": moment(5),
        "d": moment(7),
    }
    log.unregister("acme", name("b"))
    assert log.list_queued("ticket-1") == ()


def test_only_the_last_claim_counts(log):
    add(log, key())
    (stale,) = log.claim_jobs(over(key()), "run-1", LAYOUT)
    assert log.recover_run_jobs({"run-1"}) == (key(),)
    (claim,) = log.claim_jobs(over(key()), "run-2", LAYOUT)
    before = log.find_job(key())
    for late in (
        lambda: complete(log, stale, moment(5), {}),
        lambda: fail(log, stale, 500, "late"),
        lambda: advance(log, stale, {}),
    ):
        with raises_naming(FenceError, "'mirror'", "run-1", stale.fence, before.seq):
            late()
    assert log.find_job(key()) == before
    complete(log, claim, moment(5), {})
    with pytest.raises(FenceError):
        complete(log, claim, moment(5), {})
    # A claim does not outlive its registration either.
    (claim,) = log.claim_jobs(over(key(), start=5, to=7), "run-3", LAYOUT)
    log.unregister("acme", name())
    with pytest.raises(FenceError):
        complete(log, claim, moment(7), {})
    add(log, key())
    for late in (claim, replace(claim, fence=log.find_job(key()).seq)):
        with pytest.raises(FenceError):
            complete(log, late, moment(7), {})
    assert log.find_job(key()).watermark == START


def test_a_temporary_failure_is_completed_with_its_code_and_a_permanent_one_is_error(log):
    at(log, 5, key("a"), key("b"))
    a, b = log.claim_jobs(over(key("a"), key("b"), start=5, to=6), "run-1", LAYOUT)
    fail(log, a, 9_999, "down\0 \ud800" + "x" * ERROR_TEXT_LIMIT)
    fail(log, b, 10_000, "no such column")
    first, second = log.list_jobs()
    assert (first.state, first.status.code) == (JobState.COMPLETED, 9_999)
    assert first.status.message.startswith("down ?xxx")
    assert len(first.status.message) == ERROR_TEXT_LIMIT
    assert (second.state, second.status.code) == (JobState.ERROR, 10_000)
    for job in (first, second):
        assert (job.watermark, job.batch.phase) == (moment(5), Phase.BEFORE)
        assert job.status.end_at is not None
    with raises_naming(FenceError, "'b'", "error"):
        log.claim_jobs(over(key("b"), start=5, to=6), "run-2", LAYOUT)
    (claim,) = log.claim_jobs(over(key("a"), start=5, to=6), "run-2", {"other": 1})
    assert log.find_job(key("a")).status.code == 0
    assert [(step.action, step.layout) for step in claim.steps] == [(BatchAction.REPLAY, LAYOUT)]


def test_what_a_dead_run_left_is_replayed_before_the_rest_with_its_own_before(log):
    at(log, 5, key())
    log.claim_jobs(over(key(), start=5, to=7), "run-1", {"old": 1})
    log.recover_run_jobs({"run-1"})
    (claim,) = log.claim_jobs(over(key(), start=5, to=9), "run-2", {"new": 2})
    assert (claim.case, claim.previous.range) == (Case.OVERLAPPING, span(5, 7))
    assert [(s.action, s.range, s.layout) for s in claim.steps] == [
        (BatchAction.REPLAY, span(5, 7), {"old": 1}),
        (BatchAction.INSERT, span(7, 9), {"new": 2}),
    ]
    # A run that dies here leaves the batch under replay as the record, not the whole range.
    assert log.find_job(key()).batch.range == span(5, 7)
    with raises_naming(BatchError, 9, "1 steps", claim.range):
        complete(log, claim, moment(9), {})
    second = advance(log, claim, {"inserted": 3, "bytes": 10})
    job = log.find_job(key())
    assert (job.watermark, job.state) == (moment(7), JobState.RUNNING)
    assert (job.batch.range, job.batch.phase) == (span(7, 9), Phase.BEFORE)
    with pytest.raises(FenceError):
        advance(log, claim, {})
    with raises_naming(BatchError, "'mirror'", span(7, 9)):
        advance(log, second, {})
    complete(log, second, moment(9), {"inserted": 4, "deleted": 1})
    job = log.find_job(key())
    assert job.watermark == moment(9)
    assert job.status.counts == {"inserted": 7, "deleted": 1, "bytes": 10}


def test_an_unconfirmed_batch_is_taken_whole_unless_it_was_the_first(log):
    at(log, 5, key())
    add(log, key("new"))
    log.claim_jobs(over(key(), start=5, to=9), "run-1", LAYOUT)
    log.claim_jobs(over(key("new"), to=5), "run-1", LAYOUT)
    log.recover_run_jobs({"run-1"})
    (claim,) = log.claim_jobs(over(key(), start=5, to=7), "run-2", {})
    assert (claim.range, claim.step.action) == (span(5, 9), BatchAction.REPLAY)
    complete(log, claim, moment(9), {})
    assert log.find_job(key()).watermark == moment(9)
    (claim,) = log.claim_jobs(over(key("new"), to=8), "run-2", {})
    assert [(s.action, s.range) for s in claim.steps] == [(BatchAction.INSERT, span(-1, 8))]
    assert claim.previous.range == span(-1, 5)


# --- cancel, recover, idle


def test_cancel_takes_the_active_jobs_and_their_claims(log):
    add(log, *map(key, "abcd"))
    log.enqueue(over(key("a")), "run-1")
    log.enqueue(over(key("d")), "run-4")
    seen = {job.key: job.seq for job in log.list_jobs()}
    (claim,) = log.claim_jobs(over(key("a")), "run-1", LAYOUT)
    # What began since somebody looked is not canceled by what they saw.
    assert log.cancel(seen, expected_seqs=seen) == (key("d"),)
    log.enqueue(over(key("b")), "run-2")
    everything = [key("c"), key("b"), key("a"), key("none")]
    assert log.cancel(everything) == (key("a"), key("b"))
    assert log.cancel(everything) == ()
    states = [job.state.label for job in log.list_jobs()]
    assert states == ["canceled", "canceled", "completed", "canceled"]
    assert log.find_job(key("a")).status.end_at is not None
    with pytest.raises(FenceError):
        complete(log, claim, moment(5), {})
    with raises_naming(FenceError, "'b'", "canceled", "run-2"):
        log.claim_jobs(over(key("b")), "run-2", {})
    log.claim_jobs(over(key("b")), "run-3", {})
    assert log.find_job(key("a")).batch.phase is Phase.BEFORE


def test_recover_frees_the_jobs_of_gone_runs_only(log):
    add(log, key("a"), key("b"), key("c"), key("d"), key("dropped"))
    log.claim_jobs(over(key("dropped")), "gone before", LAYOUT)
    log.unregister("acme", name("dropped"))
    log.claim_jobs(over(key("a")), "gone", LAYOUT)
    log.enqueue(over(key("b")), "gone too")
    log.claim_jobs(over(key("c")), "alive", LAYOUT)
    assert log.list_active_runs() == {"gone", "gone too", "alive"}
    assert log.list_active_runs(JobState.PENDING) == {"gone too"}
    assert log.list_active_runs(JobState.RUNNING) == {"gone", "alive"}
    assert log.list_active_runs(JobState.COMPLETED) == frozenset()
    assert log.recover_run_jobs(["gone before"]) == log.recover_run_jobs([]) == ()
    assert log.cancel([key("dropped")]) == ()
    assert log.recover_run_jobs(["gone", "gone too", "unheard of"]) == (key("a"), key("b"))
    assert log.recover_run_jobs(["gone", "gone too"]) == ()
    states = [job.state.label for job in log.list_jobs()]
    assert states == ["completed", "completed", "running", "completed"]
    assert log.find_job(key("a")).batch.phase is Phase.BEFORE
    assert log.list_active_runs() == {"alive"}


def test_repair_sets_jobs_in_error_completed_to_be_read_anew(log):
    at(log, 5, key("a"), key("b"))
    a, _ = log.claim_jobs(over(key("a"), key("b"), start=5, to=6), "run-1", LAYOUT)
    fail(log, a, 10_200, "no such file")
    everything = [key("none"), key("b"), key("a")]
    assert log.repair(everything) == (key("a"),)
    assert log.repair(everything) == ()
    repaired = log.find_job(key("a"))
    assert (repaired.state, repaired.watermark) == (JobState.COMPLETED, moment(5))
    assert (repaired.status.code, repaired.status.message) == (0, "")
    assert log.find_job(key("b")).state is JobState.RUNNING
    (claim,) = log.claim_jobs(over(key("a"), start=5, to=7), "run-2", LAYOUT)
    assert [(s.action, s.range) for s in claim.steps] == [(BatchAction.INSERT, span(5, 7))]


def test_repairs_are_counted_until_a_range_is_done(log):
    def begin_run(to, run):
        (claim,) = log.claim_jobs(over(key("a"), start=5, to=to), run, LAYOUT)
        return claim

    at(log, 5, key("a"))
    for repairs in range(2):
        claim = begin_run(6, f"run-{repairs}")
        assert claim.repairs == repairs
        fail(log, claim, 10_200, "no such file")
        log.repair([key("a")])
    fail(log, begin_run(6, "run-2"), 1_840, "it goes on")
    assert begin_run(6, "killed").repairs == 2
    log.recover_run_jobs(["killed"])
    log.enqueue(over(key("a"), start=5, to=6), "run-3")
    log.fail_queued_jobs("run-3", 1_100, "no answer")
    claim = begin_run(7, "run-4")
    assert (claim.repairs, len(claim.steps)) == (2, 2)
    second = advance(log, claim, {})
    assert second.repairs == log.find_job(key("a")).status.repairs == 0
    complete(log, second, moment(7), {})
    assert log.find_job(key("a")).status.repairs == 0


def test_the_watermarks_that_readers_ask_for_are_those_of_an_indexs_live_jobs(log):
    engine = log.engine
    assert read_watermarks(engine, name()) == IndexWatermarks()
    at(log, 5, key(tenant="acme"), key(tenant="globex"), key("text", tenant="acme"))
    at(log, 7, key(tenant="late"))
    watermarks = read_watermarks(engine, name())
    assert watermarks.table_id == "t-1"
    assert watermarks.versions == {"acme": 5, "globex": 5, "late": 7}
    assert watermarks.registrations["late"] > watermarks.registrations["acme"]
    assert read_watermarks(engine, name(), ["late", "unknown"]).versions == {"late": 7}
    log.unregister("globex", name())
    assert set(read_watermarks(engine, name()).versions) == {"acme", "late"}
    # A table that took its place counts alone.
    at(log, 2, key(tenant="acme", table_id="t-2"))
    watermarks = read_watermarks(engine, name())
    assert (watermarks.table_id, watermarks.versions) == ("t-2", {"acme": 2})


def test_a_table_has_the_watermarks_and_names_of_its_live_jobs(log):
    assert log.list_watermarks("t-1") == ()
    assert log.list_watermark_versions("t-1") == frozenset()
    at(log, 5, key("a"), key("b"), key("a", "zed"))
    log.flush({key("a", "zed"): Range(from_=moment(5), to=Moment(7, 70))})
    at(log, 7, key("e"))
    add(log, key("c"), key("d", "acme", "t-2"), key("dropped"))
    log.claim_jobs(over(key("b"), start=5, to=6), "run-1", LAYOUT)
    log.cancel([key("b")])
    log.unregister("acme", name("dropped"))
    # Watermarks are told apart by version and time.
    watermarks = [str(each) for each in log.list_watermarks("t-1")]
    assert sorted(watermarks) == sorted(["7@70", *map(str, (START, moment(5), moment(7)))])
    assert log.list_watermarks("t-2") == (START,)
    assert log.list_watermark_versions("t-1") == {
        ("a", 5, JobState.COMPLETED),
        ("a", 7, JobState.COMPLETED),
        ("b", 5, JobState.CANCELED),
        ("c", -1, JobState.COMPLETED),
        ("e", 7, JobState.COMPLETED),
    }
    assert log.find_unsettled_tenants("t-1") == log.find_unsettled_tenants("t-2") == {"acme"}
    assert log.find_table_ids("docs", "symbols") == {"t-1", "t-2"}
    assert log.find_table_ids("docs", "others") == frozenset()
    assert log.find_table_names("t-1") == {("docs", "symbols")}
    assert log.find_table_names("t-1", ["nobody"]) == log.find_table_names("t-1", []) == frozenset()
    assert log.list_tenants("t-1") == {"acme", "zed"}
    names = {("acme", name) for name in ("a", "b", "c", "dropped", "e")}
    assert log.list_known_jobs("t-1") == names | {("zed", "a")}
    assert log.list_known_jobs("t-1", {"zed", "nobody"}) == {("zed", "a")}
    assert log.list_known_jobs("t-1", set()) == frozenset()


def test_idle_jobs_move_with_the_table(log):
    idle, behind, other = key("idle"), key("behind"), key("idle", "other")
    fresh, running, failed = key("fresh"), key("running"), key("failed")
    at(log, 5, idle, other, running, failed)
    at(log, 4, behind)
    add(log, fresh)
    log.claim_jobs(over(running, start=5, to=6), "run-1", LAYOUT)
    (claim,) = log.claim_jobs(over(failed, start=5, to=6), "run-2", LAYOUT)
    fail(log, claim, 500, "slow")
    seq = log.find_job(idle).seq
    moves = dict.fromkeys([idle, behind, running, failed, key("idle", "unknown")], span(5, 9))
    assert log.flush(moves) == 1
    assert log.find_job(idle).watermark == moment(9)
    assert log.find_job(idle).seq > seq
    assert log.flush(moves) == 0
    assert log.flush({idle: span(8, 10)}) == 0
    assert log.flush({fresh: span(-1, 8)}) == 0
    assert log.flush({}) == 0
    assert log.flush({behind: span(4, 7)}) == 1
    versions = {job.key.job_name: job.watermark.version for job in log.list_jobs(tenant="acme")}
    assert versions == {"behind": 7, "failed": 5, "fresh": -1, "idle": 9, "running": 5}
    assert log.find_job(other).watermark == moment(5)


def test_more_jobs_than_one_statement_takes_are_claimed_and_recovered(log, monkeypatch):
    monkeypatch.setattr(statements, "KEYS_PER_STATEMENT", 30)
    rows = [NewJob(tenant=f"t{i:03}", name=name(), table_id="t-1", spec=spec()) for i in range(100)]
    assert log.register_many(rows) == 100
    claims = log.claim_jobs(over(*(row.key for row in rows)), "run-1", LAYOUT)
    assert len(claims) == 100
    assert log.count()[JobState.RUNNING] == 100
    assert len(log.cancel(row.key for row in rows[:10])) == 10
    assert len(log.recover_run_jobs({"run-1"})) == 90
    assert log.flush({row.key: span(0, 3) for row in rows}) == 0


def test_a_tenant_is_startable_while_a_job_is_idle_behind_or_canceled(log):
    names = ["behind", "latest", "running", "queued", "paused", "broken", "canceled", "dropped"]
    keys = {tenant: key(tenant=tenant) for tenant in names}
    at(log, 5, *keys.values())
    at(log, 6, key("text", "latest"))
    going_on = [keys["running"], keys["broken"], keys["canceled"]]
    claims = log.claim_jobs(over(*going_on, start=5, to=6), "run", LAYOUT)
    fail(log, claims[1], 10_200, "oh")
    log.cancel([keys["canceled"]])
    log.enqueue(over(keys["queued"], start=5, to=6), "run-2")
    log.pause("paused", name())
    log.unregister("dropped", name())
    (latest,) = log.claim_jobs(over(keys["latest"], start=5, to=6), "run", LAYOUT)
    complete(log, latest, moment(6), {})
    assert sorted(log.list_unsettled_versions("t-1")) == [
        ("mirror", "broken", JobState.ERROR, 5),
        ("mirror", "queued", JobState.PENDING, 5),
        ("mirror", "running", JobState.RUNNING, 5),
    ]
    assert log.find_startable_tenants("t-1", 6, names) == {"behind", "canceled"}
    assert log.find_startable_tenants("t-1", 5, names) == {"canceled"}
    assert log.find_startable_tenants("t-1", 7, ["latest", "queued"]) == {"latest"}
    assert log.find_startable_tenants("t-2", 7, names) == frozenset()
    assert log.find_startable_tenants("t-1", 7, []) == frozenset()
