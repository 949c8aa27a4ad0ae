"""Views and event triggers as assets: below their tables and views, materialized like indexes."""

from dataclasses import replace
from types import SimpleNamespace

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest
from dagster._core.storage.partition_status_cache import AssetPartitionStatus as Status

from iscp_dagster import Changes, Endpoint, Mirror, Trigger, View, build_definitions
from iscp_dagster.api.jobs import Jobs
from iscp_dagster.joblog.iterations import FailedStep, Iteration
from iscp_dagster.location.assets.io_manager import ClickHouseIOManager, OutcomeIOManager
from iscp_dagster.location.assets.iterations import Iterations
from iscp_dagster.location.names import get_partitions_name
from iscp_dagster.location.outs import ParentFirstOutputs
from iscp_dagster.location.partitions import build_partitions_def
from iscp_dagster.location.sensor.recovery import LocationRuns
from iscp_dagster.location.sensor.runner import build_run_request
from iscp_dagster.model.consumers.kinds import get_consumer_kind
from iscp_dagster.model.declared.linking.attach import attach_to_tables
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.moment import Moment
from iscp_dagster.planning.job_specs import list_table_specs, make_job_name, make_new_jobs
from iscp_dagster.planning.look import Dispatch
from support.errors import assert_names, raises_naming
from support.jobs.one_table import Clock, commit, finish, in_memory, orders

ALERTS = Endpoint("alerts", url="https://example.com/hook", secrets=["ALERTS_SECRET"])
KEYS = {"mirror", "of_all", "big", "a_huge", "a_large", "any"}


@pytest.fixture
def declared(tmp_path):
    """Return a location's table, views and triggers; names sort children before parents."""
    indexes = [Mirror(), Changes(name="of_all")]
    source = orders(tmp_path, indexes=indexes, owners=["team:shop"])
    big = View("big", of=source, where="amount > 100", columns={"gross": "amount * 1.19"})
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
    whole = [Trigger("any", on=source, match="amount > 1"), large]
    return SimpleNamespace(source=source, views=[huge, big], triggers=whole)


@pytest.fixture
def location(declared):
    deployment = in_memory(Clock())
    iscp = SimpleNamespace(create_deployment=lambda: deployment)
    resources = {"iscp": iscp, "clickhouse": ClickHouseIOManager(lambda: deployment)}
    defs = build_definitions(
        [declared.source], resources, views=declared.views, triggers=declared.triggers, environ={}
    )
    with dg.DagsterInstance.ephemeral() as instance:
        (source,) = attach_to_tables([declared.source], declared.views, declared.triggers)
        yield Location(defs, instance, deployment, source)


class Location:
    def __init__(self, defs, instance, deployment, source):
        self.defs, self.instance = defs, instance
        self.deployment, self.source = deployment, source
        self.jobs = Jobs(deployment=deployment, sources=[source], cancel_runs=print)

    def bring_in_step(self, *tenants):
        """Commit for the tenants, and have every job reach the commit."""
        commit(self.source, *tenants)
        self.instance.add_dynamic_partitions(get_partitions_name(self.source), list(tenants))
        table_id = self.deployment.make_delta_log(self.source).get_table_id()
        specs = list_table_specs(self.source, {})
        self.deployment.log.register_many(make_new_jobs(table_id, tenants, specs))
        for tenant in tenants:
            for consumer in self.source.consumers:
                finish(self.jobs, self.source, tenant, make_job_name(self.source, consumer))

    def key(self, name):
        return dg.AssetKey(["shop", f"orders_{name}"])

    def run(self, tenant, *names, fails=False):
        """Materialize these assets, or all, for the tenant; return those that the run reported."""
        keys = [self.key(name) for name in names]
        job = self.defs.resolve_job_def("sync_shop_orders")
        options = {"instance": self.instance, "partition_key": tenant}
        options |= {"asset_selection": keys or None, "raise_on_error": not fails}
        run = job.execute_in_process(**options)
        assert run.success is not fails
        events = run.get_asset_materialization_events()
        return [event.asset_key.path[1].removeprefix("orders_") for event in events]

    def run_many(self, job_name=None, *names, **options):
        """Materialize for both tenants, by this Dagster job or as a backfill of these assets."""
        if job_name is not None:
            job = self.defs.resolve_job_def(job_name)
        else:
            job = self.defs.resolve_implicit_global_asset_job_def()
            tags = {
                "dagster/asset_partition_range_start": "eu",
                "dagster/asset_partition_range_end": "us",
            }
            options |= {"asset_selection": [self.key(name) for name in names], "tags": tags}
        return job.execute_in_process(instance=self.instance, **options)

    def list_statuses(self, tenant):
        """Return whether each asset's partition is stale."""
        graph = self.defs.resolve_asset_graph()
        context = LoadingContextForTest(self.instance)
        resolver = CachingStaleStatusResolver(self.instance, graph, context)
        return {name: resolver.get_status(self.key(name), tenant) for name in KEYS}

    def list_partitions(self, name):
        """Return the status of each tenant on Dagster's page of partitions."""
        tenants = self.instance.get_dynamic_partitions(get_partitions_name(self.source))
        partitions = build_partitions_def(self.source)
        return self.instance.get_status_by_partition(self.key(name), tenants, partitions)

    def report_version(self, event_class, key):
        """Report the data version 1 of the asset for the tenant "eu"."""
        tags = {"dagster/data_version": "1"}
        self.instance.report_runless_asset_event(event_class(key, partition="eu", tags=tags))


def test_each_asset_is_below_its_table_and_its_view(location):
    graph, table = location.defs.resolve_asset_graph(), dg.AssetKey(["shop", "orders"])
    parents = {name: set(graph.get(location.key(name)).parent_keys) - {table} for name in KEYS}
    of_table = {name: set() for name in ("mirror", "of_all", "big", "any")}
    of_views = {"a_huge": {location.key("big")}, "a_large": {location.key("a_huge")}}
    assert parents == of_table | of_views
    assert all(table in graph.get(location.key(name)).parent_keys for name in KEYS)
    partitions = {graph.get(location.key(name)).partitions_def.name for name in KEYS}
    assert partitions == {"shop_orders_tenants"}
    checked = {check.asset_key for check in graph.asset_check_keys}
    unchecked = {name for name in KEYS if location.key(name) not in checked}
    assert unchecked == {"a_large", "any"}, "a trigger keeps no rows that could be compared"


def test_definitions_show_the_conditions_and_columns_of_views_and_triggers(location):
    specs = {spec.key: spec for spec in location.defs.resolve_all_asset_specs()}
    large, huge = specs[location.key("a_large")], specs[location.key("a_huge")]
    conditions = {"on": "a_huge", "match": "gross > 5000", "unmatch": "gross < 4000"}
    events = {"payload": "id, gross", "initial": "skip", "endpoints": "alerts"}
    assert (conditions | events).items() <= large.metadata.items()
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
    table = specs[dg.AssetKey(["shop", "orders"])]
    assert_names(table.description, "`shop.orders`")
    assert_names(table.metadata["on_replace"], "strand")
    assert all(spec.description for spec in specs.values())


def test_what_a_person_materializes_of_a_tenant_is_as_fresh_as_the_source(location):
    location.bring_in_step("eu", "us")
    assert location.run("eu", "a_large") == ["a_large"]
    statuses = location.list_statuses("eu")
    assert statuses.pop("a_large") is StaleStatus.FRESH
    assert set(statuses.values()) == {StaleStatus.MISSING}
    reported = location.run("eu")
    assert sorted(reported) == sorted(KEYS)
    assert reported.index("big") < reported.index("a_huge") < reported.index("a_large")
    assert set(location.list_statuses("eu").values()) == {StaleStatus.FRESH}
    assert set(location.list_statuses("us").values()) == {StaleStatus.MISSING}
    event = location.instance.get_latest_materialization_event(location.key("a_large"))
    assert event.asset_materialization.tags["dagster/data_version"] == "0"
    # A view that is reported a moment later does not make its children stale: the source does.
    location.report_version(dg.AssetMaterialization, location.key("big"))
    statuses = location.list_statuses("eu")
    assert {statuses["a_huge"], statuses["a_large"]} == {StaleStatus.FRESH}
    location.report_version(dg.AssetObservation, ["shop", "orders"])
    statuses = location.list_statuses("eu")
    del statuses["big"]  # the version that was reported above is not the source's
    assert set(statuses.values()) == {StaleStatus.STALE}


@pytest.mark.parametrize(
    ("job_name", "names"),
    [("batch_sync_shop_orders", KEYS), (None, {"a_large", "a_huge"})],
    ids=["a run of many tenants", "a backfill"],
)
def test_the_tenants_of_one_run_are_fresh_except_one_that_fails(
    location, monkeypatch, job_name, names
):
    location.bring_in_step("eu", "us")
    location.run_many(job_name, *names)
    expected = {name: StaleStatus.FRESH if name in names else StaleStatus.MISSING for name in KEYS}
    for tenant in ("eu", "us"):
        assert location.list_statuses(tenant) == expected
    with monkeypatch.context() as patch:
        patch.setattr(Iterations, "_iterate_by_hand", fail_job("a_large", "us"))
        assert not location.run_many(job_name, *names, raise_on_error=False).success
    statuses = location.list_partitions("a_large")
    assert (statuses["eu"], statuses["us"]) == (Status.MATERIALIZED, Status.FAILED)
    assert Status.FAILED not in location.list_partitions("a_huge").values()
    location.run("us", "a_large")
    assert location.list_partitions("a_large")["us"] is Status.MATERIALIZED


def test_an_unreported_error_is_shown_until_the_tenant_is_materialized(location):
    """The runner found the error, or the whole run died."""
    location.bring_in_step("eu", "us")
    log, report = location.deployment.log, location.defs.resolve_job_def("iscp_report_indexes")

    def run():
        return report.execute_in_process(instance=location.instance, raise_on_error=False)

    assert run().success
    (job,) = [job for job in log.list_jobs(tenant="us") if job.key.job_name == "a_large"]
    log.enqueue(Iteration.from_jobs([job], Moment(job.watermark.version + 1)), "never begun")
    log.fail_queued_jobs("never begun", 10_240, "cannot be read")
    assert location.list_partitions("a_large")["us"] is Status.MATERIALIZED
    (failure,) = run().get_step_failure_events()
    assert_names(failure.step_failure_data.error.message, "'us'", "cannot be read")
    statuses = location.list_partitions("a_large")
    assert (statuses["eu"], statuses["us"]) == (Status.MATERIALIZED, Status.FAILED)
    assert run().success, "it is reported once"
    location.run("us", "a_large")
    assert location.list_partitions("a_large")["us"] is Status.MATERIALIZED
    assert run().success


def fail_job(name, tenant, code=10_100):
    """Return a method that iterates by hand, but in which that job of the tenant fails."""
    iterate_by_hand = Iterations._iterate_by_hand

    def fail(its):
        for outcomes in iterate_by_hand(its):
            yield [to_failed(each) if is_it(each) else each for each in outcomes]

    def is_it(outcome):
        return (outcome.job_name, outcome.tenant) == (name, tenant)

    def to_failed(outcome):
        claim = SimpleNamespace(key=outcome.job.key, name=outcome.job.name)
        return FailedStep(claim=claim, code=code, message="gone")

    return fail


def test_outcomes_beside_and_before_an_error_are_reported(location, monkeypatch):
    """They come scan by scan; a job that fails has none for its children to wait for."""
    location.bring_in_step("eu")
    iterate_by_hand = Iterations._iterate_by_hand
    monkeypatch.setattr(Iterations, "_iterate_by_hand", fail_job("big", "eu", code=1_100))
    assert sorted(location.run("eu", fails=True)) == sorted(KEYS - {"big"})

    def fail_after_a_scan(its):
        for outcomes in iterate_by_hand(its):
            yield [outcome for outcome in outcomes if outcome.job_name == "a_large"]
            raise RuntimeError("no more")

    monkeypatch.setattr(Iterations, "_iterate_by_hand", fail_after_a_scan)
    assert location.run("eu", fails=True) == ["a_large"]


def test_an_output_waits_for_that_of_its_view_if_it_is_selected():
    outputs = ParentFirstOutputs({"b": "a", "c": "b", "z": "y"}, {"a", "b", "c", "d", "z"})
    assert [*outputs.put("c", 3)] == []
    assert [*outputs.put("d", 4)] == [4]
    assert [*outputs.put("z", 9)] == [9], "y is not selected"
    assert [*outputs.put("b", 2)] == []
    assert [*outputs.put("a", 1)] == [1, 2, 3]
    late = ParentFirstOutputs({"b": "a", "c": "b"}, {"a", "b", "c"})
    assert [*late.put("c", 3), *late.put("b", 2)] == []
    assert [*late.release_rest()] == [2, 3]


def test_a_run_of_the_sensor_selects_views_and_triggers(location):
    location.bring_in_step("eu")
    names = [make_job_name(location.source, each) for each in location.source.consumers]
    jobs = [location.jobs.get_job("eu", name) for name in names]
    commit(location.source, "eu")
    latest = location.deployment.make_delta_log(location.source).get_latest_moment()
    iteration = Iteration.from_jobs(jobs, latest)
    request = build_run_request(Dispatch(name="d", source=location.source, iteration=iteration))
    assert request.job_name == "sync_shop_orders"
    selection = {location.key(name) for name in KEYS}
    assert set(request.asset_selection) == selection
    assets = LocationRuns.from_sources([location.source]).assets
    assert assets == {dg.AssetKey(["shop", "orders"]), *selection}


def test_a_trigger_alone_makes_a_table_s_jobs(declared):
    """A table may have no index at all."""
    bare = replace(declared.source, indexes=[])
    resources = {"iscp": SimpleNamespace()}
    trigger = Trigger("any", on=bare, match="amount > 1")
    defs = build_definitions([bare], resources, triggers=[trigger], environ={})
    assert defs.resolve_job_def("sync_shop_orders")
    key = dg.AssetKey(["shop", "orders_any"])
    assert defs.resolve_asset_graph().get(key).parent_keys == {dg.AssetKey(["shop", "orders"])}


@pytest.mark.parametrize(
    ("kind", "noun"), [("trigger", "trigger"), ("service", "service consumer")]
)
def test_an_asset_that_loads_its_rows_is_refused(kind, noun):
    context = dg.build_input_context(asset_key=dg.AssetKey(["shop", "orders_any"]))
    with raises_naming(ConfigError, "shop/orders_any", noun, "deps="):
        OutcomeIOManager(get_consumer_kind(kind)).load_input(context)
