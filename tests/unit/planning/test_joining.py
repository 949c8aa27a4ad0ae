"""Due iterations of tenants are joined into as few as possible, with each job in one."""

from __future__ import annotations

from datetime import timedelta
from itertools import combinations
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st
from logs import T0, key, name, spec

from iscp_dagster.joblog.iterations import Iteration
from iscp_dagster.model.jobs import Job, JobStatus
from iscp_dagster.model.moment import START, Moment
from iscp_dagster.model.states import Event, JobState
from iscp_dagster.planning import joining
from iscp_dagster.planning.joining import MOST_BYTES, Due, joined, parts

END = Moment(20)


def due(tenant, since, start, *, to=END, names=("mirror",), priority=0, began=None):
    """Return one tenant's iteration from `start`; the log has its jobs at `since`."""
    jobs = [
        Job(
            key=key(each, tenant),
            registration=1,
            name=name(each),
            spec=spec(each, priority),
            state=JobState.COMPLETED,
            watermark=Moment(since) if since >= 0 else START,
            status=JobStatus(start_at=None if began is None else T0 + timedelta(seconds=began)),
            create_at=T0,
            seq=0,
            happened=Event.REGISTER,
            changed_at=T0,
        )
        for each in names
    ]
    iteration = Iteration(
        table_id="t-1",
        tenants=frozenset({tenant}),
        jobs=tuple(job.key for job in jobs),
        from_=Moment(start) if start >= 0 else START,
        to=to,
        priority=priority,
    )
    return Due(iteration=iteration, jobs=jobs)


def log_of(sizes):
    """Make a log where every range, and the snapshot, has these bytes by tenant."""
    held = {tenant: SimpleNamespace(bytes=size) for tenant, size in sizes.items()}
    return SimpleNamespace(
        bytes_written=lambda after, upto: sizes,
        tenant_sizes=lambda version: held,
    )


SMALL = log_of({})


@st.composite
def dues(draw):
    found = []
    for number in range(draw(st.integers(1, 9))):
        start = draw(st.integers(-1, 12))
        since = -1 if start < 0 else draw(st.integers(0, start))
        found.append(
            due(
                f"t{number}",
                since,
                start,
                to=draw(st.sampled_from([END, Moment(15)])),
                names=draw(st.sampled_from([("mirror",), ("mirror", "text")])),
                priority=draw(st.sampled_from([0, 5])),
            )
        )
    return found


def alike(each):
    names = frozenset(job.job_name for job in each.iteration.jobs)
    return each.iteration.to, each.iteration.priority, names


def fewest(members):
    """Return the least number of versions such that each member's bounds contain one."""
    places = sorted({each.iteration.from_.version for each in members})
    for count in range(1, len(places) + 1):
        for chosen in combinations(places, count):
            if all(
                any(each.since <= at <= each.iteration.from_.version for at in chosen)
                for each in members
            ):
                return count
    raise AssertionError(members)


@given(dues())
def test_each_job_is_in_one_iteration_that_it_may_be_read_in_and_there_are_as_few_as_may_be(given_):
    found = joined(given_, SMALL)
    of = {job: each for each in given_ for job in each.iteration.jobs}
    taken = [job for each in found for job in each.iteration.jobs]
    assert sorted(taken) == sorted(of)
    for each in found:
        start = each.iteration.from_.version
        for job in each.iteration.jobs:
            before = of[job]
            assert before.since <= start <= before.iteration.from_.version
            assert alike(before) == alike(each)
        assert {job.key for job in each.jobs} == set(each.iteration.jobs)
    groups = {}
    for each in given_:
        groups.setdefault(alike(each), []).append(each)
    assert len(found) == sum(map(fewest, groups.values()))


def test_what_one_commit_changed_is_one_iteration_however_long_each_was_idle():
    found = joined([due(f"t{n}", n, 19) for n in range(9)], SMALL)
    (each,) = found
    assert (each.iteration.from_, len(each.iteration.tenants)) == (Moment(19), 9)


def test_what_a_trigger_kept_apart_is_not_joined():
    both = [due("a", 3, 3, names=("mirror",)), due("a", 3, 3, names=("text",))]
    assert len(joined(both, SMALL)) == 2


def test_an_iteration_is_bounded_by_tenants_and_bytes_and_who_waits_longest_is_in_the_first(
    monkeypatch,
):
    monkeypatch.setattr(joining, "PARTS", 1)
    monkeypatch.setattr(joining, "MOST_TENANTS", 4)
    sizes = {f"t{n}": 10 for n in range(10)} | {"t3": MOST_BYTES}
    members = [due(f"t{n}", 3, 3, began=10 - n) for n in range(10)]
    found = joined(members, log_of(sizes))
    tenants = [sorted(each.iteration.tenants) for each in found]
    assert tenants == [["t6", "t7", "t8", "t9"], ["t4", "t5"], ["t3"], ["t0", "t1", "t2"]]
    new = joined([*members, due("new", 3, 3)], log_of(sizes))
    assert "new" in new[0].iteration.tenants


def test_a_run_reads_its_tenants_in_parts(monkeypatch):
    monkeypatch.setattr(joining, "MOST_TENANTS", 4)
    sizes = {f"t{n}": 10 for n in range(10)} | {"t3": MOST_BYTES}
    (whole,) = joined([due(f"t{n}", 3, 3, names=("mirror", "text")) for n in range(10)], log_of({}))
    found = parts(whole.iteration, log_of(sizes))
    assert [sorted(each.tenants) for each in found] == [
        ["t0", "t1", "t2"],
        ["t3"],
        ["t4", "t5", "t6", "t7"],
        ["t8", "t9"],
    ]
    assert sorted(key for each in found for key in each.jobs) == sorted(whole.iteration.jobs)


def test_first_iterations_are_bounded_by_what_the_snapshot_holds(monkeypatch):
    monkeypatch.setattr(joining, "PARTS", 1)
    sizes = {"a": MOST_BYTES - 1, "b": 1, "c": 1}
    found = joined([due(each, -1, -1) for each in "abc"], log_of(sizes))
    assert [sorted(each.iteration.tenants) for each in found] == [["a", "b"], ["c"]]
