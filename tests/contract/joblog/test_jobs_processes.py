"""The job API in several processes at once: a transaction of the ISCP log decides each call."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from iscp_dagster import Mirror, SourceTable
from iscp_dagster.api.jobs import Jobs
from iscp_dagster.joblog.iterations import Iteration
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.joblog.updates import SpecUpdate
from iscp_dagster.model.clock import get_utc_now
from iscp_dagster.model.errors import FenceError, NoSuchJobError, WaitError
from iscp_dagster.model.jobs import JobID, NewJob
from iscp_dagster.model.specs import ConsumerInfo, IterationDetail, JobSpec
from iscp_dagster.model.states import Event, JobState
from support.jobs.log_rows import complete
from support.jobs.one_table import FEED, in_memory
from support.workers.parallel_processes import at_once

pytestmark = pytest.mark.slow

NAME = JobID(db="shop", table="orders", job="mirror")
EVERYONES = JobID(db="shop", table="orders", job="everyones")
PROCESSES, ROUNDS = 4, 6
TENANTS = ("eu", "us", "xx")
OPTIONS = {"preload": ["iscp_dagster.api.jobs", "deltalake"], "processes": PROCESSES}


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path) -> str:
    if request.param == "postgresql":
        return request.getfixturevalue("new_postgres")()
    return f"sqlite:///{tmp_path}/log.db"


@pytest.fixture
def orders(tmp_path) -> str:
    path = str(tmp_path / "orders")
    rows = pa.table({"id": [1] * len(TENANTS), "region": list(TENANTS)})
    write_deltalake(path, rows, partition_by=["region"], configuration=FEED)
    return path


def jobs_of(url: str, orders: str) -> Jobs:
    source = SourceTable(
        "shop.orders", key="id", tenant="region", path=orders, indexes=[Mirror(auto_register=False)]
    )
    deployment = replace(in_memory(get_utc_now), log=SqlLog(url))
    return Jobs(deployment=deployment, sources=[source], cancel_runs=len)


def spec(job: JobID) -> JobSpec:
    consumer = ConsumerInfo(type="mirror", db=job.db, table=job.table, job=job.job)
    return JobSpec(detail=IterationDetail(consumer=consumer))


def call_together(wait, number: int, url: str, orders: str) -> tuple[dict[str, bool], Counter[str]]:
    """Make each call at the same moment as all others, then random calls; return the results."""
    jobs, chance = jobs_of(url, orders), random.Random(number)
    update = SpecUpdate(priority=number + 1)
    together = {
        "register": lambda: jobs.register_job("eu", NAME, spec(NAME)),
        "update": lambda: jobs.update_job_spec("eu", NAME, update, interrupt=True),
        "pause": lambda: jobs.pause_job("eu", NAME),
        "resume": lambda: jobs.resume_job("eu", NAME),
        "register all": lambda: jobs.register_job("*", EVERYONES, spec(EVERYONES)),
        "pause all": lambda: jobs.pause_job("*", EVERYONES),
        "resume all": lambda: jobs.resume_job("*", EVERYONES),
        "unregister all": lambda: jobs.unregister_job("*", EVERYONES),
        "register all again": lambda: jobs.register_job("*", EVERYONES, spec(EVERYONES)),
    }
    results: dict[str, bool] = {}
    for name, call in together.items():
        wait()
        results[name] = call()
    wait()
    return results, call_at_random(jobs, chance, number)


def call_at_random(jobs: Jobs, chance: random.Random, number: int) -> Counter[str]:
    """Make random calls; count those that took effect, by name."""
    done: Counter[str] = Counter()
    calls = {
        "register": lambda: jobs.register_job("eu", NAME, spec(NAME)),
        "unregister": lambda: jobs.unregister_job("eu", NAME),
        "update": lambda: jobs.update_job_spec(
            "eu", NAME, SpecUpdate(priority=chance.randrange(99)), interrupt=chance.random() < 0.5
        ),
        "pause": lambda: jobs.pause_job("eu", NAME),
        "resume": lambda: jobs.resume_job("eu", NAME),
        "iterate": lambda: iterate(jobs, number),
        "repair": lambda: jobs.repair_job("eu", NAME),
        "rebuild": lambda: jobs.rebuild_job("eu", NAME),
        "look": lambda: look(jobs),
    }
    for _ in range(ROUNDS):
        name = chance.choice(sorted(calls))
        try:
            done[name] += bool(calls[name]())
        except (FenceError, NoSuchJobError, WaitError):
            done["missed"] += 1
    return done


def look(jobs: Jobs) -> bool:
    """Make all calls that only read; return whether the latest commit is searchable."""
    # For one state only, since a job may change its state between two calls.
    completed = [(tenant, job) for tenant, job, _ in jobs.get_job_count(JobState.COMPLETED)]
    assert len(set(completed)) == len(completed)
    assert {tenant for tenant, job in completed if job == EVERYONES} == set(TENANTS)
    assert jobs.get_job_status("us", EVERYONES).code == 0
    return jobs.wait("shop.orders", tenant="eu", timeout=0) == 0


def iterate(jobs: Jobs, number: int) -> bool:
    """Run an iteration of the job; return whether it began and completed."""
    job = jobs.get_job("eu", NAME)
    to = jobs.deployment.make_delta_log(jobs.sources[0]).get_latest_moment()
    if job.watermark.version >= to.version:
        return False
    for claim in jobs.deployment.log.claim_jobs(
        Iteration.from_jobs([job], to), f"run-{number}", {}
    ):
        complete(jobs.deployment.log, claim, to, {})
    return True


def register_or_change_columns(wait, number: int, url: str, orders: str) -> None:
    """Register tenant after tenant in half the processes, change all columns in the others."""
    log = jobs_of(url, orders).deployment.log
    wait()
    for turn in range(ROUNDS):
        if number % 2:
            log.update(None, NAME, SpecUpdate(columns=(f"c{number}", f"d{turn}")))
            continue
        row = NewJob(tenant=f"{number}-{turn}", name=NAME, table_id="t", spec=spec(NAME))
        assert log.register_many([row], revive=bool(turn % 2)) == 1


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_all_tenants_of_an_index_have_its_consumer_whoever_registers_and_changes_them(url, orders):
    log = jobs_of(url, orders).deployment.log
    log.ensure()
    log.register_standing(NAME, spec(NAME))
    at_once(register_or_change_columns, url, orders, **OPTIONS)
    jobs = log.list_jobs(name=NAME)
    assert len(jobs) == PROCESSES // 2 * ROUNDS
    (consumer,) = {job.spec.detail.consumer for job in jobs}
    assert consumer == log.list_standing()[NAME].detail.consumer
    assert consumer.generation == PROCESSES // 2 * ROUNDS


def test_of_many_processes_every_call_takes_effect_once(url, orders):
    jobs = jobs_of(url, orders)
    jobs.deployment.log.ensure()
    outcomes = at_once(call_together, url, orders, **OPTIONS)
    for name in outcomes[0][0]:
        truths = [results[name] for results, _ in outcomes].count(True)
        assert truths == (PROCESSES if name == "update" else 1), (name, outcomes)
    done = sum((each for _, each in outcomes), Counter())
    log = jobs.deployment.log
    everyones = log.list_jobs(name=EVERYONES)
    assert sorted(each.key.tenant for each in everyones) == sorted(TENANTS)
    assert not any(each.paused_at for each in everyones)
    registered = len(log.list_jobs(tenant="eu", name=NAME))
    assert 1 + done["register"] - done["unregister"] == registered
    history = log.read_history(name=NAME)
    counted = Counter(each.event.value for each in history)
    assert counted["register"] == 1 + done["register"]
    assert counted["unregister"] == done["unregister"]
    assert counted["complete"] == done["iterate"]
    # Every transition starts from the state in which the previous one ended.
    state = None
    for each in history:
        assert each.from_state == state, history
        state = None if each.event is Event.UNREGISTER else each.to_state
    # The history has exactly the pauses and resumptions whose calls returned True.
    assert counted["pause"] == 1 + done["pause"]
    assert counted["resume"] == 1 + done["resume"]
    assert done["unregister"] > 0
    assert done["missed"] < PROCESSES * ROUNDS
