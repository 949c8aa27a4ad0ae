"""Due iterations of tenants are joined into as few as possible, with each job in one."""

from dataclasses import replace
from datetime import timedelta
from itertools import combinations
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from iscp_dagster.joblog.iterations import Iteration
from iscp_dagster.model.jobs import Job, JobStatus
from iscp_dagster.model.moment import START, Moment
from iscp_dagster.model.states import JobState
from iscp_dagster.planning import joining
from iscp_dagster.planning.joining import MOST_BYTES, DueIteration, join_iterations, split_iteration
from support.jobs.log_rows import T0, key, name, spec

END = Moment(20)


def due(tenant, since, start, *, to=END, names=("mirror",), priority=0, began=None, cut=False):
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
        )
        for each in names
    ]
    from_ = Moment(start) if start >= 0 else START
    return DueIteration(
        iteration=replace(Iteration.from_jobs(jobs, to), from_=from_), jobs=jobs, is_partial=cut
    )


def make_log(sizes, snapshot_sizes=None, *, feed=True, tenant_in_rows=False):
    """Make a log where every range has these bytes by tenant, as has the snapshot by default."""
    snapshot = {t: SimpleNamespace(bytes=size) for t, size in (snapshot_sizes or sizes).items()}
    facts = SimpleNamespace(metadata=SimpleNamespace(feed_enabled=feed))
    return SimpleNamespace(
        tenant_in_rows=tenant_in_rows,
        get_bytes_written=lambda after, upto: sizes,
        get_tenant_sizes=lambda version: snapshot,
        read_commits=lambda after, upto: [SimpleNamespace(version=upto, metadata=None)],
        get_facts=lambda version: facts,
        list_opened_files=lambda version: [],
        files=SimpleNamespace(find_missing=lambda paths: None),
    )


SMALL = make_log({})


@st.composite
def dues(draw):
    members = []
    for number in range(draw(st.integers(1, 9))):
        start = draw(st.integers(-1, 12))
        since = -1 if start < 0 else draw(st.integers(0, start))
        to, priority = draw(st.sampled_from([END, Moment(15)])), draw(st.sampled_from([0, 5]))
        names = draw(st.sampled_from([("mirror",), ("mirror", "text")]))
        members.append(due(f"t{number}", since, start, to=to, names=names, priority=priority))
    return members


def get_group(member):
    """Return what the members of one joined iteration have in common."""
    names = frozenset(job.job_name for job in member.iteration.jobs)
    return member.iteration.to, member.iteration.priority, names


def count_fewest(members):
    """Return the least number of versions such that each member's bounds contain one."""
    starts = sorted({each.iteration.from_.version for each in members})
    for count in range(1, len(starts) + 1):
        for chosen in combinations(starts, count):
            if all(
                any(each.earliest_start <= at <= each.iteration.from_.version for at in chosen)
                for each in members
            ):
                return count
    raise AssertionError(members)


@given(dues())
def test_each_job_is_in_one_iteration_within_its_bounds_and_there_are_as_few_as_possible(members):
    joined = join_iterations(members, SMALL)
    by_job = {job: each for each in members for job in each.iteration.jobs}
    assert sorted(job for each in joined for job in each.iteration.jobs) == sorted(by_job)
    for each in joined:
        start = each.iteration.from_.version
        for job in each.iteration.jobs:
            member = by_job[job]
            assert member.earliest_start <= start <= member.iteration.from_.version
            assert get_group(member) == get_group(each)
        assert {job.key for job in each.jobs} == set(each.iteration.jobs)
    groups = {}
    for each in members:
        groups.setdefault(get_group(each), []).append(each)
    assert len(joined) == sum(map(count_fewest, groups.values()))


def test_bounds_split_an_iteration_and_those_who_wait_longest_are_in_the_first(monkeypatch):
    """The bounds are of tenants and of bytes."""
    monkeypatch.setattr(joining, "SCANS_PER_RUN", 1)
    monkeypatch.setattr(joining, "MOST_TENANTS", 4)
    log = make_log({f"t{n}": 10 for n in range(10)} | {"t3": MOST_BYTES})
    members = [due(f"t{n}", 3, 3, began=10 - n) for n in range(10)]
    tenants = [sorted(each.iteration.tenants) for each in join_iterations(members, log)]
    assert tenants == [["t6", "t7", "t8", "t9"], ["t4", "t5"], ["t3"], ["t0", "t1", "t2"]]
    first, *_ = join_iterations([*members, due("new", 3, 3)], log)
    assert "new" in first.iteration.tenants


def test_a_run_reads_its_tenants_in_parts(monkeypatch):
    monkeypatch.setattr(joining, "MOST_TENANTS", 4)
    sizes = {f"t{n}": 10 for n in range(10)} | {"t3": MOST_BYTES}
    members = [due(f"t{n}", 3, 3, names=("mirror", "text")) for n in range(10)]
    (whole,) = join_iterations(members, SMALL)
    parts = split_iteration(whole.iteration, make_log(sizes))
    tenants = [" ".join(sorted(each.tenants)) for each in parts]
    assert tenants == ["t0 t1 t2", "t3", "t4 t5 t6 t7", "t8 t9"]
    assert sorted(job for each in parts for job in each.jobs) == sorted(whole.iteration.jobs)


def test_a_scan_of_tenants_that_share_files_reads_more_of_them(monkeypatch):
    monkeypatch.setattr(joining, "MOST_TENANTS", 2)
    monkeypatch.setattr(joining, "MOST_TENANTS_IN_BUCKETS", 5)
    (whole,) = join_iterations([due(f"t{n}", 3, 3) for n in range(10)], SMALL)
    parts = split_iteration(whole.iteration, make_log({}, tenant_in_rows=True))
    assert [len(each.tenants) for each in parts] == [5, 5]


def test_first_iterations_are_bounded_by_the_sizes_of_the_snapshot(monkeypatch):
    monkeypatch.setattr(joining, "SCANS_PER_RUN", 1)
    log = make_log({"a": MOST_BYTES - 1, "b": 1, "c": 1})
    joined = join_iterations([due(tenant, -1, -1) for tenant in "abc"], log)
    assert [sorted(each.iteration.tenants) for each in joined] == [["a", "b"], ["c"]]


def test_tenants_that_may_be_read_whole_are_bounded_by_the_sizes_of_the_snapshot(monkeypatch):
    """A few bytes changed, but without a feed a gigabyte is read for each."""
    monkeypatch.setattr(joining, "SCANS_PER_RUN", 1)
    sizes = dict.fromkeys("abc", 1), dict.fromkeys("abc", MOST_BYTES - 1)
    members = [due(tenant, 3, 3) for tenant in "abc"]
    fed, unfed = make_log(*sizes), make_log(*sizes, feed=False)
    (whole,) = join_iterations(members, fed)
    assert len(join_iterations(members, unfed)) == 3
    assert len(split_iteration(whole.iteration, fed)) == 1
    assert len(split_iteration(whole.iteration, unfed)) == 3


def test_steps_of_a_backlog_end_where_others_do_or_at_the_end_if_it_is_in_reach():
    steps = [due(f"t{n}", n, n, to=Moment(min(20, n + 6)), cut=n < 14) for n in (0, 3, 4, 12, 15)]
    joined = [each.iteration for each in join_iterations(steps, SMALL)]
    ends = [(*each.tenants, each.to.version) for each in joined]
    assert ends == [("t0", 6), ("t3", 6), ("t4", 6), ("t12", 18), ("t15", 20)]


def test_a_tenant_of_narrow_bounds_does_not_slow_down_the_others():
    narrow = due("narrow", 0, 0, to=Moment(1), cut=True)
    wide = [due(f"t{n}", 0, 0, to=Moment(9), cut=True) for n in range(3)]
    joined = [each.iteration for each in join_iterations([narrow, *wide], SMALL)]
    assert [(len(each.tenants), each.to.version) for each in joined] == [(1, 1), (3, 9)]


BACKLOG = 30


@st.composite
def backlogs(draw):
    """By tenant: the versions that changed it, its watermark's version, its bound on versions."""
    changes = st.frozensets(st.integers(1, BACKLOG), min_size=1, max_size=8)
    return [
        (draw(changes), draw(st.integers(0, BACKLOG - 1)), draw(st.sampled_from([2, 6, 6, 6, 40])))
        for _ in range(draw(st.integers(1, 8)))
    ]


def plan_steps(tenants, versions):
    """Return the next step of each tenant that is behind, as its trigger and bounds plan it."""
    steps = []
    for number, (changes, _, bound) in enumerate(tenants):
        ahead = [each for each in changes if each > versions[number]]
        if ahead:
            start = min(ahead) - 1
            last = min(BACKLOG, start + bound)
            cut = last < BACKLOG
            steps.append(due(f"t{number}", versions[number], start, to=Moment(last), cut=cut))
    return steps


def work_off(tenants, join):
    """Return the changes that each tenant's job got, in order, and the number of looks."""
    versions = [watermark for _, watermark, _ in tenants]
    received, looks = [[] for _ in tenants], 0
    while steps := plan_steps(tenants, versions):
        by_job = {job: step for step in steps for job in step.iteration.jobs}
        iterations = [each.iteration for each in join(steps)]
        assert sorted(job for each in iterations for job in each.jobs) == sorted(by_job)
        looks += 1
        for each in iterations:
            for job in each.jobs:
                step, number = by_job[job].iteration, int(job.tenant[1:])
                assert by_job[job].earliest_start <= each.from_.version <= step.from_.version
                taken = each.to.version - step.from_.version
                assert 3 * taken >= step.to.version - step.from_.version
                assert each.to <= step.to
                passed = range(each.from_.version + 1, each.to.version + 1)
                received[number] += [each for each in passed if each in tenants[number][0]]
                versions[number] = each.to.version
    return received, looks


@given(backlogs())
def test_joined_steps_give_each_tenant_its_own_changes_in_few_looks(tenants):
    alone, looks = work_off(tenants, lambda steps: steps)
    together, joint_looks = work_off(tenants, lambda steps: join_iterations(steps, SMALL))
    assert together == alone
    assert together == [sorted(c for c in changes if c > since) for changes, since, _ in tenants]
    assert joint_looks <= 3 * looks
