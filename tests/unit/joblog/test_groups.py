"""Jobs that change together change as they would one by one."""

from dataclasses import replace
from itertools import count
from random import Random
from types import SimpleNamespace

import pytest

from iscp_dagster.joblog import lifecycle
from iscp_dagster.joblog.iterations import EarlierBatches, FailedStep, WrittenStep
from iscp_dagster.joblog.sql.rows import group_jobs, to_row
from iscp_dagster.model.batch import BatchAction, BatchRecord, Phase
from iscp_dagster.model.errors import FenceError
from iscp_dagster.model.jobs import JobStatus, NewJob
from iscp_dagster.model.states import JobState
from support.jobs.log_rows import (
    LAYOUT,
    T0,
    add,
    key,
    log_in_memory,
    moment,
    name,
    over,
    span,
    spec,
)

KEYS = [key(job, tenant) for job in ("a", "b") for tenant in ("acme", "bär", "zed")]
STEPS = ("enqueue", "claim", "claim", "end", "end", "cancel", "pause", "rebuild", "drop")


class OneLog:
    """A log whose transitions are of all given jobs at once, or of each by itself."""

    def __init__(self, *, together):
        numbers = count(1)
        self.log = log_in_memory(clock=lambda: T0, new_id=lambda: next(numbers))
        self.together = together
        self.claims = {}
        add(self.log, *KEYS)

    def call(self, items, method):
        """Call the method with all the items, or with each; returns the outcomes by job."""
        if not items:
            return {}
        groups = [items] if self.together else [[item] for item in items]
        return {key: outcome for group in groups for key, outcome in method(group).items()}

    def enqueue(self, keys, start, to):
        return self.call(
            keys, lambda some: self.log.enqueue(over(*some, start=start, to=to), "run")
        )

    def claim(self, keys, start, to, **options):
        def claim_jobs(some):
            iteration = over(*some, start=start, to=to)
            claims = self.log.claim_jobs(iteration, "run", LAYOUT, **options)
            assert [claim.key for claim in claims] == list(some)
            return {claim.key: claim for claim in claims}

        self.claims |= self.call(keys, claim_jobs)

    def end(self, ends):
        """Advance, complete or fail what is claimed; returns the errors."""
        claims = {key: self.claims.pop(key) for key in ends if key in self.claims}
        failed = [
            FailedStep(claim=claim, code=ends[key]["code"], message="oh")
            for key, claim in claims.items()
            if ends[key]["code"]
        ]
        written = [
            WrittenStep(claim=claim, to=claim.step.range.to, counts=ends[key]["counts"])
            for key, claim in claims.items()
            if not ends[key]["code"]
        ]
        outcomes = self.call([step for step in written if not step.claim.last], self.log.advance)
        outcomes |= self.call([step for step in written if step.claim.last], self.log.complete)
        outcomes |= self.call(failed, self.log.fail)
        errors = {key: str(end) for key, end in outcomes.items() if isinstance(end, FenceError)}
        self.claims |= {key: end for key, end in outcomes.items() if key not in errors}
        return errors

    def read(self):
        """The jobs, their claims and their history, without what depends on a shared scan."""
        jobs = [
            replace(job, status=replace(job.status, shared_by=1))
            for job in self.log.list_jobs(include_dropped=True)
        ]
        history = [replace(entry, number=0, seconds=0.0) for entry in self.log.read_history()]
        return jobs, [job.seq for job in jobs], self.claims, sorted(history, key=repr)


def list_startable(log, keys):
    """The chosen jobs that can be claimed together, with their version."""
    jobs = [
        job
        for job in log.list_jobs()
        if job.key in keys and job.state in {JobState.COMPLETED, JobState.PENDING}
    ]
    start = min((job.watermark.version for job in jobs), default=-1)
    return [job.key for job in jobs if job.watermark.version == start], start


@pytest.mark.parametrize("seed", range(6))
def test_jobs_that_change_together_change_as_they_would_one_by_one(seed):
    random = Random(seed)
    together, alone = logs = OneLog(together=True), OneLog(together=False)
    for to in range(5, 35):
        step, keys = random.choice(STEPS), sorted(random.sample(KEYS, random.randint(2, len(KEYS))))
        startable, start = list_startable(together.log, KEYS)
        layouts = {"zed": {"rows": 7}} if random.random() < 0.3 else {}
        ends = {
            key: {
                "code": random.choice([0, 0, 0, 1_100, 10_200]),
                "counts": {"inserted": random.randint(0, 2), "bytes": random.randint(0, 2)},
            }
            for key in keys
        }
        for log in logs:
            if step == "claim":
                log.claim(startable, start, to, layouts=layouts)
            elif step not in {"enqueue", "end"}:
                change(log.log, step, keys[0])
        if step == "enqueue":
            assert_equal_errors([log.enqueue(keys, start, to) for log in logs])
        elif step == "end":
            assert_equal_errors([log.end(ends) for log in logs])
        assert together.read() == alone.read()


def assert_equal_errors(errors):
    first, second = ({key: str(error) for key, error in by_key.items()} for by_key in errors)
    assert first == second


def change(log, step, key_):
    job = log.find_job(key_)
    if step == "cancel":
        log.cancel([key_])
    elif step == "rebuild":
        log.rebuild([key_])
    elif job is None:
        add(log, key_)
    elif step == "pause":
        log.pause(key_.tenant, job.name)
    else:
        log.unregister(key_.tenant, job.name)


def test_earlier_batches_are_each_jobs_own():
    """What a state store recorded, and what cannot be repeated, differs among like jobs."""
    log, keys = OneLog(together=True), KEYS[:3]
    log.claim(keys, -1, 5)
    log.end({key: {"code": 0, "counts": {}} for key in keys})
    log.claim(keys, 5, 6)
    log.end({key: {"code": 1_100, "counts": {}} for key in keys})
    stored = BatchRecord(range=span(5, 6), phase=Phase.AFTER, layout=LAYOUT)
    earlier = EarlierBatches(previous={keys[0]: stored}, unrepeatable=frozenset({keys[1]}))
    log.claim(keys, 5, 6, earlier=earlier)
    assert [log.claims[key].step.action for key in keys] == [
        BatchAction.SKIP,
        BatchAction.DEAD_LETTER,
        BatchAction.REPLAY,
    ]


OTHER_VALUES = {
    "spec": spec("a", priority=3),
    "state": JobState.ERROR,
    "watermark": moment(4),
    "drop_at": T0,
    "run_id": "another",
    "batch": BatchRecord(range=span(2, 4), phase=Phase.AFTER, layout=LAYOUT),
    "queued_to": moment(9),
    "paused_at": T0,
    "rebuild": True,
    "collected_at": T0,
}


def group_rows(*jobs):
    """The keys of each group."""
    groups = group_jobs([SimpleNamespace(**to_row(job)) for job in jobs], by_status=True)
    assert [group.get_job(member) for group in groups for member in group.members] == list(jobs)
    return [[member.key for member in group.members] for group in groups]


def make_job(tenant, **fields):
    new = NewJob(tenant=tenant, name=name("a"), table_id="t-1", spec=spec("a"))
    return replace(lifecycle.register_job(new, registration=1, seq=0, now=T0), **fields)


def test_jobs_are_alike_whatever_is_their_own():
    own = make_job("zed", registration=7, seq=9, status=JobStatus(counts={"inserted": 3}))
    assert group_rows(make_job("acme"), own) == [[key("a", "acme"), key("a", "zed")]]


@pytest.mark.parametrize("field", OTHER_VALUES)
def test_jobs_with_another_value_are_in_another_group(field):
    other = make_job("zed", **{field: OTHER_VALUES[field]})
    assert group_rows(make_job("acme"), other) == [[key("a", "acme")], [key("a", "zed")]]


@pytest.mark.parametrize("field", ["attempts", "repairs", "code"])
def test_of_a_status_only_what_the_next_iteration_keeps_counts_before_it(field):
    other = make_job("zed", status=JobStatus(**{field: 2}))
    assert len(group_rows(make_job("acme"), other)) == 2
    rows = [SimpleNamespace(**to_row(job)) for job in (make_job("acme"), other)]
    groups = group_jobs(rows, by_status=False)
    assert len(groups) == (1 if field == "code" else 2)
