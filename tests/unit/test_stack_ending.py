"""The end of a stack cancels the iterations that were under way."""

from __future__ import annotations

from dataclasses import replace

from iscp_dagster.core.iterations import Iteration
from iscp_dagster.core.jobs import JobID, JobKey
from iscp_dagster.core.moment import START, Moment
from iscp_dagster.core.specs import ConsumerInfo, IterationDetail, JobSpec
from iscp_dagster.log.sql import SqlLog
from iscp_dagster.stack.ending import cancel_iterations
from iscp_dagster.stack.settings import CLICKHOUSE, StackSettings

RUNS = {"queued": False, "runs": True, "rests": None}


def settings_of(home):
    return StackSettings(home=home, clickhouse_port=1, spark_port=2, dagster_port=3)


def log_with_jobs(settings):
    log = SqlLog(settings.log)
    log.ensure()
    for name, begins in RUNS.items():
        consumer = ConsumerInfo(type="mirror", db="d", table="t", job=name)
        spec = JobSpec(detail=IterationDetail(consumer=consumer))
        assert log.register("a", JobID(db="d", table="t", job=name), "id", spec)
        key = JobKey(account="a", table_id="id", job_name=name)
        iteration = Iteration(
            table_id="id", tenants=frozenset("a"), jobs=(key,), from_=START, to=Moment(1)
        )
        if begins is not None:
            log.enqueue(iteration, "run")
        if begins:
            log.begin(iteration, "run", {})
    return log


def states(log):
    return {job.key.job_name: job.state.label for job in log.jobs()}


def test_all_iterations_are_canceled_on_shutdown(tmp_path):
    settings = settings_of(tmp_path)
    log = log_with_jobs(settings)
    assert cancel_iterations(settings) == 2
    assert states(log) == {"queued": "canceled", "runs": "canceled", "rests": "completed"}
    assert cancel_iterations(settings) == 0


def test_those_of_a_shared_log_or_of_another_dagster_are_left_alone(tmp_path):
    settings = settings_of(tmp_path)
    log = log_with_jobs(settings)
    assert cancel_iterations(replace(settings, log_url=settings.log)) == 0
    assert cancel_iterations(replace(settings, services=(CLICKHOUSE,))) == 0
    assert states(log)["runs"] == "running"


def test_a_stack_that_never_had_a_log_has_nothing_to_cancel(tmp_path):
    assert cancel_iterations(settings_of(tmp_path)) == 0
    assert not list(tmp_path.iterdir())
