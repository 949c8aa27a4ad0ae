"""Dagster's storage of ours: the same files and answers, and a batch of events at once."""

import multiprocessing
import shutil
from contextlib import contextmanager, suppress
from threading import BrokenBarrierError

import pytest
from dagster import (
    AssetCheckEvaluation,
    AssetCheckKey,
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    AssetRecordsFilter,
    DagsterEventType,
    DagsterInstance,
    job,
    op,
)
from dagster._core.storage.schedules.sqlite import sqlite_schedule_storage
from sqlalchemy import Engine, event

from iscp_dagster.local.services.dagster_server import prepare
from iscp_dagster.local.stack import plan
from iscp_dagster.location.assets.reporting import store_events
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.variables import DAGSTER_HOME, EVENT_BATCH_SIZE
from iscp_dagster.runs.sqlite import CachedEventStorage, SqliteStorage

pytestmark = pytest.mark.slow
TENANTS = [f"t{number}" for number in range(12)]
VERSION = "dagster/data_version"
TEXT, TABLE = AssetKey(["shop", "text"]), AssetKey(["shop", "orders"])
CHECK = AssetCheckKey(TEXT, "readable")
KINDS = {
    TEXT: DagsterEventType.ASSET_MATERIALIZATION,
    TABLE: DagsterEventType.ASSET_OBSERVATION,
}


def events():
    for number, tenant in enumerate([*TENANTS, *TENANTS[:4]]):
        about = {"partition": tenant, "tags": {VERSION: str(number)}, "metadata": {"rows": number}}
        yield AssetMaterialization(TEXT, **about)
        yield AssetObservation(TABLE, **about)
    yield AssetCheckEvaluation(passed=True, check_name="readable", asset_key=TEXT)


@op
def report(context):
    store_events(context, events())


@job
def reporting():
    report()


@contextmanager
def dagster_at(home, monkeypatch):
    """Give the instance that the home's `dagster.yaml` describes, or Dagster's default."""
    monkeypatch.setenv(DAGSTER_HOME, str(home))
    with DagsterInstance.get() as found:
        yield found


def reported(instance):
    """Run the job; return what Dagster then tells of it, and how many transactions that took."""
    commits = []
    count = commits.append
    event.listen(Engine, "commit", count)
    try:
        run = reporting.execute_in_process(instance=instance)
    finally:
        event.remove(Engine, "commit", count)
    return told(instance, run.run_id), len(commits)


def told(instance, run_id):
    storage, found = instance.event_log_storage, {}
    for asset, kind in KINDS.items():
        of_run = instance.get_records_for_run(run_id, of_type=kind).records
        found[asset] = {
            "in the run's log": [facts(each) for each in of_run],
            "of the asset": [facts(each) for each in all_of(instance, asset)],
            "of a partition": [
                facts(each) for each in all_of(instance, asset, asset_partitions=["t3"])
            ],
            "latest": storage.get_latest_tags_by_partition(asset, kind, [VERSION]),
            "latest ids": storage.get_latest_storage_id_by_partition(asset, kind),
            "tags": instance.get_event_tags_for_asset(asset, {VERSION: "13"}),
            "known": instance.has_asset_key(asset),
        }
    (text,) = instance.get_asset_records([TEXT])
    entry = text.asset_entry
    latest = entry.last_materialization_record
    assert entry.last_run_id == latest.run_id == run_id
    assert instance.get_materialized_partitions(TEXT) == set(TENANTS)
    return {**found, "entry": (facts(latest), latest.storage_id)}


def all_of(instance, asset, **chosen):
    fetch = instance.fetch_materializations if asset == TEXT else instance.fetch_observations
    return fetch(AssetRecordsFilter(asset, **chosen), limit=1000, ascending=True).records


def facts(record):
    event_ = record.event_log_entry.dagster_event
    made = record.asset_materialization or record.asset_observation
    return event_.step_key, made.partition, dict(made.tags), dict(made.metadata)


@pytest.fixture
def homes(tmp_path):
    """Give two homes for Dagster: with its default storage, and with the project's."""
    default = tmp_path / "default"
    default.mkdir()
    settings = plan.resolve(tmp_path / "stack", {}, {})
    prepare(settings)
    return default, settings.dagster_home


def test_dagster_tells_the_same_of_a_batch_as_of_events_stored_alone(
    homes, monkeypatch, migrations_read
):
    default, stack = homes
    with dagster_at(default, monkeypatch) as instance:
        alone, many = reported(instance)
        (run,) = instance.get_runs()
    monkeypatch.setenv(EVENT_BATCH_SIZE, "1000")
    with dagster_at(stack, monkeypatch) as instance:
        assert isinstance(instance.event_log_storage, CachedEventStorage)
        batched, few = reported(instance)
        check = instance.event_log_storage.get_asset_check_execution_history
        assert [each.status.value for each in check(CHECK, limit=9)] == ["SUCCEEDED"]
    assert batched == alone
    assert many - few > len(list(events()))
    # It opens what Dagster's default has stored, and needs no variable to find its files.
    shutil.rmtree(stack / "history")
    shutil.copytree(default / "history", stack / "history")
    monkeypatch.delenv(DAGSTER_HOME)
    with DagsterInstance.from_config(str(stack)) as instance:
        assert isinstance(instance.event_log_storage, CachedEventStorage)
        assert told(instance, run.run_id) == alone


def test_without_a_folder_and_a_home_it_says_what_to_set(monkeypatch, tmp_path):
    monkeypatch.delenv(DAGSTER_HOME, raising=False)
    with pytest.raises(ConfigError, match=r"SqliteStorage .* DAGSTER_HOME is not set. Set"):
        SqliteStorage.from_config_value(None, {})
    assert SqliteStorage.from_config_value(None, {"base_dir": str(tmp_path)})


def begin(folder, read):
    """Begin a storage; when it has read that there is no version yet, wait for others to."""
    check = sqlite_schedule_storage.check_alembic_revision

    def checked(*args):
        found = check(*args)
        with suppress(BrokenBarrierError):
            read.wait()
        return found

    sqlite_schedule_storage.check_alembic_revision = checked
    SqliteStorage(folder)


def test_two_processes_begin_on_a_new_folder(tmp_path):
    """As the daemon and a code server do; it could leave two versions, an error for good."""
    spawning = multiprocessing.get_context("spawn")
    read = spawning.Barrier(2, timeout=2)
    both = [spawning.Process(target=begin, args=(str(tmp_path), read)) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert [each.exitcode for each in both] == [0, 0]
    assert SqliteStorage(str(tmp_path)).schedule_storage.get_ticks("o", "s") == []
