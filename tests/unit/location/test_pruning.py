"""Pruning keeps the events that Dagster compares, of source tables and of indexes."""

from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import dagster as dg
import pytest

from iscp_dagster import Mirror, SourceTable
from iscp_dagster.api.environment import parse_run_retention
from iscp_dagster.location.assets.maintenance import PRUNE, find_kept_event_types
from iscp_dagster.location.assets.reports.data_versions import (
    build_version_event,
    read_reported_versions,
)
from iscp_dagster.location.build import build_shared_definitions
from iscp_dagster.location.names import get_index_asset_key, get_source_asset_key, get_sync_job_name
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.runs.pruning import PruneResult, prune_runs
from iscp_dagster.runs.run_names import DISPATCH_TAG
from support.errors import raises_naming
from support.jobs.one_table import Clock, in_memory


@pytest.fixture(params=["written by others", "loadable"])
def source(request):
    load = None if request.param == "written by others" else lambda *_: None
    return SourceTable(
        "shop.orders", key="id", tenant="region", path="/none", indexes=[Mirror()], load=load
    )


@pytest.fixture
def run(source):
    """Give a function that materializes the index in a run ahead of the news of these versions."""
    with dg.DagsterInstance.ephemeral() as instance:

        @dg.asset(
            key=get_index_asset_key(source, source.indexes[0]),
            partitions_def=dg.StaticPartitionsDefinition(["eu"]),
        )
        def mirror(context):
            for version in context.run.tags["versions"].split():
                context.log_event(build_version_event(source, "eu", int(version)))

        sync = dg.define_asset_job(get_sync_job_name(source), [mirror])
        job = dg.Definitions(assets=[mirror], jobs=[sync]).resolve_job_def(sync.name)

        def execute(versions, **tags):
            tags = {"versions": versions, **tags}
            return job.execute_in_process(instance=instance, partition_key="eu", tags=tags)

        execute.instance = instance
        yield execute


def prune(source, instance):
    return prune_runs(
        instance,
        before=datetime.now(timezone.utc) + timedelta(seconds=1),
        jobs={get_sync_job_name(source)},
        assets=find_kept_event_types(instance, [source]),
        most=100,
    )


def test_a_run_that_reported_a_source_s_latest_version_stays_until_another_reports_a_later_one(
    source, run
):
    instance, key = run.instance, get_source_asset_key(source)
    instance.report_runless_asset_event(build_version_event(source, "eu", 3))
    ahead = run("5", **{DISPATCH_TAG: "ahead"})
    run("")
    before = instance.get_materialized_partitions(key)
    assert prune(source, instance) == PruneResult(runs=0, kept=1)
    assert instance.has_run(ahead.run_id)
    assert instance.get_materialized_partitions(key) == before
    assert read_reported_versions(instance, source, ["eu"]) == {"eu": "5"}
    run("6")
    assert prune(source, instance) == PruneResult(runs=1, kept=0)
    assert not instance.has_run(ahead.run_id)
    assert read_reported_versions(instance, source, ["eu"]) == {"eu": "6"}


@pytest.mark.parametrize(
    ("environ", "days", "stays"),
    [
        ({}, None, True),
        ({"ISCP_KEEP_RUNS_DAYS": "0"}, None, False),
        ({"ISCP_KEEP_RUNS_DAYS": "0.5"}, None, True),
        ({"ISCP_KEEP_RUNS_DAYS": "30"}, 0, False),
        ({"ISCP_KEEP_RUNS_DAYS": "0"}, 1, True),
    ],
)
def test_the_hourly_job_keeps_runs_for_as_long_as_is_set(source, run, environ, days, stays):
    """What a person sets for one launch overrides the deployment's setting."""
    old = run("5", **{DISPATCH_TAG: "old"})
    run("6")
    iscp = SimpleNamespace(create_deployment=lambda: in_memory(Clock()))
    resources = {"iscp": iscp, "clickhouse": dg.mem_io_manager}
    defined = build_shared_definitions([source], resources, environ=environ)
    config = {} if days is None else {"ops": {f"{PRUNE}_op": {"config": {"keep_days": days}}}}
    job = defined.get_job_def(PRUNE)
    assert job.execute_in_process(instance=run.instance, run_config=config).success
    assert run.instance.has_run(old.run_id) is stays


@pytest.mark.parametrize("value", ["a week", "-1", "nan", "36501"])
def test_a_wrong_time_to_keep_runs_is_refused(value):
    with raises_naming(ConfigError, "ISCP_KEEP_RUNS_DAYS", f"'{value}'", 0, 36_500):
        parse_run_retention({"ISCP_KEEP_RUNS_DAYS": value})
