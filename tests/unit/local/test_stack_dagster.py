"""Dagster's instance settings load as meant, and a killed Dagster's runs are cleaned up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from dagster import DagsterInstance, DagsterRunStatus, RunsFilter
from dagster._core.scheduler.instigation import InstigatorType, TickStatus
from dagster._core.test_utils import create_run_for_test

from iscp_dagster.local.services import dagster_server
from iscp_dagster.local.services.settings import build_child_environment, get_repository
from iscp_dagster.local.stack import plan
from iscp_dagster.location.assets.reports.reporting import BATCH
from iscp_dagster.model.variables import EVENT_BATCH_SIZE
from iscp_dagster.runs.server import report_left_behind_runs
from iscp_dagster.runs.server_address import SERVER_TAG, RunServerAddress
from iscp_dagster.runs.sqlite import CachedEventStorage, CachedRunStorage, CachedTickStorage


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DagsterInstance]:
    settings = plan.resolve(tmp_path, {}, {})
    dagster_server.prepare(settings)
    monkeypatch.setenv("DAGSTER_HOME", str(settings.dagster_home))
    with DagsterInstance.get() as opened:
        yield opened


@pytest.mark.slow
def test_the_embedded_dagster_is_tuned_for_short_runs(instance: DagsterInstance) -> None:
    assert instance.run_coordinator.dequeue_interval_seconds == 0.5
    assert instance.run_coordinator.dequeue_use_threads
    retained = instance.get_tick_retention_settings(InstigatorType.SENSOR)
    assert retained[TickStatus.SKIPPED] == 1
    assert retained[TickStatus.SUCCESS] == 7
    assert instance.run_monitoring_enabled
    assert instance.run_monitoring_poll_interval_seconds == 5
    assert not instance.telemetry_enabled
    assert instance.get_settings("freshness") == {"enabled": False}
    assert instance.get_settings("sensors")["use_threads"]
    queue = instance.get_concurrency_config().run_queue_config
    assert queue is not None
    assert queue.max_concurrent_runs == 4
    assert isinstance(instance.event_log_storage, CachedEventStorage)
    assert isinstance(instance.run_storage, CachedRunStorage)
    assert isinstance(instance.schedule_storage, CachedTickStorage)


def test_a_storage_that_dagster_yaml_names_stays_the_only_one(tmp_path, monkeypatch) -> None:
    own = "storage:\n  postgres:\n    postgres_url: {env: DAGSTER_POSTGRES_URL}\n"
    (tmp_path / "dagster.yaml").write_text(own)
    monkeypatch.setattr(dagster_server, "get_repository", lambda: tmp_path)
    settings = plan.resolve(tmp_path / "home", {}, {})
    dagster_server.prepare(settings)
    assert (settings.dagster_home / "dagster.yaml").read_text() == own


def test_events_are_stored_in_batches_of_the_size_that_is_set(tmp_path) -> None:
    settings = plan.resolve(tmp_path, {}, {})
    assert build_child_environment(settings, {})[EVENT_BATCH_SIZE] == str(BATCH)
    assert build_child_environment(settings, {EVENT_BATCH_SIZE: "0"})[EVENT_BATCH_SIZE] == "0"


@pytest.mark.slow
def test_the_runs_of_a_killed_dagster_are_ended(instance: DagsterInstance) -> None:
    expected = {
        DagsterRunStatus.NOT_STARTED: DagsterRunStatus.NOT_STARTED,
        DagsterRunStatus.STARTING: DagsterRunStatus.FAILURE,
        DagsterRunStatus.STARTED: DagsterRunStatus.FAILURE,
        DagsterRunStatus.CANCELING: DagsterRunStatus.CANCELED,
        DagsterRunStatus.SUCCESS: DagsterRunStatus.SUCCESS,
    }
    runs = {status: create_run_for_test(instance, status=status) for status in expected}
    served = create_run_for_test(instance, status=DagsterRunStatus.STARTED)
    address = RunServerAddress(socket="/of a/server.sock", name="1f")
    instance.add_run_tags(served.run_id, address.build_tags(served.run_id))
    # A copy of its tags, which is not a run of that server, and a run that a code server started.
    copied = instance.get_run_by_id(served.run_id).tags
    for tags in (copied, {SERVER_TAG: ""}):
        create_run_for_test(instance, status=DagsterRunStatus.STARTED, tags=tags)
    assert RunServerAddress.from_run(instance.get_run_by_id(served.run_id)) == address
    report_left_behind_runs(lambda run: RunServerAddress.from_run(run) is None)
    after = {status: instance.get_run_by_id(run.run_id).status for status, run in runs.items()}
    assert after == expected
    assert instance.get_runs_count(RunsFilter(statuses=[DagsterRunStatus.FAILURE])) == 4
    assert instance.get_run_by_id(served.run_id).status is DagsterRunStatus.STARTED


def test_the_stack_looks_for_a_module_of_iscp_assets_in_the_working_directory(
    tmp_path, monkeypatch
) -> None:
    """The command line looks there first; a clone has a package `assets` of its own."""
    monkeypatch.chdir(tmp_path)
    settings = plan.resolve(tmp_path / "home", {}, {})
    dagster_server.prepare(settings)
    monkeypatch.delenv("ISCP_ASSETS", raising=False)

    def list_folders():
        return {service.folder for service in dagster_server.build_services(settings)}

    assert list_folders() == {get_repository()}
    monkeypatch.setenv("ISCP_ASSETS", "assets")
    assert list_folders() == {tmp_path}
