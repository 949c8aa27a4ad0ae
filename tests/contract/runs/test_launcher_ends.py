"""Which runs the launcher interrupts when the daemon that it belongs to ends."""

from __future__ import annotations

import pytest
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.test_utils import create_run_for_test

from iscp_dagster.runs.known_runs import BY_HAND_TAG, DISPATCH_TAG, tag_if_by_hand
from iscp_dagster.runs.launcher import WarmRunLauncher
from iscp_dagster.runs.socket_path import RunServerAddress

BEGUN = DagsterRunStatus.STARTED
DISPATCHED = {DISPATCH_TAG: "one"}


class Recorder(WarmRunLauncher):
    """Records what it is asked to terminate; the code server of `unreachable` is away."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.unreachable = ""

    def terminate(self, run_id: str) -> bool:
        self.asked.append(run_id)
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


def run_of(instance, tags, status=BEGUN) -> DagsterRun:
    return create_run_for_test(instance, job_name="some_job", tags=tags, status=status)


def test_the_daemons_end_interrupts_the_code_servers_iterations(instance, launcher):
    mine = [run_of(instance, tags) for tags in (DISPATCHED, {BY_HAND_TAG: "true"})]
    run_of(instance, DISPATCHED, DagsterRunStatus.SUCCESS)
    others = run_of(instance, {})
    served = run_of(instance, DISPATCHED)
    instance.add_run_tags(
        served.run_id, RunServerAddress(socket="/x", name="y").build_tags(served.run_id)
    )
    launcher.check_run_worker_health(others)
    launcher.unreachable = mine[0].run_id
    launcher.dispose()
    assert set(launcher.asked) == {run.run_id for run in mine}


def test_a_process_that_watches_no_runs_interrupts_none(instance, launcher):
    run_of(instance, DISPATCHED)
    launcher.dispose()
    assert launcher.asked == []


def test_a_run_by_hand_is_marked_and_one_of_the_runner_is_not(instance):
    runs = run_of(instance, {}), run_of(instance, DISPATCHED)
    for run in runs:
        tag_if_by_hand(instance, run)
    marked = [BY_HAND_TAG in instance.get_run_by_id(run.run_id).tags for run in runs]
    assert marked == [True, False]
