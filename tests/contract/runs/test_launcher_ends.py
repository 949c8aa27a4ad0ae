"""The runs that the launcher interrupts when its daemon ends."""

from __future__ import annotations

import pytest
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.test_utils import create_run_for_test

from iscp_dagster.runs.launcher import WarmRunLauncher
from iscp_dagster.runs.run_names import BY_HAND_TAG, DISPATCH_TAG, tag_if_by_hand
from iscp_dagster.runs.server_address import RunServerAddress

DISPATCHED = {DISPATCH_TAG: "one"}


class Recorder(WarmRunLauncher):
    """Records the runs that it terminates; the code server of `unreachable` is away."""

    def __init__(self) -> None:
        super().__init__()
        self.terminated: list[str] = []
        self.unreachable = ""

    def terminate(self, run_id: str) -> bool:
        self.terminated.append(run_id)
        if run_id == self.unreachable:
            raise DagsterUserCodeUnreachableError("away")
        return True


@pytest.fixture
def instance():
    with DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def launcher(instance):
    launcher = Recorder()
    launcher.register_instance(instance)
    return launcher


def create_run(instance, tags, status=DagsterRunStatus.STARTED) -> DagsterRun:
    return create_run_for_test(instance, job_name="some_job", tags=tags, status=status)


def test_the_daemon_s_end_interrupts_the_code_server_s_iterations(instance, launcher):
    mine = [create_run(instance, tags) for tags in (DISPATCHED, {BY_HAND_TAG: "true"})]
    create_run(instance, DISPATCHED, DagsterRunStatus.SUCCESS)
    others = create_run(instance, {})
    served = create_run(instance, DISPATCHED)
    instance.add_run_tags(
        served.run_id, RunServerAddress(socket="/x", name="y").build_tags(served.run_id)
    )
    launcher.check_run_worker_health(others)
    launcher.unreachable = mine[0].run_id
    launcher.dispose()
    assert set(launcher.terminated) == {run.run_id for run in mine}


def test_a_process_that_watches_no_runs_interrupts_none(instance, launcher):
    create_run(instance, DISPATCHED)
    launcher.dispose()
    assert launcher.terminated == []


def test_a_run_by_hand_is_marked_and_one_of_the_runner_is_not(instance):
    runs = create_run(instance, {}), create_run(instance, DISPATCHED)
    for run in runs:
        tag_if_by_hand(instance, run)
    marked = [BY_HAND_TAG in instance.get_run_by_id(run.run_id).tags for run in runs]
    assert marked == [True, False]
