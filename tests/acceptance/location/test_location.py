"""The code location with real services: what Dagster shows, and what its runs do."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa
from dagster._core.definitions.assets.job.asset_job import IMPLICIT_ASSET_JOB_NAME
from dagster._core.definitions.data_version import (
    DATA_VERSION_TAG,
    CachingStaleStatusResolver,
    StaleStatus,
)
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.definitions.sensor_definition import SensorExecutionData
from dagster._core.execution.api import execute_run
from dagster._core.loader import LoadingContextForTest
from dagster._core.remote_origin import (
    GrpcServerCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)
from dagster._grpc.impl import get_external_sensor_execution

from iscp_dagster import FullText, Mirror, SourceTable, Vector
from iscp_dagster.local.services.settings import get_repository
from iscp_dagster.location.assets import index_assets
from iscp_dagster.location.assets.reports.reporting import sync_tenants
from iscp_dagster.location.build import build_definitions
from iscp_dagster.location.names import (
    TENANT_COUNT_TAG,
    TENANT_TAG,
    get_index_asset_key,
    get_partitions_name,
    get_source_asset_key,
    get_sync_job_name,
)
from iscp_dagster.location.resources.iscp import ClickHouse, ClickHouseTables, Iscp, IscpLog, Lake
from iscp_dagster.location.resources.spark import Spark
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.specs import ConsumerInfo, IterationDetail, JobSpec
from iscp_dagster.model.states import JobState
from iscp_dagster.planning import watch
from iscp_dagster.runs.run_names import DISPATCH_TAG
from iscp_dagster.webhooks.outbox import Outbox
from iscp_dagster.webhooks.tables import ISCP_OUTBOX, OUTBOX, DeliveryState
from runtime_support.manual_clock import NOON
from support.errors import assert_names
from support.jobs.sensor_ticks import RUNNER, Ticks
from support.lake.delta_tables import COLUMNS, FEED, NUMBERS, Table, deployment_at, rows
from support.lake.row_writer import ANYWAY
from support.outbox.outbox_events import event
from support.services.stack import clean_environment

ADDRESSES = {
    "CLICKHOUSE_URL": "http://127.0.0.1:9",
    "SPARK_REMOTE": "sc://127.0.0.1:9",
    "ISCP_LAKE": "/nowhere",
}
PLOTTED = {
    "from_version",
    "to_version",
    "rows_inserted",
    "rows_deleted",
    "lag_seconds",
    "read_seconds",
    "write_seconds",
    "rows_per_second",
    "bytes",
}
INDEXES = (
    Mirror(description="The people as they are."),
    FullText("name", owners=["team:words"]),
    Vector("v", dimension=2, metric="l2", tags={"model": "toy"}),
)
TWO = INDEXES[::2]
"""A mirror and a vector."""


def load(asked):
    """Make the table hold rows 1 and 2 of each requested tenant."""
    spark, table = asked.spark, f"delta.`{asked.path}`"
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {table} ({COLUMNS}) USING delta PARTITIONED BY (tenant) "
        f"TBLPROPERTIES ({FEED})"
    ).collect()
    for tenant in asked.tenants:
        spark.sql(f"DELETE FROM {table} WHERE tenant = '{tenant}'").collect()
        spark.sql(f"INSERT INTO {table} VALUES {rows(1, 2, tenant=tenant)}").collect()


NOWHERE = RemoteJobOrigin(
    RemoteRepositoryOrigin(GrpcServerCodeLocationOrigin("nowhere", port=1), "repository"), "job"
)


def test_the_location_loads_without_warnings_and_connects_to_nothing(tmp_path):
    log = {"ISCP_LOG_URL": f"sqlite:///{tmp_path / 'log.sqlite'}", "DAGSTER_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "import iscp_dagster.definitions"],
        cwd=get_repository(),
        env=clean_environment(tmp_path) | ADDRESSES | log,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []


@dataclass
class Location:
    """A location with one table and a Dagster instance of its own."""

    table: Table
    instance: dg.DagsterInstance
    defs: dg.Definitions

    @cached_property
    def ticks(self) -> Ticks:
        return Ticks(self.defs, self.instance)

    @property
    def source(self) -> SourceTable:
        return self.table.source

    @property
    def keys(self) -> list[dg.AssetKey]:
        return [get_index_asset_key(self.source, index) for index in self.source.indexes]

    def tick(self) -> Any:
        """Evaluate both sensors once, and record their reports as the daemon does."""
        result = self.ticks()
        for told in result.asset_events:
            self.instance.report_runless_asset_event(told)
        return result

    def run(self, keys, partition, tags=None, *, fails=False, job_name=None) -> Any:
        """Materialize, or run a job without assets, in this process, without checks."""
        job = self.defs.resolve_implicit_global_asset_job_def()
        if job_name is not None:
            job = self.defs.resolve_job_def(job_name)
        if keys is not None:
            job = job.get_subset(asset_selection=set(keys), asset_check_selection=set())
        result = job.execute_in_process(
            instance=self.instance,
            partition_key=partition,
            tags=dict(tags or {}),
            raise_on_error=not fails,
        )
        assert result.success is not fails
        return result

    def requested(self, request: dg.RunRequest) -> Any:
        keys, partition = request.asset_selection, request.partition_key
        return self.run(keys, partition, request.tags, job_name=request.job_name)

    def job(self, name, config=None, *, fails=False) -> Any:
        """Run a job without assets, in this process."""
        job = self.defs.resolve_job_def(name)
        result = job.execute_in_process(
            instance=self.instance, run_config=config or {}, raise_on_error=not fails
        )
        assert result.success is not fails
        return result

    def launched(self, name) -> str:
        """Launch a job without a partition; return the error of its run."""
        job = self.defs.resolve_job_def(name)
        if name == IMPLICIT_ASSET_JOB_NAME:
            job = self.defs.resolve_implicit_global_asset_job_def()
        run = self.instance.create_run_for_job(job)
        result = execute_run(InMemoryJob(job), run, self.instance)
        (failure,) = [e for e in result.all_events if e.event_type_value == "PIPELINE_FAILURE"]
        return failure.job_failure_data.error.to_string()

    def materializations(self, run) -> list:
        """Return the run's materializations, as Dagster stores them."""
        kind = dg.DagsterEventType.ASSET_MATERIALIZATION
        found = self.instance.get_records_for_run(run.run_id, of_type=kind).records
        return [each.event_log_entry.dagster_event for each in found]

    def follow(self) -> None:
        """Tick and run the requested runs, until there are none."""
        while requests := self.tick().run_requests:
            for request in requests:
                self.requested(request)

    def data_versions(self, partition) -> set[str]:
        """Return the data versions of the indexes' latest materializations of the tenant."""
        found = set()
        for key in self.keys:
            wanted = dg.AssetRecordsFilter(key, asset_partitions=[partition])
            (record,) = self.instance.fetch_materializations(wanted, limit=1).records
            found.add(record.asset_materialization.tags[DATA_VERSION_TAG])
        return found

    def status(self, partition, keys=None) -> set[StaleStatus]:
        graph = self.defs.resolve_asset_graph()
        context = LoadingContextForTest(self.instance)
        resolver = CachingStaleStatusResolver(self.instance, graph, context)
        return {resolver.get_status(key, partition) for key in keys or self.keys}


@contextmanager
def locating(clickhouse_url, spark, folder):
    """Give a function that makes a Location; without `load`, others write its table.

    Its Dagster is in memory, where nothing is created for each run, unless it is `stored`.
    """
    instances = []

    def build(*, stored=False, **declared):
        deployment = deployment_at(clickhouse_url, spark, folder)
        source = SourceTable(
            f"located{next(NUMBERS)}.people",
            **{"key": "id", "indexes": TWO, "tenant": "tenant"} | declared,
        )
        iscp = Iscp(
            clickhouse=ClickHouse(url=clickhouse_url),
            lake=Lake(root=deployment.lake),
            log=IscpLog(url=f"sqlite:///{folder / 'iscp_log.sqlite'}"),
            spark=Spark(remote=spark if isinstance(spark, str) else "sc://near"),
        )
        tables = {"clickhouse": ClickHouseTables(iscp=iscp)}
        home = folder / f"dagster {len(instances)}"
        home.mkdir()
        quiet = {"telemetry": {"enabled": False}}
        if stored:
            instances.append(dg.DagsterInstance.local_temp(str(home), overrides=quiet))
        else:
            instances.append(dg.DagsterInstance.ephemeral(str(home), settings=quiet))
        return Location(
            table=Table(deployment, source),
            instance=instances[-1],
            defs=build_definitions([source], {"iscp": iscp, **tables}),
        )

    yield build
    for instance in instances:
        instance.dispose()


@pytest.fixture
def locate(clickhouse_url, near_spark, tmp_path, migrations_read):
    with locating(clickhouse_url, near_spark, tmp_path) as build:
        yield build


@pytest.fixture
def location(locate):
    """A location with a mirror of a table that others write; it is there, and empty."""
    location = locate(indexes=[Mirror()])
    location.table.create()
    return location


@pytest.fixture
def location_of_two(locate):
    """The same with two indexes."""
    location = locate()
    location.table.create()
    return location


def test_the_graph_shows_lineage_tenants_kinds_and_owners(locate):
    location = locate(
        load=load,
        indexes=INDEXES,
        description="People.",
        owners=["team:people"],
        tags={"domain": "people"},
    )
    source, graph = location.source, location.defs.resolve_asset_graph()
    specs = {spec.key: spec for spec in location.defs.resolve_all_asset_specs()}
    assert set(specs) == {get_source_asset_key(source), *location.keys}
    above = specs[get_source_asset_key(source)]
    assert (above.kinds, above.description) == ({"deltalake"}, "People.")
    assert above.metadata["primary_key"] == "id"
    mirror, text, vector = (specs[key] for key in location.keys)
    for spec in specs.values():
        assert spec.group_name == source.database
        assert spec.tags["domain"] == "people"
        assert spec.partitions_def.name == get_partitions_name(source)
    for spec in (mirror, text, vector):
        assert spec.kinds == {"clickhouse"}
        assert graph.get(spec.key).parent_keys == {get_source_asset_key(source)}
        assert spec.metadata["dagster/table_name"] == ".".join(spec.key.path)
    assert (mirror.description, mirror.owners) == ("The people as they are.", ["team:people"])
    assert (text.owners, vector.tags["model"]) == (["team:words"], "toy")
    sensor = location.defs.resolve_sensor_def("iscp_runner")
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    # A table without tenants has one partition.
    location = locate(tenant=None, load=load)
    node = location.defs.resolve_asset_graph().get(location.keys[0])
    assert node.partitions_def.get_partition_keys() == ["default"]


def test_from_loading_the_source_to_served_indexes(locate):
    location = locate(load=load, tenants=lambda: ["a", "b"])
    offered = location.tick()
    assert offered.run_requests == []
    assert_names(offered.skip_message, location.source.name)
    name = get_partitions_name(location.source)
    assert location.instance.get_dynamic_partitions(name) == ["a", "b"]
    for tenant in ("a", "b"):
        loaded = location.run([get_source_asset_key(location.source)], tenant)
    (event,) = loaded.asset_materializations_for_node(f"load_{location.source.database}_people")
    columns = event.metadata["dagster/column_schema"].schema.columns
    assert [column.name for column in columns] == ["tenant", "id", "name", "v"]
    assert event.metadata["stored_rows"].value == 4

    result = location.tick()
    (request,) = result.run_requests
    assert request.job_name == tenants_name(location)
    assert request.tags[TENANT_COUNT_TAG] == "2"
    (over,) = [e for e in result.asset_events if isinstance(e, dg.AssetCheckEvaluation)]
    assert over.passed, "the table is there now"
    told = [each for each in result.asset_events if each is not over]
    assert {each.metadata["version"].value for each in told} == {location.table.version}
    for each in told:
        shown = each.metadata["dagster/column_schema"].schema.columns
        assert [column.name for column in shown] == ["tenant", "id", "name", "v"]
    assert location.status("a") == {StaleStatus.MISSING}
    done = location.requested(request)
    assert location.status("a") == location.status("b") == {StaleStatus.FRESH}
    location.table.check()

    events = location.materializations(done)
    assert {(each.asset_key, each.materialization.partition) for each in events} == {
        (key, tenant) for key in location.keys for tenant in ("a", "b")
    }
    assert len(events) == 2 * len(TWO)
    for each in events:
        shown = each.materialization.metadata
        numbers = {key for key, value in shown.items() if isinstance(value.value, int | float)}
        assert numbers >= PLOTTED
        assert shown["rows_inserted"].value == 2
        assert shown["lag_seconds"].value > 0
        columns = {column.name: column for column in shown["dagster/column_schema"].schema.columns}
        assert columns["id"].type == "Int64"
    quiet = location.tick()
    assert (quiet.run_requests, list(quiet.asset_events)) == ([], [])
    # A load that leaves a tenant as it was leaves its indexes fresh.
    location.table.insert(9, tenant="b")
    location.follow()
    before = location.table.version
    location.run([get_source_asset_key(location.source)], "a")
    assert location.table.version > before
    location.table.sql("OPTIMIZE {t}")
    location.run([get_source_asset_key(location.source)], "a")
    location.follow()
    assert location.status("a") == location.status("b") == {StaleStatus.FRESH}
    location.table.check()


def test_a_partition_that_is_behind_shows_as_such_until_it_is_materialized(locate):
    """Whoever is ahead of the runner is not behind its news."""
    location = locate(load=load)
    location.table.create()
    location.table.insert(1, tenant="a")
    location.table.insert(1, tenant="b")
    location.follow()
    assert location.status("a") == location.status("b") == {StaleStatus.FRESH}
    location.table.insert(2, tenant="a")
    found = location.tick()
    assert [request.partition_key for request in found.run_requests] == ["a"]
    assert location.status("a") == {StaleStatus.STALE}
    assert location.status("b") == {StaleStatus.FRESH}
    by_hand = location.run(location.keys, "a")
    assert location.status("a") == {StaleStatus.FRESH}
    location.table.check()
    (event, *_) = location.materializations(by_hand)
    assert event.materialization.metadata["rows_inserted"].value == 1
    assert event.materialization.metadata["to_version"].value == location.table.version
    # The run that the runner asked for finds its jobs taken, and ends quietly.
    (request,) = found.run_requests
    assert location.materializations(location.requested(request)) == []
    location.table.check()
    # One index alone is materialized before the runner has seen the commits.
    location.table.insert(3, tenant="a")
    location.table.insert(2, tenant="b")
    one, *rest = location.keys
    location.run([one], "a")
    assert location.status("a", [one]) == {StaleStatus.FRESH}
    assert location.status("a", rest) == {StaleStatus.STALE}
    assert location.table.query("SELECT count() FROM {mirror}") == [(4,)]
    assert location.table.query("SELECT count() FROM {vector}") == [(3,)]
    found = location.tick()
    assert location.status("a", [one]) == {StaleStatus.FRESH}
    for request in found.run_requests:
        location.requested(request)
    location.follow()
    assert location.status("a") == location.status("b") == {StaleStatus.FRESH}
    location.table.insert(4, tenant="a")
    location.run(location.keys, "a")
    location.tick()
    assert location.status("a") == {StaleStatus.FRESH}
    location.table.check()


def test_tenants_in_buckets_show_as_buckets(locate):
    location = locate(buckets=2)
    location.table.create()
    location.table.sql("INSERT INTO {t} VALUES " + rows(1, tenant="a"))
    for tenant in "bcd":
        location.table.insert(1, tenant=tenant)
    location.follow()
    node = location.defs.resolve_asset_graph().get(location.keys[0])
    even, odd = node.partitions_def.get_partition_keys()
    assert (even, odd) == ("bucket-0", "bucket-1")
    assert location.status(even) == location.status(odd) == {StaleStatus.FRESH}
    served = location.table.view(location.source.indexes[0], "__rows")
    query = f"SELECT DISTINCT _partition_id FROM {served} ORDER BY 1"
    assert location.table.query(query) == [("0",), ("1",)]
    location.table.insert(2, tenant="a")
    (request,) = location.tick().run_requests
    assert request.partition_key is None
    assert location.status(even) == {StaleStatus.STALE}
    assert location.status(odd) == {StaleStatus.FRESH}
    events = location.materializations(location.requested(request))
    assert {event.materialization.partition for event in events} == {even}
    facts = {name: told.value for name, told in events[0].materialization.metadata.items()}
    assert {name: facts[name] for name in IN_BUCKETS} == IN_BUCKETS
    assert location.status(even) == {StaleStatus.FRESH}
    # By hand all tenants of the bucket are brought in step.
    location.table.insert(3, tenant="c")
    location.table.insert(4, tenant="b")
    location.run(location.keys, even)
    (request,) = location.tick().run_requests
    assert location.status(even) == {StaleStatus.FRESH}
    assert location.status(odd) == {StaleStatus.STALE}
    location.requested(request)
    assert location.status(odd) == {StaleStatus.FRESH}
    assert location.data_versions(even) == {str(location.table.version)}
    location.table.check()
    # A bucket is stale until each of its tenants is in step.
    location.table.insert(5, tenant="c")
    location.table.sql("INSERT INTO {t} VALUES ('a', 5, 'x', array(1, 2, 3))")
    (request,) = location.tick().run_requests
    failed = location.run(None, None, request.tags, job_name=request.job_name, fails=True)
    mirror, vector = location.keys
    assert location.status(odd) == {StaleStatus.FRESH}
    assert location.status(even, [mirror]) == {StaleStatus.FRESH}
    assert location.status(even, [vector]) == {StaleStatus.STALE}
    (event,) = [
        event.materialization
        for event in location.materializations(failed)
        if (event.materialization.asset_key, event.partition) == (vector, even)
    ]
    assert event.metadata["tenants_in_error"].value == 1
    assert event.metadata["oldest_watermark"].value < event.metadata["to_version"].value
    location.table.sql("DELETE FROM {t} WHERE id = 5 AND tenant = 'a'")
    location.run(location.keys, even)
    assert location.status(even) == {StaleStatus.FRESH}
    location.table.check()


def test_a_bucket_is_stale_until_later_looks_have_queued_its_tenants(locate, monkeypatch):
    location = locate(buckets=1)
    location.table.create()
    first, second = (", ".join(rows(id_, tenant=tenant) for tenant in "abc") for id_ in (1, 2))
    location.table.sql("INSERT INTO {t} VALUES " + first)
    location.follow()
    monkeypatch.setattr(watch, "MOST_PLANNED", 1)
    location.table.sql("INSERT INTO {t} VALUES " + second)
    states = [look_and_run(location, "bucket-0") for _ in "abc"]
    assert states == [{StaleStatus.STALE}, {StaleStatus.STALE}, {StaleStatus.FRESH}]
    assert location.tick().run_requests == []
    location.table.check()


def look_and_run(location, partition):
    """Carry out what one look requests, and return the states of the partition."""
    (request,) = location.tick().run_requests
    location.requested(request)
    return location.status(partition)


IN_BUCKETS = {
    "tenants": 1,
    "rows_inserted": 1,
    "tenants_in_error": 0,
    "tenants_behind": 0,
    "read": "tail: 1 tenants",
}


def range_tags(first, last=None, **more):
    """Return the tags of a backfill's run for a stretch of adjacent tenants."""
    tags = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
    return dict(zip(tags, (first, last or first), strict=True)) | more


def test_tenants_are_materialized_by_one_run_each_with_its_own_rows_or_none(location):
    for number, tenant in enumerate("abcd"):
        location.table.insert(*range(number + 1), tenant=tenant)
    location.follow()
    before = location.data_versions("a")
    for tenant in "bcd":
        location.table.insert(7, 8, tenant=tenant)
    (queued,) = location.tick().run_requests
    location.run(location.keys, "c")
    assert location.status("a") == location.status("c") == {StaleStatus.FRESH}
    assert location.status("b") == location.status("d") == {StaleStatus.STALE}
    of_range = location.run(location.keys, None, range_tags("a", "c"))
    by_hand = location.run(location.keys, "a")
    for done, tenants in ((of_range, "abc"), (by_hand, "a")):
        found = [each.materialization for each in location.materializations(done)]
        assert {(each.asset_key, each.partition) for each in found} == {
            (key, tenant) for key in location.keys for tenant in tenants
        }
        assert len(found) == len(tenants)
        for each in found:
            changed = each.partition == "b"
            assert each.metadata["rows_inserted"].value == (2 if changed else 0)
            assert each.metadata["to_version"].value == location.table.version
            told = each.metadata["read"].value
            assert told.startswith("nothing: already in step") is not changed
    assert location.data_versions("a") == before, "it makes no asset downstream stale"
    for tenant in "abc":
        assert location.status(tenant) == {StaleStatus.FRESH}
    assert location.status("d") == {StaleStatus.STALE}
    location.requested(queued)
    location.table.check()


def test_the_runs_of_a_backfill_that_wait_are_one_with_a_run_that_begins_or_ends(
    location_of_two, monkeypatch
):
    location = location_of_two
    for tenant in "abcdefg":
        location.table.insert(1, tenant=tenant)
    location.tick()
    job = location.defs.resolve_implicit_global_asset_job_def()
    mine, fewer = (
        job.get_subset(asset_selection=set(keys), asset_check_selection=set())
        for keys in (location.keys, location.keys[:1])
    )

    def run_of(job, *tenants, of="ours", status=dg.DagsterRunStatus.QUEUED, **tags):
        return location.instance.create_run_for_job(
            job,
            tags=range_tags(*tenants, **{"dagster/backfill": of}, **tags),
            asset_selection=frozenset(job.asset_selection),
            status=status,
            remote_job_origin=NOWHERE,
        )

    def waiting(*run):
        return run_of(*run).run_id

    def executed(*run, **named):
        """Execute a run; return it and the tenants that it materialized."""
        begun = run_of(mine, *run, **named, status=dg.DagsterRunStatus.NOT_STARTED)
        result = execute_run(InMemoryJob(mine), begun, location.instance)
        assert result.success
        found = location.instance.get_records_for_run(
            begun.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION
        ).records
        return begun.run_id, {each.partition_key for each in found}

    taken = [waiting(mine, "c"), waiting(mine, "e", "f")]
    tenants = get_partitions_name(location.table.source)
    location.instance.add_dynamic_partitions(tenants, ["gone"])
    left = [run_of(mine, "b", of="another's").run_id, waiting(fewer, "d"), waiting(mine, "gone")]
    # Dagster itself reports partitions that no longer exist.
    location.instance.delete_dynamic_partition(tenants, "gone")
    first, found = executed("a")
    assert found == set("acef")
    runs = {run.run_id: run for run in location.instance.get_runs()}
    assert {runs[each].status for each in taken} == {dg.DagsterRunStatus.CANCELED}
    assert {runs[each].status for each in left} == {dg.DagsterRunStatus.QUEUED}
    assert {runs[each].tags["iscp/taken_by"] for each in taken} == {first}
    # Executed again, it covers the same tenants.
    location.table.insert(2, tenant="c")
    again = {"dagster/parent_run_id": first, "dagster/root_run_id": first}
    assert executed("a", **again)[1] == set("acef")
    # An earlier run may be taking over the queued ones just now.
    run_of(mine, "b", of="third", status=dg.DagsterRunStatus.STARTED)
    late = run_of(mine, "d", of="third").run_id
    log = location.table.deployment.log
    assert log.take_leases(["backfill third"], "the earlier run", 60.0)
    assert executed("g", of="third")[1] == {"g"}
    assert location.instance.get_run_by_id(late).status is dg.DagsterRunStatus.QUEUED
    log.take_leases(["backfill third"], "the earlier run", 0.0)
    assert executed("g", of="third")[1] == {"d", "g"}
    # A run takes over, at its end, the runs that were queued while it worked.
    more = iter([("a",), ("d", "e")])

    def meanwhile(*given):
        for tenants in more:
            run_of(mine, *tenants, of="fourth")
            break
        return sync_tenants(*given)

    monkeypatch.setattr(index_assets, "sync_tenants", meanwhile)
    assert executed("b", "c", of="fourth")[1] == set("abcde")


def test_a_run_executed_again_does_what_materializing_by_hand_does(location_of_two):
    location = location_of_two
    location.table.sql("INSERT INTO {t} VALUES ('a', 3, 'x', array(1, 2, 3))")
    register(location, "copy", "mirror")
    (request,) = location.tick().run_requests
    failed = location.run(request.asset_selection, request.partition_key, request.tags, fails=True)
    (failure,) = [e for e in failed.all_events if e.event_type_value == "STEP_FAILURE"]
    assert_names(failure.step_failure_data.error.message, "[10300]", "3 floats", {"id": 3}, 2)
    assert request.tags["dagster/max_retries"] == "0", "by itself Dagster repairs nothing"
    again = again_tags(failed, request)
    assert location.run(request.asset_selection, "a", again, fails=True)
    assert states(location)["vector"] is JobState.ERROR
    assert states(location)["mirror"] is JobState.COMPLETED
    location.table.sql("DELETE FROM {t} WHERE id = 3")
    location.table.insert(1)
    done = location.run(request.asset_selection, "a", again)
    assert len(location.materializations(done)) == len(TWO) + 1
    assert set(states(location).values()) == {JobState.COMPLETED}
    location.table.check()
    # A run launched with a dispatched run's tags also does its work.
    location.table.insert(2)
    copied = {name: request.tags[name] for name in request.tags if name.startswith("iscp/")}
    location.run(request.asset_selection, "a", copied)
    location.table.insert(3)
    found = location.run(None, None, copied, job_name=tenants_name(location))
    assert {each.asset_key.path[-1] for each in location.materializations(found)} == {
        "people_copy",
        *(key.path[-1] for key in location.keys),
    }
    assert location.table.query(f"SELECT count() FROM {location.source.database}.people_copy") == [
        (3,)
    ]


def test_a_run_that_names_no_tenant_says_how_to_name_one(locate):
    location = locate(load=load)
    location.table.create()
    loading = [get_source_asset_key(location.source)]
    for keys in (location.keys, loading):
        failed = location.run(keys, None, fails=True)
        (failure,) = [e for e in failed.all_events if e.event_type_value == "STEP_FAILURE"]
        assert "names no tenant" in failure.step_failure_data.error.message
    location.table.insert(1)
    # Once data versions exist, Dagster asks for a run's input versions before any of its steps.
    location.tick()
    for job_name in (IMPLICIT_ASSET_JOB_NAME, get_sync_job_name(location.source)):
        assert "names no tenant" in location.launched(job_name)


def test_an_asset_downstream_gets_the_served_rows(location):
    location.table.insert(1, 2, tenant="a")
    location.table.insert(3, tenant="b")
    location.follow()
    seen = {}

    @dg.asset(
        ins={"people": dg.AssetIn(location.keys[0])},
        partitions_def=dg.DynamicPartitionsDefinition(name=get_partitions_name(location.source)),
    )
    def counted(context, people):
        seen[context.partition_key] = (people.column_names, people["id"].to_pylist())

    defs = dg.Definitions.merge(location.defs, dg.Definitions(assets=[counted]))
    job = defs.resolve_implicit_global_asset_job_def()
    for tenant in ("a", "b"):
        job.execute_in_process(
            instance=location.instance, asset_selection=[counted.key], partition_key=tenant
        )
    columns = ["tenant", "id", "name", "v"]
    assert seen == {"a": (columns, [1, 2]), "b": (columns, [3])}


def test_the_asset_check_compares_the_tenants_of_its_run_and_finds_a_wrong_row(location):
    for tenant in ("a", "b"):
        location.table.insert(1, 2, tenant=tenant)
    location.follow()
    check = location.defs.asset_checks[0]
    job = dg.define_asset_job("checks", dg.AssetSelection.checks(check))
    defs = dg.Definitions.merge(location.defs, dg.Definitions(jobs=[job]))

    def checks(tags=None):
        result = defs.resolve_job_def("checks").execute_in_process(
            instance=location.instance, tags=tags
        )
        found = result.get_asset_check_evaluations()
        return {(each.asset_key.path[-1], each.partition): each.passed for each in found}

    def unchecked():
        """Return index and tenant of each latest materialization that was not checked since."""
        return {
            (info.check_key.asset_key.path[-1], info.partition_key)
            for info in location.instance.event_log_storage.get_asset_check_partition_info(
                sorted(spec.key for spec in check.check_specs)
            )
            if info.partition_key and not info.is_current
        }

    names = [key.path[-1] for key in location.keys]
    every = {(name, tenant) for name in names for tenant in "ab"}
    assert checks() == dict.fromkeys(every, True)
    assert unchecked() == set()
    location.table.insert(3)
    location.follow()
    of_a = {(name, "a") for name in names}
    assert unchecked() == of_a
    assert checks({"dagster/partition": "a"}) == dict.fromkeys(of_a, True)
    assert checks(range_tags("a")) == dict.fromkeys(of_a, True)
    assert unchecked() == set()
    served = location.table.view(location.source.indexes[0], "__rows")
    location.table.deployment.endpoint.get_client().command(
        f"INSERT INTO {served} (tenant, id, name, v, _version) VALUES ('a', 1, '', [1,1], 99)",
        settings=ANYWAY,
    )
    assert {each for each, passed in checks().items() if not passed} == {("people_mirror", "a")}


def evaluated(location, log_key):
    """Return the code server's answer: to the daemon with a tick's key, to the UI with none."""
    found = get_external_sensor_execution(
        location.defs.get_repository_def(),
        None,
        location.instance.get_ref(),
        "iscp_runner",
        None,
        None,
        location.ticks.cursors.get(RUNNER),
        log_key,
        None,
    )
    assert isinstance(found, SensorExecutionData), found
    return found


def test_who_tests_the_sensor_is_told_what_is_due_and_nothing_comes_of_it(locate):
    location = locate(stored=True, indexes=[Mirror()])
    location.table.create()
    for tenant in "ab":
        location.table.insert(1, tenant=tenant)
    log, name = location.table.deployment.log, get_partitions_name(location.source)
    tried = evaluated(location, None)
    (request,) = tried.run_requests
    assert (request.job_name, request.partition_key) == (tenants_name(location), None)
    assert (tried.cursor, tried.asset_events) == (None, [])
    assert (log.list_jobs(include_dropped=True), log.read_history()) == ([], [])
    assert location.instance.get_dynamic_partitions(name) == []
    # Launching the request that it shows makes a run by hand.
    done = location.run(None, None, request.tags, job_name=request.job_name)
    assert len(location.materializations(done)) == 2
    location.table.check()
    location.table.insert(2, tenant="b")
    ticked = evaluated(location, ["repository", "iscp_runner", "7"])
    assert [each.partition_key for each in ticked.run_requests] == ["b"]
    pending = log.list_jobs(state=JobState.PENDING)
    assert {job.key.tenant for job in pending} == {"b"}
    again = evaluated(location, None)
    assert again.run_requests == []
    assert log.list_jobs(state=JobState.PENDING) == pending


def test_of_many_tenants_in_a_run_one_that_is_refused_fails_it_and_others_are_fresh(
    location_of_two,
):
    location = location_of_two
    for tenant in "abc":
        location.table.insert(1, tenant=tenant)
    location.table.sql("INSERT INTO {t} VALUES ('b', 2, 'x', array(1, 2, 3))")
    (request,) = location.tick().run_requests
    failed = location.run(None, None, request.tags, job_name=request.job_name, fails=True)
    (failure,) = [e for e in failed.all_events if e.event_type_value == "STEP_FAILURE"]
    said = failure.step_failure_data.user_failure_data.description
    assert said.startswith(f"[10300] {location.source.database}.people/vector, tenant 'b': ")
    assert "has 3 floats" in said
    assert said.count("\n") == 0, "the others are not in it"
    mirror, vector = location.keys
    for tenant in "ac":
        assert location.status(tenant) == {StaleStatus.FRESH}
    assert location.status("b", [mirror]) == {StaleStatus.FRESH}
    assert location.status("b", [vector]) == {StaleStatus.MISSING}
    location.table.sql("DELETE FROM {t} WHERE id = 2")
    # Executed again, it does the remaining work of its tenants.
    again = again_tags(failed, request)
    done = location.run(None, None, again, job_name=request.job_name)
    events = location.materializations(done)
    assert {each.materialization.partition for each in events} == {"b"}
    location.follow()
    location.table.check()
    for tenant in "abc":
        assert location.status(tenant) == {StaleStatus.FRESH}


def states(location):
    return {job.key.job_name: job.state for job in location.table.jobs()}


def tenants_name(location):
    return f"batch_sync_{location.source.database}_people"


def again_tags(result, request):
    """Return the tags of a run that executes this one again."""
    run_id = result.dagster_run.run_id
    return dict(request.tags) | {"dagster/parent_run_id": run_id, "dagster/root_run_id": run_id}


def name_of(location, job):
    return JobID(db=location.source.database, table=location.source.table, job=job)


def register(location, job, kind, **options):
    source = location.source
    info = ConsumerInfo(type=kind, db=source.database, table=source.table, job=job, options=options)
    log = location.table.deployment.log
    table_id = location.table.deployment.make_delta_log(source).get_table_id()
    spec = JobSpec(detail=IterationDetail(consumer=info))
    assert log.register("a", name_of(location, job), table_id, spec)


def test_a_job_that_no_index_declares_runs_beside_those_that_one_does(location):
    location.table.insert(1)
    location.follow()
    register(location, "copy", "mirror")
    (request,) = location.tick().run_requests
    assert request.job_name == f"batch_sync_{location.source.database}_people"
    assert request.tags[TENANT_TAG] == "a"
    location.requested(request)
    view = f"{location.source.database}.people_copy"
    assert location.table.query(f"SELECT id FROM {view}") == [(1,)]
    key = dg.AssetKey([location.source.database, "people_copy"])
    event = location.instance.get_latest_materialization_event(key)
    assert event.asset_materialization.partition == "a"
    assert event.asset_materialization.metadata["rows_inserted"].value == 1
    location.table.insert(2)
    (request,) = location.tick().run_requests
    assert len(request.asset_selection) == 1
    location.requested(request)
    assert location.table.query(f"SELECT count() FROM {view}") == [(2,)]
    location.table.check()


def test_watermarks_are_flushed_and_runs_pruned_by_jobs_that_a_person_may_start_too(location):
    """Each partition keeps its latest materialization."""
    for tenant in "ab":
        location.table.insert(1, tenant=tenant)
    location.follow()
    for number in (2, 3):
        location.table.insert(number)
        location.follow()
    assert {job.watermark.version for job in location.table.jobs()} == {2, 4}
    assert location.job("iscp_flush_watermarks").success
    assert {job.watermark.version for job in location.table.jobs()} == {4}
    assert {job.status.to.version for job in location.table.jobs()} == {2, 4}
    location.table.check()
    # Garbage is collected once an hour, too.
    for minute, name in ((7, "iscp_flush_watermarks"), (17, "iscp_collect_garbage")):
        schedule = location.defs.resolve_schedule_def(f"{name}_hourly")
        assert (schedule.cron_schedule, schedule.job_name) == (f"{minute} * * * *", name)
    by_hand = location.run(location.keys, "b")
    instance, name = location.instance, get_partitions_name(location.source)
    before = {key: instance.get_materialized_partitions(key) for key in location.keys}
    runs = [each for each in instance.get_runs() if DISPATCH_TAG in each.tags]
    many, first, latest = reversed(runs)
    config = {"ops": {"iscp_prune_runs_op": {"config": {"keep_days": 0, "dry_run": True}}}}
    assert location.job("iscp_prune_runs").success
    assert location.job("iscp_prune_runs", config).success
    assert instance.has_run(first.run_id), "a week has not passed, and a dry run deletes nothing"
    config["ops"]["iscp_prune_runs_op"]["config"]["dry_run"] = False
    assert location.job("iscp_prune_runs", config).success
    assert not instance.has_run(first.run_id)
    assert all(instance.has_run(each.run_id) for each in (latest, by_hand))
    assert not instance.has_run(many.run_id), "b was materialized by hand since"
    assert {key: instance.get_materialized_partitions(key) for key in location.keys} == before
    assert instance.get_dynamic_partitions(name) == ["a", "b"]
    assert location.status("a") == location.status("b") == {StaleStatus.FRESH}


def test_events_that_ended_are_collected_after_their_days_and_none_by_a_dry_run(locate):
    location = locate()
    outbox = Outbox(location.table.deployment.log.engine)
    with outbox.begin_write() as connection:
        outbox.record_events(connection, [event(1), event(2)])
        ended = {"state": int(DeliveryState.DELIVERED), "ended_at": NOON}
        connection.execute(sa.update(ISCP_OUTBOX).where(OUTBOX.number == 1).values(**ended))
    days = (datetime.now(timezone.utc) - NOON) / timedelta(days=1)
    for kept, dry_run, left in ((days - 1, True, 2), (days + 1, False, 2), (days - 1, False, 1)):
        config = {"dry_run": dry_run, "events_days": kept}
        ops = {"ops": {"iscp_collect_garbage_op": {"config": config}}}
        assert location.job("iscp_collect_garbage", ops).success
        assert len(outbox.list_deliveries()) == left


def test_garbage_is_collected_a_day_after_with_its_data(locate):
    location = locate(indexes=INDEXES[:2])
    location.table.create()
    location.table.insert(1)
    location.table.insert(1, tenant="b")
    location.follow()
    log, table = location.table.deployment.log, location.table
    log.unregister("a", name_of(location, "mirror"))
    for tenant in "ab":
        log.unregister(tenant, name_of(location, "text"))
    counted = "SELECT count() FROM {mirror}"
    assert location.job("iscp_collect_garbage").success
    assert len(log.list_jobs(include_dropped=True)) == 4, "a day has not passed"
    config = {"ops": {"iscp_collect_garbage_op": {"config": {"keep_hours": 0, "dry_run": True}}}}
    assert location.job("iscp_collect_garbage", config).success
    assert (len(log.list_jobs(include_dropped=True)), table.query(counted)) == (4, [(2,)])
    config["ops"]["iscp_collect_garbage_op"]["config"]["dry_run"] = False
    register(location, "copy", "mirror")
    location.follow()
    log.unregister("a", name_of(location, "copy"))
    for number in range(2):
        assert location.job("iscp_collect_garbage", config).success
        # Jobs that would register themselves again keep their rows, so that they do not.
        assert len(log.list_jobs(include_dropped=True)) == 4
        location.table.insert(9 + number)
        location.follow()
        assert len(log.list_jobs()) == 1
        assert table.query("SELECT tenant FROM {mirror}") == [("b",)]
        tables = table.query(
            f"SELECT count() FROM system.tables WHERE database = '{location.source.database}' "
            "AND (name LIKE '%text%' OR name LIKE '%copy%')"
        )
        assert tables == [(0,)]
