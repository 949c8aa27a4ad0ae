"""Jobs whose run is gone are freed, by the Dagster that ran them and by no other."""

from __future__ import annotations

import pytest
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus

from iscp_dagster import Mirror, SourceTable
from iscp_dagster.clickhouse.endpoint import Endpoint
from iscp_dagster.core.clock import utc_now
from iscp_dagster.core.iterations import Iteration
from iscp_dagster.core.jobs import JobID, JobKey
from iscp_dagster.core.moment import START, Moment
from iscp_dagster.core.specs import ConsumerInfo, IterationDetail, JobSpec
from iscp_dagster.engine.context import Engine
from iscp_dagster.location.names import DISPATCH_TAG
from iscp_dagster.location.runner import SUBMITTING, recover
from iscp_dagster.log import MemoryLog


@pytest.fixture
def engine():
    return Engine(
        endpoint=Endpoint.parse("http://127.0.0.1:9"),
        log=MemoryLog(),
        spark=lambda: pytest.fail("Spark was asked for"),
        lake="/nowhere",
        clock=lambda: utc_now() + 2 * SUBMITTING,
    )


@pytest.fixture
def instance():
    with DagsterInstance.ephemeral() as instance:
        for status in (DagsterRunStatus.STARTED, DagsterRunStatus.FAILURE):
            tags = {DISPATCH_TAG: f"{status.value} dispatch"}
            instance.add_run(
                DagsterRun(job_name="j", run_id=status.value, status=status, tags=tags)
            )
        yield instance


def table(name):
    return SourceTable(name, key="id", indexes=[Mirror()])


def put(log, table_name, job, run, *, begun):
    """A job of the table that waits for the run, or runs in it."""
    db, _, of = table_name.partition(".")
    consumer = ConsumerInfo(type="mirror", db=db, table=of, job=job)
    assert log.register(
        "a", JobID(db=db, table=of, job=job), of, JobSpec(detail=IterationDetail(consumer=consumer))
    )
    key = JobKey(account="a", table_id=of, job_name=job)
    due = Iteration(table_id=of, tenants=frozenset("a"), jobs=(key,), from_=START, to=Moment(1))
    log.enqueue(due, run)
    if begun:
        log.begin(due, run, {})


def states(log):
    return {f"{job.name.table}/{job.key.job_name}": job.state.label for job in log.jobs()}


def test_what_waits_for_or_runs_in_a_run_that_is_gone_is_planned_again(engine, instance):
    log = engine.log
    put(log, "d.t", "waits", "STARTED dispatch", begun=False)
    put(log, "d.t", "runs", "STARTED", begun=True)
    put(log, "d.t", "waited", "FAILURE dispatch", begun=False)
    put(log, "d.t", "ran", "FAILURE", begun=True)
    put(log, "d.t", "unknown", "no such run", begun=True)
    recover(engine, instance, [table("d.t")])
    assert states(log) == {
        "t/waits": "pending",
        "t/runs": "running",
        "t/waited": "completed",
        "t/ran": "completed",
        "t/unknown": "completed",
    }


def test_what_another_deployment_runs_on_its_tables_goes_on(engine, instance):
    log = engine.log
    put(log, "d.others", "runs", "a run of another Dagster", begun=True)
    put(log, "d.t", "ran", "no such run", begun=True)
    recover(engine, instance, [table("d.t")])
    assert states(log) == {"others/runs": "running", "t/ran": "completed"}
    recover(engine, instance, [table("d.others")])
    assert states(log)["others/runs"] == "completed"
