"""The end of a stack cancels the iterations that were under way."""

from dataclasses import replace

import pytest
from dagster import DagsterInstance, DagsterRun

from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.local.services import dagster_server
from iscp_dagster.local.services.settings import CLICKHOUSE, StackSettings
from iscp_dagster.local.stack.iteration_cancellation import cancel_iterations
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.specs import ConsumerInfo, IterationDetail, JobSpec
from iscp_dagster.model.states import Event
from iscp_dagster.runs.run_names import DISPATCH_TAG
from support.errors import assert_names
from support.jobs.log_rows import key, over

BEGINS = {"queued": False, "runs": True, "rests": None}
"""Whether each job's iteration begins; None: it has none."""


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def shared_url(request, tmp_path):
    if request.param == "postgresql":
        return request.getfixturevalue("new_postgres")()
    return f"sqlite:///{tmp_path}/shared.sqlite"


def make_settings(home):
    ports = ("clickhouse_port", "spark_port", "dagster_port", "graphql_port", "invocations_port")
    return StackSettings(home=home, **dict.fromkeys(ports, 1))


def make_log(settings, prefix="", names=("run", "run")):
    """Make a log with a queued job, a running one and one at rest; `names` name the runs."""
    log = SqlLog(settings.log)
    log.ensure()
    queued, running = names
    for name, begins in BEGINS.items():
        consumer = ConsumerInfo(type="mirror", db="d", table="t", job=f"{prefix}{name}")
        spec = JobSpec(detail=IterationDetail(consumer=consumer))
        assert log.register("a", JobID(db="d", table="t", job=f"{prefix}{name}"), "id", spec)
        iteration = over(key(f"{prefix}{name}", "a", "id"))
        if begins is not None:
            log.enqueue(iteration, running if begins else queued)
        if begins:
            log.claim_jobs(iteration, running, {})
    return log


def make_dagster(settings, *, dispatch, run):
    """Make the stack's Dagster, with a run of the dispatch and one with the id `run`."""
    dagster_server.prepare(settings)
    with DagsterInstance.from_config(str(settings.dagster_home)) as instance:
        for run_id, tags in ((f"of {dispatch}", {DISPATCH_TAG: dispatch}), (run, {})):
            instance.add_run(DagsterRun(job_name="sync", run_id=run_id, tags=tags))


def states(log):
    return {job.key.job_name: job.state.label for job in log.list_jobs()}


def test_all_iterations_are_canceled_on_shutdown(tmp_path):
    settings = make_settings(tmp_path)
    log = make_log(settings)
    assert cancel_iterations(settings) == 2
    assert states(log) == {"queued": "canceled", "runs": "canceled", "rests": "completed"}
    assert cancel_iterations(settings) == 0


def test_in_a_shared_log_only_the_stack_s_own_iterations_are_canceled(tmp_path, shared_url):
    one, two = (
        replace(make_settings(tmp_path / name), log_url=shared_url) for name in ("one", "two")
    )
    for settings in (one, two):
        settings.home.mkdir()
        name = settings.home.name
        make_dagster(settings, dispatch=f"{name} 1", run=f"{name} 2")
        log = make_log(settings, f"{name} ", names=(f"{name} 1", f"{name} 2"))
    make_log(one, "unknown ", names=("3", "4"))
    assert cancel_iterations(one) == 2
    assert states(log) == {
        "one queued": "canceled",
        "one runs": "canceled",
        "one rests": "completed",
        "two queued": "pending",
        "two runs": "running",
        "two rests": "completed",
        "unknown queued": "pending",
        "unknown runs": "running",
        "unknown rests": "completed",
    }
    actors = {entry.actor for entry in log.read_history() if entry.event is Event.CANCEL}
    assert actors == {"iscp down"}
    assert cancel_iterations(one) == 0
    assert cancel_iterations(two) == 2


def test_iterations_of_another_dagster_are_left_alone(tmp_path):
    settings = make_settings(tmp_path)
    log = make_log(settings)
    assert cancel_iterations(replace(settings, log_url=settings.log)) == 0
    assert cancel_iterations(replace(settings, services=(CLICKHOUSE,))) == 0
    assert states(log)["runs"] == "running"


def test_iterations_of_a_dagster_with_a_broken_storage_are_left_to_the_next_look(tmp_path, caplog):
    settings = make_settings(tmp_path)
    log = make_log(settings)
    make_dagster(settings, dispatch="run", run="run")
    (settings.dagster_home / "history" / "runs.db").write_bytes(b"no database" * 1_000)
    assert cancel_iterations(replace(settings, log_url=settings.log)) == 0
    assert states(log)["runs"] == "running"
    assert_names(caplog.text, settings.dagster_home)


def test_a_stack_that_never_had_a_log_has_nothing_to_cancel(tmp_path):
    assert cancel_iterations(make_settings(tmp_path)) == 0
    assert not list(tmp_path.iterdir())
