"""Leases in every ISCP log: working runs are left alone, and nobody waits for silent ones."""

import time
from datetime import timedelta

import pytest

from iscp_dagster.joblog.leases import LeaseDurations
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.errors import FenceError, RunGoneError, SourceError, UnavailableError
from iscp_dagster.planning.triggers.backoff import compute_backoff, is_backing_off
from support.errors import assert_names
from support.jobs.log_rows import LAYOUT, T0, add, advance, complete, key, moment, name, over


def states(log):
    return {job.key.job_name: job.state.label for job in log.list_jobs()}


def test_what_nobody_keeps_is_freed_and_what_somebody_keeps_is_not(log, hand):
    add(log, *map(key, ("kept", "left", "queued", "dispatched")))
    (kept,) = log.claim_jobs(over(key("kept")), "run-1", LAYOUT)
    (left,) = log.claim_jobs(over(key("left")), "run-2", LAYOUT)
    log.enqueue(over(key("queued")), "ticket-1")
    log.enqueue(over(key("dispatched")), "ticket-2")
    hand.now += log.leases.run
    assert log.expire_unleased_jobs() == ()
    log.renew_leases(["run-1"], log.leases.run)
    hand.now += 0.5
    assert log.expire_unleased_jobs() == (key("left"),)
    hand.now += log.leases.queued - log.leases.run
    log.renew_leases(["run-1", "ticket-2"], 1.0)
    assert log.expire_unleased_jobs() == (key("queued"),)
    assert log.expire_unleased_jobs() == ()
    assert states(log) == {
        "kept": "running",
        "left": "completed",
        "queued": "completed",
        "dispatched": "pending",
    }
    complete(log, kept, moment(5), {})
    with pytest.raises(FenceError):
        complete(log, left, moment(5), {})


def test_a_run_that_is_gone_is_counted_and_waited_for_and_one_that_never_ran_is_not(log, hand):
    add(log, key("ran"), key("queued"))
    for lost in range(3):
        log.claim_jobs(over(key("ran")), f"run-{lost}", LAYOUT)
        log.enqueue(over(key("queued")), f"ticket-{lost}")
        hand.now += log.leases.queued + 1
        assert log.expire_unleased_jobs() == (key("queued"), key("ran"))
        ran, queued = log.find_job(key("ran")).status, log.find_job(key("queued")).status
        assert (ran.code, ran.attempts) == (RunGoneError.code, lost + 1)
        assert_names(ran.message, f"run-{lost}")
        assert (queued.code, queued.attempts) == (0, 0)
    last = log.read_history(name=name("ran"))[-1]
    assert (last.event.value, last.code, last.interrupted) == ("recover", 1_700, True)
    assert last.message == ran.message
    assert ran.end_at is not None
    assert is_backing_off(ran, ran.end_at + compute_backoff(3) - timedelta(seconds=1))
    for claim in log.claim_jobs(over(key("ran")), "run-last", LAYOUT):
        complete(log, claim, moment(5), {})
    assert log.find_job(key("ran")).status.attempts == log.find_job(key("ran")).status.code == 0


def test_what_could_not_be_claimed_has_failed_like_what_was(log):
    add(log, key("a"), key("b"), key("c"), key("d"))
    log.enqueue(over(key("a"), key("b")), "ticket-1")
    log.enqueue(over(key("c")), "ticket-2")
    log.claim_jobs(over(key("d")), "run", LAYOUT)
    assert log.fail_queued_jobs("ticket-1", UnavailableError.code, "away\0") == (key("a"), key("b"))
    assert log.fail_queued_jobs("ticket-1", UnavailableError.code, "away") == ()
    assert log.fail_queued_jobs("run", UnavailableError.code, "it has begun") == ()
    assert log.fail_queued_jobs("ticket-2", SourceError.code, "no such table") == (key("c"),)
    assert states(log) == {"a": "completed", "b": "completed", "c": "error", "d": "running"}
    status = log.find_job(key("a")).status
    assert (status.code, status.message, status.attempts) == (1_100, "away", 1)
    assert is_backing_off(status, status.end_at)
    assert [each.seconds for each in log.read_usage() if each.failed] == [0.0, 0.0, 0.0]
    with pytest.raises(FenceError):
        log.claim_jobs(over(key("c")), "run", LAYOUT, queued_as="ticket-2")


def test_one_owner_has_a_lease_until_it_lets_it_run_out(log, hand):
    assert log.take_leases({"of t"}, "one", 10) == {"of t"}
    assert log.take_leases({"of t", "of u"}, "two", 10) == {"of u"}
    assert log.take_leases([], "two", 10) == frozenset()
    hand.now += 9
    assert log.take_leases({"of t", "of u"}, "one", 10) == {"of t"}
    hand.now += 9
    assert log.take_leases({"of t"}, "two", 10) == frozenset()
    hand.now += 2
    assert log.take_leases({"of t", "of u"}, "two", 10) == {"of t", "of u"}
    assert log.take_leases({"of t"}, "one", 10) == frozenset()


def test_what_was_never_heard_of_gets_time_to_be_heard_of(log, hand):
    assert log.check_or_grant_leases(["a", "b"], unseen=60) == frozenset()
    hand.now += 59
    log.renew_leases(["b"], 30)
    assert log.check_or_grant_leases(["a", "b", "c"], unseen=60) == frozenset()
    hand.now += 2
    assert log.check_or_grant_leases(["a", "b"], unseen=60) == {"a"}
    hand.now += 30
    assert log.check_or_grant_leases(["a", "b"], unseen=60) == {"a", "b"}
    assert log.check_or_grant_leases([], unseen=60) == frozenset()


def test_a_run_that_stood_still_and_wakes_up_has_lost_what_was_taken_meanwhile(log, hand):
    add(log, key("taken"), key("untouched"))
    stale, mine = log.claim_jobs(over(key("taken"), key("untouched")), "run-1", LAYOUT)
    hand.now += log.leases.run + 1
    log.recover_run_jobs(["nobody"])
    log.renew_leases(["run-1"], log.leases.run)
    assert log.expire_unleased_jobs() == ()
    hand.now += log.leases.run + 1
    log.expire_unleased_jobs()
    (heir,) = log.claim_jobs(over(key("taken")), "run-2", LAYOUT)
    log.renew_leases(["run-1"], log.leases.run)
    for claim in (stale, mine):
        with pytest.raises(FenceError):
            advance(log, claim, {})
        with pytest.raises(FenceError):
            complete(log, claim, moment(5), {})
    assert heir.fence > stale.fence
    complete(log, heir, moment(5), {})


def test_a_clock_that_goes_wrong_takes_no_lease_away(make_log):
    """The clocks of workers and runners only date events; leases go by the log's clock."""
    log = make_log()
    ahead = SqlLog(log.engine, clock=lambda: T0 + timedelta(days=365))
    behind = SqlLog(log.engine, clock=lambda: T0 - timedelta(days=365))
    add(ahead, key("a"), key("b"))
    behind.claim_jobs(over(key("a")), "run-1", LAYOUT)
    ahead.claim_jobs(over(key("b")), "run-2", LAYOUT)
    assert ahead.expire_unleased_jobs() == behind.expire_unleased_jobs() == ()
    assert states(log) == {"a": "running", "b": "running"}


def test_the_databases_clock_runs(make_log):
    log = make_log()
    real = SqlLog(log.engine, leases=LeaseDurations(run=0.2))
    add(real, key("left"), key("kept"))
    real.claim_jobs(over(key("left")), "run-1", LAYOUT)
    real.claim_jobs(over(key("kept")), "run-2", LAYOUT)
    real.renew_leases(["run-2"], 3_600)
    freed, until = (), time.monotonic() + 60
    while not freed and time.monotonic() < until:
        freed = real.expire_unleased_jobs()
    assert freed == (key("left"),)
    assert states(real) == {"left": "completed", "kept": "running"}


def test_who_begins_while_a_lease_is_found_run_out_keeps_the_job(make_log, hand, monkeypatch):
    """The queued run begins between the look at leases and the lock of the rows."""
    log, other = make_log(), make_log()
    add(log, key())
    log.enqueue(over(key()), "ticket")
    hand.now += log.leases.queued + 1
    found = log.find_unleased_runs
    monkeypatch.setattr(
        log,
        "find_unleased_runs",
        lambda: (found(), other.claim_jobs(over(key()), "run", LAYOUT, queued_as="ticket"))[0],
    )
    assert log.expire_unleased_jobs() == ()
    assert states(log) == {"mirror": "running"}
