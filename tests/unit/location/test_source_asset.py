"""A source table in Dagster: its check and data versions, without Spark or ClickHouse."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import dagster as dg
import pytest
from dagster._core.loader import LoadingContextForTest

from iscp_dagster import Mirror
from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.location.assets.reports.data_versions import DataVersions
from iscp_dagster.location.assets.source_check import CHECK
from iscp_dagster.location.build import build_definitions
from iscp_dagster.location.names import get_partitions_name, get_source_asset_key
from iscp_dagster.location.resources.iscp import ClickHouse, ClickHouseTables, Iscp, IscpLog, Lake
from iscp_dagster.location.resources.spark import Spark
from support.errors import assert_names
from support.jobs.one_table import commit, orders
from support.jobs.sensor_ticks import Ticks


@pytest.fixture
def source(tmp_path):
    return orders(tmp_path, indexes=[Mirror()])


class Idle(Spark):
    """A stand-in for Spark in loads that need none."""

    def open_private_session(self):
        return SimpleNamespace(stop=lambda: None)


def define_location(source, tmp_path):
    iscp = Iscp(
        clickhouse=ClickHouse(url="http://127.0.0.1:9"),
        lake=Lake(root=str(tmp_path)),
        log=IscpLog(url=f"sqlite:///{tmp_path / 'iscp_log.sqlite'}"),
        spark=Idle(remote="sc://127.0.0.1:9"),
    )
    resources = {"iscp": iscp, "clickhouse": ClickHouseTables(iscp=iscp)}
    return build_definitions([source], resources)


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def list_verdicts(tick):
    """Return (passed, severity) of the checks that the tick reports."""
    checks = [event for event in tick.asset_events if isinstance(event, dg.AssetCheckEvaluation)]
    return [(check.passed, check.severity.value) for check in checks]


def test_a_problem_is_reported_at_one_tick_and_shown_by_the_check(source, tmp_path, instance):
    tick = Ticks(define_location(source, tmp_path), instance)
    first = tick()
    assert_names(first.skip_message, source.path)
    assert list_verdicts(first) == [(False, "WARN")]
    again = tick()
    assert source.path not in again.skip_message
    assert_names(again.skip_message, "shop.orders")
    assert list_verdicts(again) == []
    commit(source, "eu")
    assert list_verdicts(tick()) == [(True, "WARN")]
    assert list_verdicts(tick()) == []


def read_outcome(instance, source):
    """Return whether Dagster shows the check as passed; None for an outdated evaluation."""
    key = dg.AssetCheckKey(get_source_asset_key(source), CHECK)
    storage = instance.event_log_storage
    record = storage.get_latest_asset_check_execution_by_key([key]).get(key)
    now = LoadingContextForTest(instance)
    if record is None or not asyncio.run(record.targets_latest_materialization(now)):
        return None
    return record.evaluation.passed


def test_the_check_finds_the_same_when_a_person_runs_it_and_stays_evaluated(
    source, tmp_path, instance
):
    """The check is the table's; Dagster compares it with any tenant's latest materialization."""
    loaded = replace(source, load=lambda load: commit(source, *load.tenants))
    defs, key = define_location(loaded, tmp_path), get_source_asset_key(source)
    tick = Ticks(defs, instance)
    jobs = [
        dg.define_asset_job("checks", dg.AssetSelection.checks(dg.AssetCheckKey(key, CHECK))),
        dg.define_asset_job("load", dg.AssetSelection.assets(key).without_checks()),
    ]
    with_jobs = dg.Definitions.merge(defs, dg.Definitions(jobs=jobs))

    def check():
        result = with_jobs.resolve_job_def("checks").execute_in_process(instance=instance)
        (evaluation,) = result.get_asset_check_evaluations()
        return evaluation.passed, evaluation.description or ""

    def commit_and_report():
        commit(source, "eu")
        for event in tick().asset_events:
            instance.report_runless_asset_event(event)

    passed, description = check()
    assert not passed
    assert_names(description, source.path)
    commit_and_report()
    assert check() == (True, "")
    assert read_outcome(instance, source) is True
    commit_and_report()
    assert read_outcome(instance, source) is True
    instance.add_dynamic_partitions(get_partitions_name(source), ["eu"])
    with_jobs.resolve_job_def("load").execute_in_process(instance=instance, partition_key="eu")
    assert read_outcome(instance, source) is True


def build_events(instance, source, *tenants):
    """Build the events of the tenants that a run of version 0, ahead of the runner, reports."""
    versions = DataVersions(instance, source, DeltaLog(source.path, "region"), 0)
    return versions.build_unreported_events(tenants)


def test_a_version_s_event_has_the_table_s_facts_as_of_the_run_s_version(source, instance):
    """Dagster shows what a table's latest event says, and nothing from earlier ones."""
    commit(source, "eu", "us")
    commit(source, "eu", later="than the run")
    events = build_events(instance, source, "eu", "us")
    versions = {(event.partition, event.metadata["version"].value) for event in events}
    assert versions == {("eu", 0), ("us", 0)}
    for event in events:
        columns = event.metadata["dagster/column_schema"].schema.columns
        assert [column.name for column in columns] == ["id", "region"]
        assert event.metadata["path"].value == source.path


def test_a_version_is_reported_even_if_the_table_s_facts_are_unknown(source, instance, monkeypatch):
    def fail(*_):
        raise OSError("the checkpoint is gone")

    commit(source, "eu")
    monkeypatch.setattr(DeltaLog, "get_facts", fail)
    (event,) = build_events(instance, source, "eu")
    assert (event.partition, set(event.metadata)) == ("eu", {"version"})
