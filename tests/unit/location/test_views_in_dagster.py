"""Views and event triggers as assets: below what they are of, and materialized like indexes."""

from dataclasses import replace
from types import SimpleNamespace

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest
from dagster._core.storage.partition_status_cache import AssetPartitionStatus as Status

from iscp_dagster import Changes, Endpoint, Mirror, SourceTable, Trigger, View, build_definitions
from iscp_dagster.api.jobs import Jobs
from iscp_dagster.clickhouse.tables.ddl import IndexTable
from iscp_dagster.clickhouse.tables.indexes import IndexStore
from iscp_dagster.joblog.iterations import FailedStep, Iteration
from iscp_dagster.location.assets.io_manager import (
    ClickHouseIOManager,
    OutcomeIOManager,
    build_clickhouse_schema,
)
from iscp_dagster.location.assets.iterations import Iterations
from iscp_dagster.location.names import build_partitions_def, get_partitions_name
from iscp_dagster.location.outs import ParentFirstOutputs
from iscp_dagster.location.sensor.recovery import LocationRuns
from iscp_dagster.location.sensor.runner import run_request
from iscp_dagster.model.consumers.kinds import get_consumer_kind
from iscp_dagster.model.declared.images import IMAGE_COLUMNS, IMAGE_FIELDS
from iscp_dagster.model.declared.linking.attach import attach_to_tables
from iscp_dagster.model.declared.schema import DeltaField, Primitive
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.moment import Moment
from iscp_dagster.planning.declared import list_table_specs, make_new_jobs, name_of
from iscp_dagster.planning.look import Dispatch
from support.jobs.one_table import Clock, commit, finish, in_memory

ALERTS = Endpoint("alerts", url="https://example.com/hook", secrets=["ALERTS_SECRET"])
BOTH = {
    "dagster/asset_partition_range_start": "eu",
    "dagster/asset_partition_range_end": "us",
}
"""The tags of a backfill's run of both tenants."""
KEYS = {"mirror", "of_all", "big", "a_huge", "a_large", "any"}


@pytest.fixture
def given(tmp_path):
    """Return the tables, views and triggers of a location; of two, each child sorts first."""
    orders = SourceTable(
        "shop.orders",
        key="id",
        tenant="region",
        path=str(tmp_path / "orders"),
        indexes=[Mirror(), Changes(name="of_all")],
        owners=["team:shop"],
    )
    big = View("big", of=orders, where="amount > 100", columns={"gross": "amount * 1.19"})
    huge = View("a_huge", of=big, where="gross > 1000", description="the largest")
    large = Trigger(
        "a_large",
        on=huge,
        match="gross > 5000",
        unmatch="gross < 4000",
        columns=["id", "gross"],
        to=[ALERTS],
        tags={"domain": "trade"},
    )
    whole = [Trigger("any", on=orders, match="amount > 1"), large]
    return SimpleNamespace(source=orders, views=[huge, big], triggers=whole)


@pytest.fixture
def location(given):
    deployment = in_memory(Clock())
    iscp = SimpleNamespace(create_deployment=lambda: deployment)
    resources = {"iscp": iscp, "clickhouse": ClickHouseIOManager(lambda: deployment)}
    defs = build_definitions(
        [given.source], resources, views=given.views, triggers=given.triggers, environ={}
    )
    with dg.DagsterInstance.ephemeral() as instance:
        (source,) = attach_to_tables([given.source], given.views, given.triggers)
        yield Location(defs, instance, deployment, source)


class Location:
    def __init__(self, defs, instance, deployment, source):
        self.defs, self.instance = defs, instance
        self.deployment, self.source = deployment, source
        self.jobs = Jobs(deployment=deployment, sources=[source], cancel_runs=print)

    def in_step(self, *tenants):
        """Commit for the tenants, and have every job reach the commit."""
        commit(self.source, *tenants)
        self.instance.add_dynamic_partitions(get_partitions_name(self.source), list(tenants))
        table_id = self.deployment.make_delta_log(self.source).get_table_id()
        specs = list_table_specs(self.source, {})
        self.deployment.log.register_many(make_new_jobs(table_id, tenants, specs))
        for tenant in tenants:
            for each in self.source.consumers:
                finish(self.jobs, self.source, tenant, name_of(self.source, each))

    def key(self, name):
        return dg.AssetKey(["shop", f"orders_{name}"])

    def run(self, tenant, *names, fails=False):
        """Materialize the partition, of all assets if none is named; returns what was told."""
        keys = [self.key(name) for name in names]
        job = self.defs.resolve_job_def("sync_shop_orders")
        ended = job.execute_in_process(
            instance=self.instance,
            partition_key=tenant,
            asset_selection=keys or None,
            raise_on_error=not fails,
        )
        assert ended.success is not fails
        made = ended.get_asset_materialization_events()
        return [each.asset_key.path[1].removeprefix("orders_") for each in made]

    def status(self, tenant):
        graph = self.defs.resolve_asset_graph()
        context = LoadingContextForTest(self.instance)
        resolver = CachingStaleStatusResolver(self.instance, graph, context)
        return {name: resolver.get_status(self.key(name), tenant) for name in KEYS}

    def partition_statuses(self, name):
        """How Dagster's page of partitions shows each tenant."""
        tenants = self.instance.get_dynamic_partitions(get_partitions_name(self.source))
        return self.instance.get_status_by_partition(
            self.key(name), tenants, build_partitions_def(self.source)
        )

    def latest(self, name):
        event = self.instance.get_latest_materialization_event(self.key(name))
        return event.asset_materialization


def test_each_is_below_its_source_and_the_view_that_it_is_of(location):
    graph, table = location.defs.resolve_asset_graph(), dg.AssetKey(["shop", "orders"])
    parents = {name: set(graph.get(location.key(name)).parent_keys) - {table} for name in KEYS}
    assert parents == {
        "mirror": set(),
        "of_all": set(),
        "big": set(),
        "any": set(),
        "a_huge": {location.key("big")},
        "a_large": {location.key("a_huge")},
    }
    assert {n for n in KEYS if table not in graph.get(location.key(n)).parent_keys} == set()
    partitions = {graph.get(location.key(name)).partitions_def.name for name in KEYS}
    assert partitions == {"shop_orders_tenants"}
    checked = {each.asset_key for each in graph.asset_check_keys}
    assert {location.key(name) for name in KEYS} - checked == {
        location.key("a_large"),
        location.key("any"),
    }, "a trigger keeps no rows that could be compared"


def test_definitions_say_what_views_and_triggers_are_made_of(location):
    specs = {spec.key: spec for spec in location.defs.resolve_all_asset_specs()}
    large, huge = specs[location.key("a_large")], specs[location.key("a_huge")]
    said = {name: large.metadata[name] for name in ("on", "match", "unmatch", "payload")}
    assert said == {
        "on": "a_huge",
        "match": "gross > 5000",
        "unmatch": "gross < 4000",
        "payload": "id, gross",
    }
    assert (large.metadata["initial"], large.metadata["endpoints"]) == ("skip", "alerts")
    assert "dagster/table_name" not in large.metadata
    assert {"iscp/index": "trigger", "domain": "trade"}.items() <= large.tags.items()
    assert (large.owners, large.kinds) == (["team:shop"], {"trigger"})
    other = specs[location.key("any")]
    assert (other.metadata["unmatch"], other.metadata["payload"]) == ("not matching", "all columns")
    assert other.metadata["endpoints"] == "none"
    assert huge.description == "the largest"
    assert huge.metadata["view"].value == (
        "1. `*, amount * 1.19 AS gross WHERE amount > 100`\n2. `* WHERE gross > 1000`"
    )
    assert huge.metadata["dagster/table_name"] == "shop.orders_a_huge"
    assert "view" not in specs[location.key("of_all")].metadata
    assert all(spec.description for spec in specs.values())


def test_a_partition_of_all_is_materialized_by_hand_and_is_as_fresh_as_the_source(location):
    location.in_step("eu", "us")
    told = location.run("eu")
    assert sorted(told) == sorted(KEYS)
    assert told.index("big") < told.index("a_huge") < told.index("a_large")
    assert set(location.status("eu").values()) == {StaleStatus.FRESH}
    assert set(location.status("us").values()) == {StaleStatus.MISSING}
    assert location.latest("a_large").tags["dagster/data_version"] == "0"
    # A view that is reported a moment later says nothing about what is of it: the source does.
    event = dg.AssetMaterialization(
        location.key("big"), partition="eu", tags={"dagster/data_version": "1"}
    )
    location.instance.report_runless_asset_event(event)
    held = location.status("eu")
    assert {held["a_huge"], held["a_large"]} == {StaleStatus.FRESH}
    event = dg.AssetObservation(
        ["shop", "orders"], partition="eu", tags={"dagster/data_version": "1"}
    )
    location.instance.report_runless_asset_event(event)
    held = location.status("eu")
    del held["big"]  # what was reported for it above says nothing of the source
    assert set(held.values()) == {StaleStatus.STALE}


def test_a_trigger_alone_can_be_materialized(location):
    location.in_step("eu")
    assert location.run("eu", "a_large") == ["a_large"]
    held = location.status("eu")
    assert held.pop("a_large") is StaleStatus.FRESH
    assert set(held.values()) == {StaleStatus.MISSING}


def test_many_tenants_of_a_run_are_as_fresh_as_one(location):
    location.in_step("eu", "us")
    job = location.defs.resolve_job_def("batch_sync_shop_orders")
    job.execute_in_process(instance=location.instance)
    for tenant in ("eu", "us"):
        assert set(location.status(tenant).values()) == {StaleStatus.FRESH}


def test_the_run_of_a_backfill_takes_triggers_too(location):
    location.in_step("eu", "us")
    job = location.defs.resolve_implicit_global_asset_job_def()
    keys = [location.key("a_large"), location.key("a_huge")]
    job.execute_in_process(instance=location.instance, asset_selection=keys, tags=BOTH)
    for tenant in ("eu", "us"):
        held = location.status(tenant)
        assert {held["a_large"], held["a_huge"]} == {StaleStatus.FRESH}
        assert held["big"] is StaleStatus.MISSING


def test_what_a_view_s_job_lacks_does_not_keep_its_trigger_back(location, monkeypatch):
    """Outcomes come scan by scan; a job that fails has none to wait for."""
    location.in_step("eu")
    monkeypatch.setattr(Iterations, "_iterate_by_hand", failing("big", "eu", code=1_100))
    assert sorted(location.run("eu", fails=True)) == sorted(KEYS - {"big"})


@pytest.mark.parametrize("job_name", ["batch_sync_shop_orders", None])
def test_a_tenant_that_fails_among_many_shows_as_failed(location, monkeypatch, job_name):
    location.in_step("eu", "us")

    def run(**options):
        if job_name is not None:
            job = location.defs.resolve_job_def(job_name)
            return job.execute_in_process(instance=location.instance, **options)
        job = location.defs.resolve_implicit_global_asset_job_def()
        keys = [location.key(name) for name in KEYS]
        options |= {"asset_selection": keys, "tags": BOTH}
        return job.execute_in_process(instance=location.instance, **options)

    run()
    with monkeypatch.context() as patch:
        patch.setattr(Iterations, "_iterate_by_hand", failing("a_large", "us"))
        assert not run(raise_on_error=False).success
    statuses = location.partition_statuses("a_large")
    assert (statuses["eu"], statuses["us"]) == (Status.MATERIALIZED, Status.FAILED)
    assert Status.FAILED not in location.partition_statuses("a_huge").values()
    location.run("us", "a_large")
    assert location.partition_statuses("a_large")["us"] is Status.MATERIALIZED


def test_a_job_in_error_that_no_run_told_of_shows_as_failed_until_it_is_materialized(location):
    """The runner found the error, or the whole run died."""
    location.in_step("eu", "us")
    log, report = location.deployment.log, location.defs.resolve_job_def("iscp_report_indexes")

    def run():
        return report.execute_in_process(instance=location.instance, raise_on_error=False)

    assert run().success
    (job,) = [each for each in log.list_jobs(tenant="us") if each.key.job_name == "a_large"]
    log.enqueue(Iteration.from_jobs([job], Moment(job.watermark.version + 1)), "never begun")
    log.refuse("never begun", 10_240, "cannot be read")
    assert location.partition_statuses("a_large")["us"] is Status.MATERIALIZED
    told = run()
    (failure,) = told.get_step_failure_events()
    assert "tenant 'us': cannot be read" in failure.step_failure_data.error.message
    statuses = location.partition_statuses("a_large")
    assert (statuses["eu"], statuses["us"]) == (Status.MATERIALIZED, Status.FAILED)
    assert run().success, "it is told once"
    location.run("us", "a_large")
    assert location.partition_statuses("a_large")["us"] is Status.MATERIALIZED
    assert run().success


def failing(name, tenant, code=10_100):
    """Return iterations in which that job of the tenant fails."""
    by_hand = Iterations._iterate_by_hand

    def failing_by_hand(its):
        for outcomes in by_hand(its):
            yield [
                FailedStep(
                    claim=SimpleNamespace(key=outcome.job.key, name=outcome.job.name),
                    code=code,
                    message="gone",
                )
                if (outcome.job_name, outcome.tenant) == (name, tenant)
                else outcome
                for outcome in outcomes
            ]

    return failing_by_hand


def test_what_was_served_before_an_error_is_reported(location, monkeypatch):
    location.in_step("eu")
    found = Iterations._iterate_by_hand

    def breaking(its):
        for outcomes in found(its):
            yield [each for each in outcomes if each.job_name == "a_large"]
            raise RuntimeError("no more")

    monkeypatch.setattr(Iterations, "_iterate_by_hand", breaking)
    assert location.run("eu", fails=True) == ["a_large"]


def test_outputs_come_after_those_of_their_views_where_they_come_at_all():
    held = ParentFirstOutputs({"b": "a", "c": "b", "z": "y"}, {"a", "b", "c", "d", "z"})
    assert [*held.put("c", 3)] == []
    assert [*held.put("d", 4)] == [4]
    assert [*held.put("z", 9)] == [9], "y is not selected"
    assert [*held.put("b", 2)] == []
    assert [*held.put("a", 1)] == [1, 2, 3]
    late = ParentFirstOutputs({"b": "a", "c": "b"}, {"a", "b", "c"})
    assert [*late.put("c", 3), *late.put("b", 2)] == []
    assert [*late.release_rest()] == [2, 3]


def test_the_sensor_s_run_selects_views_and_triggers(location):
    location.in_step("eu")
    jobs = [
        location.jobs.get_job("eu", name_of(location.source, each))
        for each in location.source.consumers
    ]
    commit(location.source, "eu")
    at = location.deployment.make_delta_log(location.source).get_latest_moment()
    iteration = Iteration.from_jobs(jobs, at)
    request = run_request(Dispatch(name="d", source=location.source, iteration=iteration))
    assert request.job_name == "sync_shop_orders"
    assert set(request.asset_selection) == {location.key(name) for name in KEYS}
    assert LocationRuns.from_sources([location.source]).assets == {
        dg.AssetKey(["shop", "orders"]),
        *request.asset_selection,
    }


def test_a_materialization_shows_the_view_s_columns_with_their_types(location):
    source = location.source
    fields = [
        DeltaField(name=name, type=Primitive(type_), nullable=name != "id")
        for name, type_ in (("id", "long"), ("region", "string"), ("gross", "double"))
    ]
    shape = IndexTable(
        source=source, index=source.get_index("big"), fields=[*fields, *IMAGE_FIELDS]
    )
    shown = build_clickhouse_schema(IndexStore(endpoint=location.deployment.endpoint, shape=shape))
    columns = {each.name: each.type for each in shown.columns}
    assert columns["gross"] == "Nullable(Float64)"
    assert set(columns) == {"id", "region", "gross", *IMAGE_COLUMNS}


def test_a_trigger_alone_makes_a_table_s_jobs(given):
    """A table may have no index at all."""
    bare = replace(given.source, indexes=[])
    resources = {"iscp": SimpleNamespace()}
    trigger = Trigger("any", on=bare, match="amount > 1")
    defs = build_definitions([bare], resources, triggers=[trigger], environ={})
    assert defs.resolve_job_def("sync_shop_orders")
    key = dg.AssetKey(["shop", "orders_any"])
    assert defs.resolve_asset_graph().get(key).parent_keys == {dg.AssetKey(["shop", "orders"])}


def test_an_asset_that_loads_a_trigger_s_rows_is_told_that_there_are_none():
    context = dg.build_input_context(asset_key=dg.AssetKey(["shop", "orders_any"]))
    with pytest.raises(ConfigError, match=r"asset shop/orders_any is a trigger, .*\(deps=\)"):
        OutcomeIOManager(get_consumer_kind("trigger")).load_input(context)
