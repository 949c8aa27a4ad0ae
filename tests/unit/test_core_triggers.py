"""The default trigger: its table of cases, and what holds for every plan."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp_dagster.core.errors import ConfigError
from iscp_dagster.core.iterations import Iteration
from iscp_dagster.core.jobs import Job, JobID, JobKey, JobStatus
from iscp_dagster.core.moment import START, Moment
from iscp_dagster.core.specs import ConsumerInfo, IterationDetail, JobSpec, TriggerSpec
from iscp_dagster.core.states import ACTIVE, STARTABLE, JobState
from iscp_dagster.core.triggers import TRIGGERS, iteration_of, plan

GOLDEN = Path(__file__).parents[1] / "golden" / "triggers.txt"
NOW = datetime(2025, 6, 18, tzinfo=timezone.utc)
JOB = re.compile(r"(?P<name>\w+)\s+(?P<at>start|\d+)\s+(?P<state>[a-z]+)(?P<options>.*)")


def make_job(
    name: str,
    version: int,
    state: JobState = JobState.COMPLETED,
    *,
    priority: int = 0,
    account: str = "acme",
    dropped: bool = False,
    **trigger,
) -> Job:
    consumer = ConsumerInfo(type="mirror", table="t", db="d", job=name)
    return Job(
        key=JobKey(account=account, table_id="id", job_name=name),
        job_id=1,
        name=JobID(db="d", table="t", job=name),
        spec=JobSpec(
            trigger=TriggerSpec(**trigger),
            detail=IterationDetail(priority=priority, consumer=consumer),
        ),
        state=state,
        watermark=START if version < 0 else Moment(version),
        status=JobStatus(),
        create_at=NOW,
        drop_at=NOW if dropped else None,
    )


def parse_job(line: str) -> Job:
    found = JOB.fullmatch(line)
    assert found, line
    options = found["options"].split()
    priority = [int(option[9:]) for option in options if option.startswith("priority=")]
    return make_job(
        found["name"],
        -1 if found["at"] == "start" else int(found["at"]),
        JobState[found["state"].upper()],
        priority=sum(priority),
        dropped="dropped" in options,
        independent="independent" in options,
    )


def shown(iteration: Iteration) -> str:
    jobs = " ".join(key.job_name for key in iteration.jobs)
    priority = f" priority {iteration.priority}" if iteration.priority else ""
    return f"plan {iteration.range} {jobs}{priority}"


def cases() -> list[tuple[str, list[str]]]:
    text = "\n".join(line for line in GOLDEN.read_text().splitlines() if not line.startswith("#"))
    blocks = [block.splitlines() for block in text.strip().split("\n\n")]
    return [(title, [line.strip() for line in lines]) for title, *lines in blocks]


@pytest.mark.parametrize(("title", "lines"), cases(), ids=[title for title, _ in cases()])
def test_the_default_trigger_plans_as_the_table_says(title, lines):
    jobs = [parse_job(line) for line in lines if not line.startswith(("latest", "plan"))]
    (latest,) = [int(line.split()[1]) for line in lines if line.startswith("latest")]
    planned = plan(jobs, START if latest < 0 else Moment(latest), NOW)
    assert [shown(i) for i in planned] == [line for line in lines if line.startswith("plan")]


def test_an_unknown_job_type_names_those_there_are():
    with pytest.raises(ConfigError, match=r"'hourly' is unknown; use one of: default\."):
        plan([make_job("a", 1, job_type="hourly")], Moment(5), NOW)


def test_a_trigger_of_ones_own_plans_the_jobs_of_its_type_only():
    seen = []

    def always(jobs, latest, now):
        seen.extend(job.key.job_name for job in jobs)
        return tuple(i for job in jobs for i in iteration_of([job], latest))

    jobs = [make_job("b", 2, job_type="mine"), make_job("a", 3, job_type="mine")]
    others = [make_job("c", 4), make_job("d", 4)]
    planned = plan([*jobs, *others], Moment(9), NOW, {**TRIGGERS, "mine": always})
    assert seen == ["a", "b"]
    assert [shown(i) for i in planned] == ["plan (4, 9] c d", "plan (3, 9] a", "plan (2, 9] b"]


def test_jobs_of_two_tenants_are_not_planned_together():
    with pytest.raises(ConfigError, match="one table and tenant"):
        plan([make_job("a", 1), make_job("a", 1, account="other")], Moment(5), NOW)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"jobs": ()}, "at least one"),
        ({"jobs": (make_job("a", 1).key,) * 2}, "each job once"),
        ({"tenants": frozenset({"other"})}, r"tenants \['other'\] has jobs"),
        ({"table_id": "else"}, "over table else"),
    ],
)
def test_an_iteration_that_contradicts_itself_is_refused(changes, message):
    (iteration,) = iteration_of([make_job("a", 1)], Moment(5))
    with pytest.raises(ConfigError, match=message):
        replace(iteration, **changes)


versions = st.integers(-1, 12)
a_job = st.builds(
    lambda version, state, independent, priority: make_job(
        "x", version, state, independent=independent, priority=priority
    ),
    versions,
    st.sampled_from(JobState),
    st.booleans(),
    st.integers(-3, 3),
)
some_jobs = st.lists(a_job, max_size=6).map(
    lambda jobs: [
        replace(job, key=replace(job.key, job_name=f"j{at}")) for at, job in enumerate(jobs)
    ]
)


@given(jobs=some_jobs, latest=st.integers(-1, 15).map(Moment), data=st.data())
def test_what_holds_for_every_plan(jobs, latest, data):
    planned = plan(jobs, latest, NOW)
    assert plan(data.draw(st.permutations(jobs)), latest, NOW) == planned
    by_key = {job.key: job for job in jobs}
    chosen = [key for iteration in planned for key in iteration.jobs]
    assert len(chosen) == len(set(chosen))
    for iteration in planned:
        assert iteration.from_.version < iteration.to.version
        for key in iteration.jobs:
            assert by_key[key].watermark == iteration.from_
            assert by_key[key].state in STARTABLE
    for job in jobs:
        due = job.state in STARTABLE and job.watermark.version < latest.version
        if job.spec.trigger.independent:
            assert (job.key in chosen) == due
        elif job.watermark == START and due:
            assert job.key in chosen


@given(jobs=some_jobs, latest=st.integers(12, 15).map(Moment), data=st.data())
def test_planning_and_completing_brings_every_job_that_may_run_to_the_latest(jobs, latest, data):
    rows = {job.key: job for job in jobs}
    running: list[Iteration] = []
    for job in jobs:
        if job.state in ACTIVE:
            rows[job.key] = replace(job, state=JobState.COMPLETED)
    for _ in range(3 * len(jobs) + 3):
        for iteration in plan(rows.values(), latest, NOW):
            running.append(iteration)
            for key in iteration.jobs:
                rows[key] = replace(rows[key], state=JobState.RUNNING)
        if not running:
            break
        done = running.pop(data.draw(st.integers(0, len(running) - 1)))
        for key in done.jobs:
            assert rows[key].watermark.version < done.to.version
            rows[key] = replace(rows[key], watermark=done.to, state=JobState.COMPLETED)
    assert not running
    for job in rows.values():
        assert job.state is JobState.ERROR or job.watermark == latest
