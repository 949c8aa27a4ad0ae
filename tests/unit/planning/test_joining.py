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
from iscp_dagster.model.states import Event, JobState
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
            seq=0,
            happened=Event.REGISTER,
            changed_at=T0,
        )
        for each in names
    ]
    from_ = Moment(start) if start >= 0 else START
    return DueIteration(
        iteration=replace(Iteration.from_jobs(jobs, to), from_=from_), jobs=jobs, cut=cut
    )


def log_of(sizes, held=None, *, feed=True):
    """Make a log where every range has these bytes by tenant, and the snapshot `held` or these."""
    snapshot = {t: SimpleNamespace(bytes=size) for t, size in (held or sizes).items()}
    facts = SimpleNamespace(metadata=SimpleNamespace(feed_enabled=feed))
    return SimpleNamespace(
        get_bytes_written=lambda after, upto: sizes,
        get_tenant_sizes=lambda version: snapshot,
        read_commits=lambda after, upto: [SimpleNamespace(version=upto, metadata=None)],
        get_facts=lambda version: facts,
        list_opened_files=lambda version: [],
        files=SimpleNamespace(find_missing=lambda paths: None),
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
    found = join_iterations(given_, SMALL)
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
    found = join_iterations([due(f"t{n}", n, 19) for n in range(9)], SMALL)
    (each,) = found
    assert (each.iteration.from_, len(each.iteration.tenants)) == (Moment(19), 9)


def test_what_a_trigger_kept_apart_is_not_joined():
    both = [due("a", 3, 3, names=("mirror",)), due("a", 3, 3, names=("text",))]
    assert len(join_iterations(both, SMALL)) == 2


def test_an_iteration_is_bounded_by_tenants_and_bytes_and_who_waits_longest_is_in_the_first(
    monkeypatch,
):
    monkeypatch.setattr(joining, "PARTS", 1)
    monkeypatch.setattr(joining, "MOST_TENANTS", 4)
    sizes = {f"t{n}": 10 for n in range(10)} | {"t3": MOST_BYTES}
    members = [due(f"t{n}", 3, 3, began=10 - n) for n in range(10)]
    found = join_iterations(members, log_of(sizes))
    tenants = [sorted(each.iteration.tenants) for each in found]
    assert tenants == [["t6", "t7", "t8", "t9"], ["t4", "t5"], ["t3"], ["t0", "t1", "t2"]]
    new = join_iterations([*members, due("new", 3, 3)], log_of(sizes))
    assert "new" in new[0].iteration.tenants


def test_a_run_reads_its_tenants_in_parts(monkeypatch):
    monkeypatch.setattr(joining, "MOST_TENANTS", 4)
    sizes = {f"t{n}": 10 for n in range(10)} | {"t3": MOST_BYTES}
    (whole,) = join_iterations(
        [due(f"t{n}", 3, 3, names=("mirror", "text")) for n in range(10)], log_of({})
    )
    found = split_iteration(whole.iteration, log_of(sizes))
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
    found = join_iterations([due(each, -1, -1) for each in "abc"], log_of(sizes))
    assert [sorted(each.iteration.tenants) for each in found] == [["a", "b"], ["c"]]


def test_tenants_that_may_be_read_whole_are_bounded_by_what_the_snapshot_holds(monkeypatch):
    """A few bytes changed, but without a feed a gigabyte is read for each."""
    monkeypatch.setattr(joining, "PARTS", 1)
    changed, held = dict.fromkeys("abc", 1), dict.fromkeys("abc", MOST_BYTES - 1)
    (whole,) = join_iterations([due(each, 3, 3) for each in "abc"], log_of(changed, held))
    gone = log_of(changed, held, feed=False)
    assert len(join_iterations([due(each, 3, 3) for each in "abc"], gone)) == 3
    assert len(split_iteration(whole.iteration, log_of(changed, held))) == 1
    assert len(split_iteration(whole.iteration, gone)) == 3


def test_steps_of_a_backlog_end_where_others_do_and_who_can_reach_the_end_does():
    steps = [due(f"t{n}", n, n, to=Moment(min(20, n + 6)), cut=n < 14) for n in (0, 3, 4, 12, 15)]
    found = join_iterations(steps, SMALL)
    assert [(sorted(e.iteration.tenants), e.iteration.to.version) for e in found] == [
        (["t0"], 6),
        (["t3"], 6),
        (["t4"], 6),
        (["t12"], 18),
        (["t15"], 20),
    ]


def test_a_tenant_of_narrow_bounds_does_not_have_the_others_crawl():
    narrow = due("narrow", 0, 0, to=Moment(1), cut=True)
    wide = [due(f"t{n}", 0, 0, to=Moment(9), cut=True) for n in range(3)]
    found = join_iterations([narrow, *wide], SMALL)
    assert [(len(e.iteration.tenants), e.iteration.to.version) for e in found] == [(1, 1), (3, 9)]


BACKLOG = 30


@st.composite
def backlogs(draw):
    """By tenant: what changed it, where its watermark is, and its bound on versions."""
    changes = st.frozensets(st.integers(1, BACKLOG), min_size=1, max_size=8)
    return [
        (draw(changes), draw(st.integers(0, BACKLOG - 1)), draw(st.sampled_from([2, 6, 6, 6, 40])))
        for _ in range(draw(st.integers(1, 8)))
    ]


def planned(tenants, at):
    """Return the next step of each tenant that is behind, as its trigger and bounds plan it."""
    found = []
    for number, (changes, _, versions) in enumerate(tenants):
        ahead = [each for each in changes if each > at[number]]
        if ahead:
            start = min(ahead) - 1
            last = min(BACKLOG, start + versions)
            step = due(f"t{number}", at[number], start, to=Moment(last), cut=last < BACKLOG)
            found.append(step)
    return found


def worked_off(tenants, join):
    """Return what each tenant's job got, in order, and the number of looks and of runs."""
    at = [since for _, since, _ in tenants]
    given_, looks, runs = [[] for _ in tenants], 0, 0
    while steps := planned(tenants, at):
        own = {key: step for step in steps for key in step.iteration.jobs}
        iterations = [each.iteration for each in join(steps)]
        assert sorted(key for each in iterations for key in each.jobs) == sorted(own)
        looks, runs = looks + 1, runs + len(iterations)
        for each in iterations:
            for job in each.jobs:
                step, number = own[job].iteration, int(job.tenant[1:])
                assert own[job].since <= each.from_.version <= step.from_.version
                taken = each.to.version - step.from_.version
                assert 3 * taken >= step.to.version - step.from_.version
                assert each.to <= step.to
                passed = range(each.from_.version + 1, each.to.version + 1)
                given_[number] += [each for each in passed if each in tenants[number][0]]
                at[number] = each.to.version
    return given_, looks, runs


@given(backlogs())
def test_joined_steps_give_each_tenant_what_its_own_would_and_in_as_few_runs_a_look(tenants):
    alone, looks, _ = worked_off(tenants, lambda steps: steps)
    together, joint_looks, _ = worked_off(tenants, lambda steps: join_iterations(steps, SMALL))
    assert together == alone
    assert together == [sorted(c for c in changes if c > since) for changes, since, _ in tenants]
    assert joint_looks <= 3 * looks
