"""The output of a run is in Dagster's files, without processes that copy it."""

import shutil
import subprocess
import sys

import psutil
import pytest
from dagster import DagsterEventType, DagsterInstance, job, op

from support.paths import ROOT

pytestmark = pytest.mark.slow


BEFORE = set()


def list_children():
    """Return the processes that this one has started; a worker of the tests has services too."""
    return {child.pid for child in psutil.Process().children()}


@op
def speak():
    print("said by the step")  # noqa: T201
    print("and as an error", file=sys.stderr)  # noqa: T201
    subprocess.run([sys.executable, "-c", "print('by a child')"], check=True)
    assert list_children() <= BEFORE


@job
def speaking():
    speak()


@pytest.fixture
def instance(tmp_path, monkeypatch):
    """Give an instance as `dagster.yaml` describes it."""
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    shutil.copyfile(ROOT / "dagster.yaml", tmp_path / "dagster.yaml")
    with DagsterInstance.get() as instance:
        yield instance


def test_output_is_in_the_files_that_the_ui_reads_and_no_process_copies_it(
    instance, tmp_path, capfd
):
    BEFORE.update(list_children())
    with capfd.disabled():
        run = speaking.execute_in_process(instance=instance)
    (event,) = instance.all_logs(run.run_id, of_type=DagsterEventType.LOGS_CAPTURED)
    manager = instance.compute_log_manager
    file_key = event.dagster_event.logs_captured_data.file_key
    key = manager.build_log_key_for_run(run.run_id, file_key)
    assert manager.is_capture_complete(key)
    output = manager.get_log_data(key)
    assert output.stdout.decode().splitlines() == ["said by the step", "by a child"]
    assert "and as an error" in output.stderr.decode()
    assert list(tmp_path.glob(f"storage/{run.run_id}/**/*.out"))
