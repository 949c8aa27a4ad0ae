"""The project's storage for Dagster: the same files and answers, and events in batches."""

import shutil
import subprocess
import sys
from contextlib import contextmanager

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
from sqlalchemy import Engine, event

from iscp_dagster.local.services.dagster_server import prepare
from iscp_dagster.local.stack import plan
from iscp_dagster.location.assets.reports.reporting import store_events
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.variables import DAGSTER_HOME, EVENT_BATCH_SIZE
from iscp_dagster.runs.output import OutputInFiles
from iscp_dagster.runs.sqlite import CachedEventStorage, SqliteStorage
from support.errors import raises_naming

pytestmark = pytest.mark.slow
TENANTS = [f"t{number}" for number in range(12)]
VERSION = "dagster/data_version"
TEXT, TABLE = AssetKey(["shop", "text"]), AssetKey(["shop", "orders"])
CHECK = AssetCheckKey(TEXT, "readable")
KINDS = {
    TEXT: DagsterEventType.ASSET_MATERIALIZATION,
    TABLE: DagsterEventType.ASSET_OBSERVATION,
}


def make_events():
    for number, tenant in enumerate([*TENANTS, *TENANTS[:4]]):
        about = {"partition": tenant, "tags": {VERSION: str(number)}, "metadata": {"rows": number}}
        yield AssetMaterialization(TEXT, **about)
        yield AssetObservation(TABLE, **about)
    yield AssetCheckEvaluation(passed=True, check_name="readable", asset_key=TEXT)


@op
def report(context):
    store_events(context, make_events())


@job
def reporting():
    report()


@contextmanager
def dagster_at(home, monkeypatch):
    """Give the instance that the home's `dagster.yaml` describes, or Dagster's default."""
    monkeypatch.setenv(DAGSTER_HOME, str(home))
    with DagsterInstance.get() as instance:
        yield instance


def run_job(instance):
    """Run the job; return Dagster's answers about it, and how many transactions it took."""
    commits = []
    count = commits.append
    event.listen(Engine, "commit", count)
    try:
        run = reporting.execute_in_process(instance=instance)
    finally:
        event.remove(Engine, "commit", count)
    return ask_about(instance, run.run_id), len(commits)


def ask_about(instance, run_id):
    """Return Dagster's answers about the run's events."""
    storage, answers = instance.event_log_storage, {}
    for asset, kind in KINDS.items():
        of_run = instance.get_records_for_run(run_id, of_type=kind).records
        answers[asset] = {
            "in the run's log": list(map(facts, of_run)),
            "of the asset": list(map(facts, fetch(instance, asset))),
            "of a partition": list(map(facts, fetch(instance, asset, asset_partitions=["t3"]))),
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
    return {**answers, "entry": (facts(latest), latest.storage_id)}


def fetch(instance, asset, **options):
    method = instance.fetch_materializations if asset == TEXT else instance.fetch_observations
    return method(AssetRecordsFilter(asset, **options), limit=1000, ascending=True).records


def facts(record):
    step = record.event_log_entry.dagster_event.step_key
    report = record.asset_materialization or record.asset_observation
    return step, report.partition, dict(report.tags), dict(report.metadata)


@pytest.fixture
def homes(tmp_path):
    """Give two homes for Dagster: with its default storage, and with the project's."""
    default = tmp_path / "default"
    default.mkdir()
    settings = plan.resolve(tmp_path / "stack", {}, {})
    prepare(settings)
    return default, settings.dagster_home


def test_dagster_s_answers_are_the_same_for_a_batch_as_for_single_events(
    homes, monkeypatch, migrations_read
):
    default, stack = homes
    with dagster_at(default, monkeypatch) as instance:
        single, many = run_job(instance)
        (run,) = instance.get_runs()
    monkeypatch.setenv(EVENT_BATCH_SIZE, "1000")
    with dagster_at(stack, monkeypatch) as instance:
        assert isinstance(instance.event_log_storage, CachedEventStorage)
        batched, few = run_job(instance)
        check = instance.event_log_storage.get_asset_check_execution_history
        assert [record.status.value for record in check(CHECK, limit=9)] == ["SUCCEEDED"]
    assert batched == single
    assert many - few > len(list(make_events()))
    # It opens the files of Dagster's default, and needs no variable to find them.
    shutil.rmtree(stack / "history")
    shutil.copytree(default / "history", stack / "history")
    monkeypatch.delenv(DAGSTER_HOME)
    with DagsterInstance.from_config(str(stack)) as instance:
        assert isinstance(instance.event_log_storage, CachedEventStorage)
        assert ask_about(instance, run.run_id) == single


@pytest.mark.parametrize("storage", [SqliteStorage, OutputInFiles])
def test_a_storage_needs_a_folder_or_a_home(storage, monkeypatch, tmp_path):
    monkeypatch.delenv(DAGSTER_HOME, raising=False)
    with raises_naming(ConfigError, storage.__name__, DAGSTER_HOME, "base_dir"):
        storage.from_config_value(None, {})
    assert storage.from_config_value(None, {"base_dir": str(tmp_path)})


BEGIN = """
import multiprocessing, sys
from contextlib import suppress
from threading import BrokenBarrierError
from dagster._core.storage.schedules.sqlite import sqlite_schedule_storage
from iscp_dagster.runs.sqlite import SqliteStorage

check = sqlite_schedule_storage.check_alembic_revision
forking = multiprocessing.get_context("fork")
both_have_read = forking.Barrier(2, timeout=2)

def check_and_wait(*arguments):
    revision = check(*arguments)
    with suppress(BrokenBarrierError):
        both_have_read.wait()
    return revision

sqlite_schedule_storage.check_alembic_revision = check_and_wait
both = [forking.Process(target=SqliteStorage, args=(sys.argv[1],)) for _ in range(2)]
for process in both:
    process.start()
for process in both:
    process.join()
print([process.exitcode for process in both])
"""
"""Begins a storage in two processes; one that has read that there is no version waits."""


def test_two_processes_begin_on_a_new_folder(tmp_path):
    """As the daemon and a code server do; it could leave two versions, an error for good."""
    command = [sys.executable, "-c", BEGIN, str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == "[0, 0]\n", done.stderr
    assert SqliteStorage(str(tmp_path)).schedule_storage.get_ticks("o", "s") == []
