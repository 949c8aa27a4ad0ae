"""Specs, pauses and jobs for everybody, in every ISCP log."""

from dataclasses import replace

import pytest

from iscp_dagster.joblog.results import SpecUpdateResult
from iscp_dagster.joblog.updates import SpecUpdate
from iscp_dagster.model.errors import ConfigError, FenceError, TableGoneError
from iscp_dagster.model.jobs import NewJob
from iscp_dagster.model.moment import START
from iscp_dagster.model.states import Event, JobState
from iscp_dagster.planning.triggers.plan import plan_iterations
from support.errors import raises_naming
from support.jobs.log_rows import (
    LAYOUT,
    add,
    at,
    complete,
    fail,
    key,
    moment,
    mostly_on_sqlite,
    name,
    over,
    spec,
)

pytestmark = mostly_on_sqlite
ATTEMPTS = 3


def test_a_new_spec_is_kept_and_the_run_that_holds_the_job_goes_on(log):
    assert log.update("acme", name(), SpecUpdate(priority=5)) is None
    add(log, key())
    (claim,) = log.claim_jobs(over(key()), "run-1", LAYOUT)
    assert log.update("acme", name(), SpecUpdate(priority=5)) == SpecUpdateResult(changed=True)
    assert log.update("acme", name(), SpecUpdate(priority=5)) == SpecUpdateResult()
    assert log.find_job(key()).priority == 5
    complete(log, claim, moment(5), {})
    assert log.find_job(key()).watermark == moment(5)


def test_an_interruption_cancels_what_is_queued_or_runs_and_names_its_runs(log):
    add(log, key("a"), key("b"), key("c"))
    (claim,) = log.claim_jobs(over(key("a")), "run-1", LAYOUT)
    log.enqueue(over(key("b")), "ticket")
    results = [log.update("acme", name(j), SpecUpdate(priority=5), interrupt=True) for j in "abc"]
    interrupted = [(each.interrupted_jobs, set(each.interrupted_runs)) for each in results]
    assert interrupted == [((key("a"),), {"run-1"}), ((key("b"),), {"ticket"}), ((), set())]
    assert all(each.changed for each in results)
    assert [job.state.label for job in log.list_jobs()] == ["canceled", "canceled", "completed"]
    with pytest.raises(FenceError):
        complete(log, claim, moment(5), {})


def test_a_new_spec_ends_an_error_but_not_of_a_job_whose_table_is_gone(log):
    add(log, key("broken"), key("gone", table_id="t-2"))
    (claim,) = log.claim_jobs(over(key("broken")), "run-1", LAYOUT)
    fail(log, claim, 10_300, "no such type")
    log.mark_stranded("t-2", TableGoneError.code, "dropped")
    for job in ("broken", "gone"):
        assert log.update("acme", name(job), SpecUpdate(priority=5)).changed
    broken, gone = (log.find_job(key("broken")), log.find_job(key("gone", table_id="t-2")))
    assert (broken.state, broken.priority) == (JobState.COMPLETED, 5)
    assert (broken.status.code, broken.batch) == (0, None)
    assert (gone.state, gone.priority) == (JobState.ERROR, 5)
    events = [each.event for each in log.read_history(name=name("broken"))]
    assert events == [Event.REGISTER, Event.START, Event.FAIL_PERMANENT, Event.REPAIR, Event.UPDATE]


def fail_repeatedly(log):
    """Fail the job several times in a row, so that it waits."""
    for attempt in range(ATTEMPTS):
        (claim,) = log.claim_jobs(over(key()), f"run-{attempt}", LAYOUT)
        fail(log, claim, 1_100, "ClickHouse is away")
    job = log.find_job(key())
    assert job.status.attempts == ATTEMPTS
    assert not plan_iterations([job], moment(5), job.status.end_at)


@pytest.mark.parametrize(
    ("change", "interrupt"),
    [
        (SpecUpdate(job_type="greedy"), False),
        (SpecUpdate(priority=5), True),
        (SpecUpdate(columns=("b",)), False),
    ],
    ids=["trigger", "detail", "consumer"],
)
def test_a_new_spec_starts_with_fresh_attempts(log, change, interrupt):
    add(log, key())
    fail_repeatedly(log)
    result = log.update("acme", name(), change, interrupt=interrupt)
    assert result == SpecUpdateResult(changed=True)
    job = log.find_job(key())
    assert (job.status.attempts, job.status.code) == (0, 1_100)
    assert plan_iterations([job], moment(5), job.status.end_at)
    assert log.read_history(name=name())[-1].event is Event.UPDATE


def test_a_resumed_or_interrupted_job_does_not_wait_for_what_failed_before(log):
    add(log, key())
    fail_repeatedly(log)
    log.pause("acme", name())
    log.resume("acme", name())
    assert log.find_job(key()).status.attempts == 0
    fail_repeatedly(log)
    log.claim_jobs(over(key()), "run-9", LAYOUT)
    log.update("acme", name(), SpecUpdate(priority=5), interrupt=True)
    assert log.find_job(key()).status.attempts == 0
    # Without a new spec, too.
    fail_repeatedly(log)
    assert log.update("acme", name(), SpecUpdate()) == SpecUpdateResult()
    assert log.find_job(key()).status.attempts == ATTEMPTS
    changed = SpecUpdateResult(changed=True)
    assert log.update("acme", name(), SpecUpdate(), interrupt=True) == changed
    assert log.find_job(key()).status.attempts == 0


def rebuild(log, keys):
    assert log.rebuild([*keys, key("other")]) == tuple(sorted(keys))


def change_columns(log, keys):
    for each in keys:
        log.update("acme", name(each.job_name), SpecUpdate(columns=("b",)))


@pytest.mark.parametrize("ask", [rebuild, change_columns])
def test_a_rebuilt_job_or_one_of_another_consumer_gets_all_rows_anew(log, ask):
    """After what runs, and at once where nothing does."""
    rests, runs, waits = keys = (key("rests"), key("runs"), key("waits"))
    at(log, 5, *keys)
    (claim,) = log.claim_jobs(over(runs, start=5, to=9), "run-1", LAYOUT)
    log.enqueue(over(waits, start=5, to=7), "run-2")
    ask(log, keys)
    for job in map(log.find_job, (rests, waits)):
        assert (job.watermark, job.rebuild) == (START, False)
    assert log.find_job(runs).watermark == moment(5)
    with raises_naming(FenceError, "'waits'", -1, 5):
        log.claim_jobs(over(waits, start=5, to=7), "run-2", LAYOUT)
    complete(log, claim, moment(9), {})
    assert (log.find_job(runs).watermark, log.find_job(runs).batch) == (START, None)


def test_pausing_is_kept_until_resumed(log):
    assert log.pause("acme", name()) == log.resume("acme", name()) == ()
    add(log, key())
    assert log.pause("acme", name()) == (key(),)
    since = log.find_job(key()).paused_at
    assert since is not None
    assert log.pause("acme", name()) == ()
    assert log.find_job(key()).paused_at == since
    assert log.resume("acme", name()) == (key(),)
    assert log.resume("acme", name()) == ()
    assert log.find_job(key()).paused_at is None


def test_what_is_registered_for_all_is_kept_once(log):
    assert log.register_standing(name("b"), spec("b"))
    assert log.register_standing(name("a"), spec("a", priority=3))
    assert not log.register_standing(name("a"), spec("a", priority=9))
    assert list(log.list_standing().items()) == [
        (name("a"), spec("a", priority=3)),
        (name("b"), spec("b")),
    ]
    assert log.update(None, name("b"), SpecUpdate(priority=5)) == SpecUpdateResult(changed=True)
    assert log.list_standing()[name("b")] == spec("b", priority=5)
    assert log.unregister(None, name("a"))
    assert not log.unregister(None, name("a"))
    assert log.update(None, name("a"), SpecUpdate(priority=5)) is None
    assert list(log.list_standing()) == [name("b")]


def test_for_all_is_every_tenants_job_and_what_stands(log):
    everyones = [key("a", tenant) for tenant in ("acme", "zed")]
    rows = [
        NewJob(tenant=k.tenant, name=name("a"), table_id=k.table_id, spec=spec("a"))
        for k in everyones
    ]
    add(log, key("b"), everyones[0])
    assert log.register_standing(name("a"), spec("a"), rows)
    assert not log.register_standing(name("a"), spec("a"), rows)
    assert [job.key for job in log.list_jobs()] == [everyones[0], key("b"), everyones[1]]
    assert log.pause("zed", name("a")) == (everyones[1],)
    assert log.pause(None, name("a")) == (everyones[0],)
    assert log.resume(None, name("a")) == tuple(everyones)
    assert log.unregister("zed", name("a"))
    assert list(log.list_standing()) == [name("a")], "one tenant's end is not everybody's"
    assert log.unregister(None, name("a"))
    assert [job.key for job in log.list_jobs()] == [key("b")]
    assert dict(log.list_standing()) == {}
    # Either the standing registration alone or the rows alone may be new.
    assert log.register_standing(name("a"), spec("a"))
    assert log.register_standing(name("a"), spec("a"), rows)


def new_job(tenant, **consumer):
    job_spec = spec("index")
    info = replace(job_spec.detail.consumer, **{"type": "mirror", **consumer})
    job_spec = replace(job_spec, detail=replace(job_spec.detail, consumer=info))
    return NewJob(tenant=tenant, name=name("index"), table_id="t-1", spec=job_spec)


def consumers(log):
    return {job.key.tenant: job.spec.detail.consumer for job in log.list_jobs(name=name("index"))}


def test_the_tenants_of_an_index_have_one_consumer(log):
    first = new_job("a", columns=("x",))
    assert log.register_many([first]) == 1
    assert log.register_many([new_job("b", columns=("y",))]) == 1
    with raises_naming(ConfigError, "docs.symbols/index", "mirror", "x", "y"):
        log.register_many([new_job("c", columns=("y",))], adopt=False)
    with raises_naming(ConfigError, "docs.symbols/index", "mirror", "text"):
        log.register_standing(name("index"), new_job("a", type="text").spec)
    assert log.list_standing() == {}
    # An existing consumer stays the same, whatever is asked.
    assert log.register_many([new_job("a", columns=("y",))], adopt=False) == 0
    assert consumers(log) == dict.fromkeys("ab", first.spec.detail.consumer)
    with raises_naming(ConfigError, "docs.symbols/index", "--tenant '*'"):
        log.update("a", name("index"), SpecUpdate(columns=("y",)))
    assert log.update(None, name("index"), SpecUpdate(columns=("y",))).changed
    other = replace(first.spec.detail.consumer, columns=("y",), generation=1)
    assert log.register_many([new_job("c", columns=("y",))], adopt=False) == 1
    assert consumers(log) == dict.fromkeys("abc", other)


def test_one_tenant_alone_may_have_another_consumer(log):
    log.register_many([new_job("a"), new_job("b")])
    log.unregister("b", name("index"))
    assert log.update("a", name("index"), SpecUpdate(columns=("y",))).changed
    assert consumers(log)["a"].generation == 1
    log.unregister("a", name("index"))
    # The tables of dropped jobs exist for another day.
    assert log.register_many([new_job("b", columns=("z",))], adopt=False) == 1
    assert consumers(log) == {"b": new_job("b", columns=("z",), generation=2).spec.detail.consumer}


def test_consumers_of_the_users_own_differ_by_tenant(log):
    log.register_many([new_job("a", type="my:Own"), new_job("b", type="my:Own")])
    assert log.update("a", name("index"), SpecUpdate(columns=("y",))).changed
    assert [each.columns for each in consumers(log).values()] == [("y",), ("a",)]


def test_a_tenant_that_comes_has_what_stands_at_that_moment(log):
    assert log.register_standing(name("index"), new_job("a").spec, [new_job("a")])
    log.update(None, name("index"), SpecUpdate(columns=("y",), priority=4))
    assert log.register_many([new_job("b")], revive=False) == 1
    first, second = log.list_jobs(name=name("index"))
    assert first.spec == second.spec == log.list_standing()[name("index")]
    assert (second.spec.detail.consumer.generation, second.priority) == (1, 4)


def test_what_is_declared_stands_once_it_was_changed_for_all(log):
    declared = new_job("a").spec
    assert log.update(None, name("index"), SpecUpdate(priority=4), declared=declared).changed
    assert log.list_standing()[name("index")] == SpecUpdate(priority=4).apply_to(declared)
    assert not log.update(None, name("index"), SpecUpdate(priority=4), declared=declared).changed


def test_tenants_that_lack_rows_of_their_consumer_are_known(log):
    at(log, 5, key("index"), key("index", tenant="b"))
    log.register_many([new_job("c")])
    assert log.find_unbuilt_tenants(name("index")) == {"c"}
    log.claim_jobs(over(key("index"), start=5, to=9), "run-1", LAYOUT)
    log.update(None, name("index"), SpecUpdate(rebuild=True))
    assert log.find_unbuilt_tenants(name("index")) == {key("index").tenant, "b", "c"}
    assert log.find_unbuilt_tenants(name("other")) == frozenset()
    log.unregister("c", name("index"))
    assert log.find_unbuilt_tenants(name("index")) == {key("index").tenant, "b"}


def test_jobs_of_a_table_that_is_gone_are_stopped_whatever_they_do(log):
    add(log, key("a"), key("b"), key("c", table_id="t-2"))
    (claim,) = log.claim_jobs(over(key("a")), "run-1", LAYOUT)
    assert log.mark_stranded("t-1", 10_220, "gone") == (key("a"), key("b"))
    assert log.mark_stranded("t-1", 10_220, "gone") == ()
    states = {job.key.job_name: (job.state.label, job.status.code) for job in log.list_jobs()}
    assert states == {"a": ("error", 10_220), "b": ("error", 10_220), "c": ("completed", 0)}
    with pytest.raises(FenceError):
        complete(log, claim, moment(5), {})


def test_jobs_are_carried_over_to_the_table_that_took_their_tables_place(log):
    at(log, 5, key("a"), key("b"))
    add(log, key("other", table_id="t-3"), key("c", tenant="globex"))
    log.update("acme", name("a"), SpecUpdate(priority=7))
    log.pause("acme", name("b"))
    log.mark_stranded("t-1", TableGoneError.code, "replaced")
    new = [key("a", table_id="t-2"), key("b", table_id="t-2"), key("c", "globex", "t-2")]
    # A job that a person has already registered for the new table is not changed.
    log.register("acme", name("b"), "t-2", spec("b", priority=3))
    assert log.reregister_jobs("t-1", "t-2") == (new[0], new[2])
    assert log.reregister_jobs("t-1", "t-2") == ()
    jobs = {job.key: job for job in log.list_jobs()}
    assert set(jobs) == {*new, key("other", table_id="t-3")}
    assert [jobs[each].priority for each in new] == [7, 3, 0]
    states = {(jobs[each].watermark, jobs[each].state.label) for each in new}
    assert states == {(START, "completed")}
    events = [each.event for each in log.read_history(name=name("c"))]
    assert events == [Event.REGISTER, Event.STRAND, Event.REGISTER, Event.UNREGISTER]


def test_a_paused_job_is_carried_over_paused_and_loses_its_run(log):
    add(log, key("a"), key("b"))
    log.pause("acme", name("a"))
    (claim,) = log.claim_jobs(over(key("b")), "run-1", LAYOUT)
    assert len(log.reregister_jobs("t-1", "t-2")) == 2
    assert [job.key.job_name for job in log.list_jobs() if job.paused_at] == ["a"]
    with pytest.raises(FenceError):
        complete(log, claim, moment(5), {})
