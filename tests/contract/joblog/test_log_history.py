"""Garbage, history and usage, in every ISCP log."""

import itertools
from dataclasses import replace
from datetime import timedelta

from iscp_dagster.joblog.history import Bookmark
from iscp_dagster.model.moment import START
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
)

pytestmark = mostly_on_sqlite


def test_a_dropped_row_is_forgotten_when_it_is_old_and_still_dropped(log):
    add(log, key("a"), key("b"), key("c"))
    log.unregister("acme", name("a"))
    log.unregister("acme", name("b"))
    dropped = log.list_dropped(T0 + timedelta(hours=1))
    assert [job.key for job in dropped] == [key("a"), key("b")]
    assert log.list_dropped(T0) == []
    add(log, key("b"))
    assert log.mark_collected([*dropped, *log.list_jobs()]) == 1
    marked = {job.key: job.collected_at for job in log.list_jobs(include_dropped=True)}
    assert [each for each, at in marked.items() if at is not None] == [key("a")]
    assert log.delete_dropped([*dropped, *log.list_jobs()]) == 1
    assert [job.key for job in log.list_jobs(include_dropped=True)] == [key("b"), key("c")]


def test_history_says_who_did_what_when(log):
    add(log, key())
    for claim in log.claim_jobs(over(key()), "run-1", LAYOUT):
        complete(log, claim, moment(5), {"inserted": 3, "bytes": 9})
    for claim in log.claim_jobs(over(key(), start=5, to=7), "run-2", LAYOUT):
        fail(log, claim, 1_100, "away")
    log.pause("acme", name())
    log.unregister("acme", name())
    history = log.read_history(tenant="acme", name=name())
    events = [
        (e.event.value, e.from_state and e.from_state.label, e.to_state.label, e.actor, e.code)
        for e in history
    ]
    assert events == [
        ("register", None, "completed", "tester", 0),
        ("start", "completed", "running", "run-1", 0),
        ("complete", "running", "completed", "run-1", 0),
        ("start", "completed", "running", "run-2", 0),
        ("fail temporarily", "running", "completed", "run-2", 1_100),
        ("pause", "completed", "completed", "tester", 0),
        ("unregister", "completed", "completed", "tester", 0),
    ]
    assert [e.number for e in history] == sorted({e.number for e in history})
    assert all(one.at < other.at for one, other in itertools.pairwise(history))
    assert (history[2].from_, history[2].to, history[2].inserted) == (START, moment(5), 3)
    assert history[2].seconds > 0
    assert log.read_history(since=history[5].at) == history[5:]
    assert log.read_history(most=2) == history[5:]
    assert log.read_history(tenant="zed") == log.read_history(name=name("other")) == []


def test_the_tenants_of_a_run_are_known_when_later_runs_have_their_jobs(log):
    a, b, c, d = (key("a", tenant) for tenant in ("acme", "busy", "calm", "dull"))
    at(log, 5, a, b)
    add(log, c, d)
    for run, some, start in (("second", b, 5), ("second", c, -1), ("third", a, 5)):
        log.claim_jobs(over(some, start=start, to=7), run, LAYOUT)
    log.enqueue(over(d), "a dispatch")
    assert log.read_run_tenants(["first"]) == {"acme", "busy"}
    assert log.read_run_tenants(["second", "a dispatch"]) == {"busy", "calm", "dull"}
    assert log.read_run_tenants(["another"]) == log.read_run_tenants([]) == frozenset()


def test_usage_sums_what_ended_by_tenant_and_job(log):
    at(log, 5, key("a"), key("a", "zed"))
    for claim in log.claim_jobs(over(key("a"), start=5, to=7), "run-1", LAYOUT):
        complete(log, claim, moment(7), {"inserted": 2, "deleted": 1, "bytes": 10})
    later = log.read_history()[-1].at
    for claim in log.claim_jobs(over(key("a"), start=7, to=9), "run-2", LAYOUT):
        fail(log, claim, 1_100, "away")
    acme, zed = log.read_usage()
    assert (acme.tenant, acme.name, acme.iterations, acme.failed) == ("acme", name("a"), 2, 1)
    assert (acme.inserted, acme.deleted, acme.bytes) == (2, 1, 10)
    assert acme.seconds == sum(e.seconds for e in log.read_history(tenant="acme"))
    assert (zed.tenant, zed.iterations, zed.failed) == ("zed", 1, 0)
    table = f"{zed.name.db}.{zed.name.table}"
    assert log.read_usage(tenant="zed") == log.read_usage(tenant="zed", table=table) == [zed]
    assert log.read_usage(table="shop.nothing") == log.read_usage(tenant="nobody") == []
    (since,) = log.read_usage(later + timedelta(microseconds=1))
    assert (since.iterations, since.failed, since.canceled) == (0, 1, 0)


def test_usage_charges_the_time_of_what_was_canceled_or_lost(log):
    at(log, 5, *map(key, "abcd"))
    before = {each.name: each.seconds for each in log.read_usage()}
    for each in "abc":
        log.claim_jobs(over(key(each), start=5, to=7), f"run-{each}", LAYOUT)
    add(log, key("only waited"))
    log.enqueue(over(key("only waited")), "run-4")
    log.cancel([key("a"), key("only waited")])
    log.recover_run_jobs({"run-b"})
    log.mark_stranded("t-1", 10_220, "gone")
    assert {each.name for each in log.read_usage()} == before.keys()
    cut = {each.name: each for each in log.read_usage() if each.canceled}
    assert list(cut) == [name("a"), name("b"), name("c")]
    assert all(each.seconds > before[each.name] for each in cut.values())
    assert cut[name("a")].seconds == sum(e.seconds for e in log.read_history(name=name("a")))


def test_who_shares_a_scan_bears_a_part_of_its_time(log):
    at(log, 5, *map(key, "ab"))
    claims = log.claim_jobs(over(key("a"), key("b"), start=5, to=7), "run-1", LAYOUT)
    complete(log, claims[0], moment(7), {"inserted": 1})
    log.cancel([key("b")])
    for each in "ab":
        ended = log.read_history(name=name(each))[-1]
        status = log.list_jobs(name=name(each))[0].status
        whole = (status.end_at - status.start_at).total_seconds()
        assert ended.seconds == whole / 2 > 0


def test_what_was_canceled_is_charged_for_what_it_had_counted(log):
    at(log, 5, key("a"))
    log.claim_jobs(over(key("a"), start=5, to=7), "run-1", LAYOUT)
    log.recover_run_jobs({"run-1"})
    # The replay of the batch that run-1 left comes first, as a separate step.
    (claim,) = log.claim_jobs(over(key("a"), start=5, to=9), "run-2", LAYOUT)
    assert len(claim.steps) == 2
    advance(log, claim, {"inserted": 3, "deleted": 1, "bytes": 20})
    log.cancel([key("a")])
    canceled = log.read_history(name=name("a"))[-1]
    assert (canceled.inserted, canceled.deleted, canceled.bytes) == (3, 1, 20)
    before = sum(each.inserted for each in log.read_history(name=name("a"))[:-1])
    (used,) = log.read_usage()
    assert (used.inserted, used.canceled) == (before + 3, 2)


def test_touched_are_the_tenants_that_something_happened_to(log):
    empty = log.read_changed_tenants(None).upto
    assert log.read_changed_tenants(empty).complete
    add(log, key())
    assert log.read_changed_tenants(empty).tenants == {("t-1", "acme")}
    start = log.read_changed_tenants(None)
    assert start.tenants == frozenset()
    add(log, key(tenant="zed"), key(tenant="zed", table_id="t-2"))
    then = log.read_changed_tenants(start.upto)
    assert then.tenants == {("t-1", "zed"), ("t-2", "zed")}
    assert log.read_changed_tenants(then.upto).tenants == frozenset()
    log.pause("acme", name())
    then = log.read_changed_tenants(then.upto)
    assert (start.complete, then.complete) == (False, True)
    assert then.tenants == {("t-1", "acme")}
    # The end of what is queued or begins is reported, and not its beginning.
    add(log, key("b"))
    start = log.read_changed_tenants(None)
    log.enqueue(over(key("b")), "run-1")
    (claim,) = log.claim_jobs(over(key("b")), "run-1", LAYOUT)
    assert log.read_changed_tenants(start.upto).tenants == frozenset()
    changed = log.read_changed_tenants(start.upto, beginnings=True)
    assert changed.tenants == {("t-1", "acme")}
    complete(log, claim, moment(5), {})
    assert log.read_changed_tenants(start.upto).tenants == {("t-1", "acme")}
    then = log.read_changed_tenants(start.upto)
    # A bookmark is good for the log that gave it.
    read = Bookmark.parse(str(then.upto))
    assert (read, log.read_changed_tenants(read).complete) == (then.upto, True)
    assert not log.read_changed_tenants(replace(read, sign="0")).complete
    assert not log.read_changed_tenants(replace(read, number=read.number + 7)).complete


def test_a_bookmark_stays_good_when_history_is_pruned(log):
    add(log, key("a"), key("b"))
    start = log.read_changed_tenants(None)
    assert log.prune(log.read_history()[0].at) == 0
    assert log.prune(log.read_history()[-1].at + timedelta(microseconds=1)) == 1
    assert [entry.key for entry in log.read_history()] == [key("b")]
    again = log.read_changed_tenants(start.upto)
    assert (again.complete, again.tenants) == (True, frozenset())
    add(log, key("c", "zed"))
    assert log.read_changed_tenants(start.upto).tenants == {("t-1", "zed")}
    assert log.prune(log.read_history()[-1].at + timedelta(microseconds=1)) == 1
    assert not log.read_changed_tenants(start.upto).complete
