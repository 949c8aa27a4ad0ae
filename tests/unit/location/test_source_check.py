"""The asset check of a source table that cannot be followed, without Spark or ClickHouse."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import dagster as dg
import pytest
from dagster._core.loader import LoadingContextForTest

from iscp_dagster import Mirror, SourceTable
from iscp_dagster.location.assets.source_check import CHECK
from iscp_dagster.location.build import build_definitions
from iscp_dagster.location.names import get_partitions_name, get_source_asset_key
from iscp_dagster.location.resources.iscp import ClickHouse, ClickHouseTables, Iscp, IscpLog, Lake
from iscp_dagster.location.resources.spark import Spark
from support.errors import assert_names
from support.jobs.one_table import commit
from support.jobs.sensor_ticks import Ticks


@pytest.fixture
def source(tmp_path):
    path = str(tmp_path / "orders")
    return SourceTable("shop.orders", key="id", tenant="region", path=path, indexes=[Mirror()])


class Idle(Spark):
    """A stand-in for Spark in loads that need none."""

    def open_private_session(self):
        return SimpleNamespace(stop=lambda: None)


@pytest.fixture
def defs(source, tmp_path):
    return define_location(source, tmp_path)


def define_location(source, tmp_path):
    iscp = Iscp(
        clickhouse=ClickHouse(url="http://127.0.0.1:9"),
        lake=Lake(root=str(tmp_path)),
        log=IscpLog(url=f"sqlite:///{tmp_path / 'iscp_log.sqlite'}"),
        spark=Idle(remote="sc://127.0.0.1:9"),
    )
    tables = {"clickhouse": ClickHouseTables(iscp=iscp)}
    return build_definitions([source], {"iscp": iscp, **tables})


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def tick(defs, instance):
    return Ticks(defs, instance)


def list_verdicts(tick):
    """Return (passed, severity) of the checks that the tick reports."""
    checks = [event for event in tick.asset_events if isinstance(event, dg.AssetCheckEvaluation)]
    return [(check.passed, check.severity.value) for check in checks]


def test_a_problem_is_reported_at_one_tick_and_shown_by_the_check(tick, source):
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


def test_the_asset_shows_what_becomes_of_the_jobs_of_a_replaced_table(defs):
    (spec,) = [spec for spec in defs.resolve_all_asset_specs() if spec.key.path[-1] == "orders"]
    assert_names(spec.metadata["on_replace"], "strand")


def test_the_check_finds_the_same_when_a_person_runs_it(defs, source, instance):
    check = dg.AssetCheckKey(get_source_asset_key(source), CHECK)
    job = dg.define_asset_job("checks", dg.AssetSelection.checks(check))
    with_job = dg.Definitions.merge(defs, dg.Definitions(jobs=[job]))

    def run():
        result = with_job.resolve_job_def("checks").execute_in_process(instance=instance)
        (evaluation,) = result.get_asset_check_evaluations()
        return evaluation.passed, evaluation.description or ""

    passed, description = run()
    assert not passed
    assert_names(description, source.path)
    commit(source, "eu")
    assert run() == (True, "")


def read_outcome(instance, source):
    """Return whether Dagster shows the check as passed; None for an outdated evaluation."""
    key = dg.AssetCheckKey(get_source_asset_key(source), CHECK)
    storage = instance.event_log_storage
    record = storage.get_latest_asset_check_execution_by_key([key]).get(key)
    now = LoadingContextForTest(instance)
    if record is None or not asyncio.run(record.targets_latest_materialization(now)):
        return None
    return record.evaluation.passed


def test_a_materialization_of_one_tenant_leaves_the_check_evaluated(source, tmp_path, instance):
    """The check is the table's; Dagster compares it with any tenant's latest materialization."""
    loaded = replace(source, load=lambda load: commit(source, *load.tenants))
    defs = define_location(loaded, tmp_path)
    tick = Ticks(defs, instance)
    check = dg.AssetCheckKey(get_source_asset_key(source), CHECK)
    jobs = [
        dg.define_asset_job("checks", dg.AssetSelection.checks(check)),
        dg.define_asset_job(
            "load", dg.AssetSelection.assets(get_source_asset_key(source)).without_checks()
        ),
    ]
    with_jobs = dg.Definitions.merge(defs, dg.Definitions(jobs=jobs))

    def commit_and_report():
        commit(source, "eu")
        for event in tick().asset_events:
            instance.report_runless_asset_event(event)

    commit_and_report()
    with_jobs.resolve_job_def("checks").execute_in_process(instance=instance)
    assert read_outcome(instance, source) is True
    commit_and_report()
    assert read_outcome(instance, source) is True
    instance.add_dynamic_partitions(get_partitions_name(source), ["eu"])
    with_jobs.resolve_job_def("load").execute_in_process(instance=instance, partition_key="eu")
    assert read_outcome(instance, source) is True
