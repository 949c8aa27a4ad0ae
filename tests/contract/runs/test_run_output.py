"""What a run prints: in Dagster's files, without processes that copy it."""

import shutil
import subprocess
import sys

import psutil
import pytest
from dagster import DagsterEventType, DagsterInstance, job, op

from iscp_dagster.model.errors import ConfigError
from iscp_dagster.runs.output import OutputInFiles
from support.paths import ROOT

pytestmark = pytest.mark.slow


BEFORE = []


def _children():
    """Return what this process has started; a worker of the tests has services too."""
    return [each.pid for each in psutil.Process().children()]


@op
def speak():
    print("said by the step")  # noqa: T201
    print("and as an error", file=sys.stderr)  # noqa: T201
    subprocess.run([sys.executable, "-c", "print('by a child')"], check=True)
    assert set(_children()) <= set(BEFORE)


@job
def speaking():
    speak()


@pytest.fixture
def instance(tmp_path, monkeypatch):
    """Give an instance as `dagster.yaml` describes it."""
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    shutil.copyfile(ROOT / "dagster.yaml", tmp_path / "dagster.yaml")
    with DagsterInstance.get() as found:
        yield found


def test_it_is_in_the_files_that_the_ui_reads_and_no_process_copies_it(instance, tmp_path, capfd):
    BEFORE[:] = _children()
    with capfd.disabled():
        done = speaking.execute_in_process(instance=instance)
    (captured,) = instance.all_logs(done.run_id, of_type=DagsterEventType.LOGS_CAPTURED)
    manager = instance.compute_log_manager
    key = manager.build_log_key_for_run(
        done.run_id, captured.dagster_event.logs_captured_data.file_key
    )
    assert manager.is_capture_complete(key)
    said = manager.get_log_data(key)
    assert said.stdout.decode().splitlines() == ["said by the step", "by a child"]
    assert "and as an error" in said.stderr.decode()
    assert list(tmp_path.glob(f"storage/{done.run_id}/**/*.out"))


def test_without_a_folder_and_a_home_it_says_what_to_set(monkeypatch, tmp_path):
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    with pytest.raises(ConfigError, match=r"DAGSTER_HOME is not set. Set base_dir in its config"):
        OutputInFiles.from_config_value(None, {})
    assert OutputInFiles.from_config_value(None, {"base_dir": str(tmp_path)})
