"""The end of a stack cancels the iterations that were under way."""

from dataclasses import replace

import pytest
from dagster import DagsterInstance, DagsterRun
from test_stack_settings import make_settings

from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.local.services import dagster_server
from iscp_dagster.local.services.settings import CLICKHOUSE
from iscp_dagster.local.stack.iteration_cancellation import cancel_iterations
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.states import Event
from iscp_dagster.runs.run_names import DISPATCH_TAG
from support.errors import assert_names
from support.jobs.log_rows import key, make_plain_spec, over

BEGINS = {"queued": False, "runs": True, "rests": None}
"""Whether each job's iteration begins; None: it has none."""
CANCELED = {"queued": "canceled", "runs": "canceled", "rests": "completed"}


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def shared_url(request, tmp_path):
    if request.param == "postgresql":
        return request.getfixturevalue("new_postgres")()
    return f"sqlite:///{tmp_path}/shared.sqlite"


def make_log(settings, prefix="", names=("run", "run")):
    """Make a log with a queued job, a running one and one at rest; `names` name the runs."""
    log = SqlLog(settings.log)
    log.ensure()
    queued, running = names
    for name, begins in BEGINS.items():
        id_ = JobID(db="d", table="t", job=f"{prefix}{name}")
        assert log.register("a", id_, "id", make_plain_spec(id_))
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


def states(log, prefix=""):
    """Return the state of each job whose name has the prefix, by the rest of its name."""
    states = {job.key.job_name: job.state.label for job in log.list_jobs()}
    return {n.removeprefix(prefix): states[n] for n in states if n.startswith(prefix)}


def test_only_in_its_own_log_the_stack_cancels_iterations_of_whatever_dagster(tmp_path, caplog):
    settings = make_settings(home=tmp_path)
    assert cancel_iterations(settings) == 0
    assert not list(tmp_path.iterdir()), "nothing to cancel, and no log is made"
    log = make_log(settings)
    shared = replace(settings, log_url=settings.log)
    assert cancel_iterations(shared) == 0
    assert cancel_iterations(replace(settings, services=(CLICKHOUSE,))) == 0
    make_dagster(settings, dispatch="run", run="run")
    (settings.dagster_home / "history" / "runs.db").write_bytes(b"no database" * 1_000)
    assert cancel_iterations(shared) == 0
    assert_names(caplog.text, settings.dagster_home)
    assert states(log)["runs"] == "running"
    assert cancel_iterations(settings) == 2
    assert states(log) == CANCELED
    assert cancel_iterations(settings) == 0


def test_in_a_shared_log_only_the_stack_s_own_iterations_are_canceled(tmp_path, shared_url):
    homes = (tmp_path / name for name in ("one", "two"))
    one, two = (replace(make_settings(home=home), log_url=shared_url) for home in homes)
    for settings in (one, two):
        settings.home.mkdir()
        name = settings.home.name
        make_dagster(settings, dispatch=f"{name} 1", run=f"{name} 2")
        log = make_log(settings, f"{name} ", names=(f"{name} 1", f"{name} 2"))
    make_log(one, "unknown ", names=("3", "4"))
    assert cancel_iterations(one) == 2
    kept = {"queued": "pending", "runs": "running", "rests": "completed"}
    for prefix, expected in {"one": CANCELED, "two": kept, "unknown": kept}.items():
        assert states(log, f"{prefix} ") == expected
    assert len(log.list_jobs()) == 9
    actors = {entry.actor for entry in log.read_history() if entry.event is Event.CANCEL}
    assert actors == {"iscp down"}
    assert cancel_iterations(one) == 0
    assert cancel_iterations(two) == 2
