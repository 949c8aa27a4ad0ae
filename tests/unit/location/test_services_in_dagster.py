"""Service consumers as assets: below their table, materialized tenant by tenant."""

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import dagster as dg
import pytest

from iscp_dagster import Mirror, ServiceConsumer, SourceTable, build_definitions
from iscp_dagster.joblog.iterations import Iteration
from iscp_dagster.location.assets.io_manager import ClickHouseIOManager, OutcomeIOManager
from iscp_dagster.location.names import get_partitions_name
from iscp_dagster.model.consumers.kinds import get_consumer_kind
from iscp_dagster.model.errors import ConfigError, UnavailableError
from iscp_dagster.model.moment import START
from iscp_dagster.model.states import JobState
from iscp_dagster.planning.declared import list_table_specs
from iscp_dagster.planning.runner import Runner
from iscp_dagster.sync.reading.reader import SourceReader
from support.jobs.one_table import commit
from support.lake.delta_tables import deployment_at
from support.outbox.memory_runtime import Runtime

KEY = dg.AssetKey(["shop", "orders_told"])
MADE = dg.DagsterEventType.ASSET_MATERIALIZATION
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def source(tmp_path):
    told = ServiceConsumer(
        "http://127.0.0.1:9080",
        handler="Orders/told",
        name="told",
        columns=["id"],
        priority=5,
        tags={"domain": "trade"},
    )
    return SourceTable(
        "shop.orders",
        key="id",
        tenant="region",
        path=str(tmp_path / "orders"),
        services=[told],
        owners=["team:shop"],
    )


@pytest.fixture
def runtime():
    return Runtime()


@pytest.fixture
def location(source, runtime, near_spark, tmp_path):
    deployment = deployment_at(NOWHERE, near_spark, tmp_path, services=lambda: runtime)
    resources = {"iscp": SimpleNamespace(create_deployment=lambda: deployment)}
    defs = build_definitions([source], resources, environ={})
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(get_partitions_name(source), ["eu", "us"])
        yield SimpleNamespace(defs=defs, instance=instance, deployment=deployment)


def materialized(location, tenant):
    """Materialize the partition as a person does; returns the run."""
    job = location.defs.resolve_job_def("sync_shop_orders")
    return job.execute_in_process(
        instance=location.instance, partition_key=tenant, raise_on_error=False
    )


def reported(location, run, kind):
    """Return the metadata that the run reported of the consumer's asset, by tenant."""
    found = location.instance.get_records_for_run(run.run_id, of_type=kind).records
    events = [each.event_log_entry.dagster_event.event_specific_data for each in found]
    kept = [getattr(each, "materialization", None) or each.asset_observation for each in events]
    return {
        each.partition: {name: entry.value for name, entry in each.metadata.items()}
        for each in kept
        if each.asset_key == KEY
    }


def observed(location, run):
    return reported(location, run, dg.DagsterEventType.ASSET_OBSERVATION)


def rows_of(shown):
    return shown["invoked"].splitlines()[2:]


def test_its_asset_is_below_its_table_and_says_what_it_invokes(location):
    graph = location.defs.resolve_asset_graph()
    assert graph.get(KEY).parent_keys == {dg.AssetKey(["shop", "orders"])}
    assert graph.get(KEY).partitions_def.name == "shop_orders_tenants"
    assert KEY not in {each.asset_key for each in graph.asset_check_keys}
    (spec,) = [each for each in location.defs.resolve_all_asset_specs() if each.key == KEY]
    metadata = {name: spec.metadata[name] for name in ("on", "handler", "payload")}
    assert metadata == {"on": "shop.orders", "handler": "Orders/told", "payload": "id"}
    assert spec.metadata["service_endpoint"].url == "http://127.0.0.1:9080"
    assert {"iscp/index": "service", "domain": "trade"}.items() <= spec.tags.items()
    assert (spec.owners, spec.kinds) == (["team:shop"], {"service"})
    assert "Invokes `Orders/told`" in spec.description


def test_a_declaration_beside_the_table_is_an_asset_too(source):
    table = SourceTable("shop.orders", key="id", indexes=[Mirror()])
    beside = ServiceConsumer(NOWHERE, handler="Orders/told", name="told", on=table)
    resources = {"iscp": SimpleNamespace(), "clickhouse": ClickHouseIOManager(lambda: None)}
    defs = build_definitions([table], resources, services=[beside], environ={})
    assert KEY in defs.resolve_asset_graph().get_all_asset_keys()


def test_each_tenant_gets_a_job_of_its_priority_that_a_run_takes(location, source, runtime):
    commit(source, "eu", "us")
    ((name, spec),) = list_table_specs(source, {}).items()
    assert (name.job, spec.detail.priority) == ("told", 5)
    look = Runner(location.deployment, [source]).look(None)
    jobs = location.deployment.log.list_jobs()
    assert [(each.key.tenant, each.state) for each in jobs] == [
        ("eu", JobState.PENDING),
        ("us", JobState.PENDING),
    ]
    assert {each.iteration.priority for each in look.dispatches} == {5}


def test_a_run_shows_its_invocations_with_status_and_link(location, source, runtime):
    commit(source, "eu")
    ended = materialized(location, "eu")
    assert ended.success
    (made,) = ended.get_asset_materialization_events()
    shown = made.materialization.metadata
    assert (shown["invocations"].value, shown["attached"].value) == (1, 0)
    row = "| (-1, 0] | 0 | 1 | [inv_0](http://here/inv_0) | completed |"
    assert shown["invoked"].value.splitlines()[2:] == [row]
    assert observed(location, ended) == {}
    assert runtime.bodies[0]["rows"] == [
        {"id": 1, "region": "eu", "_change": "upsert", "_version": 0}
    ]
    (job,) = location.deployment.log.list_jobs()
    assert (job.watermark.version, job.status.counts["invocations"]) == (0, 1)


def test_a_run_whose_handler_failed_names_the_invocation_and_goes_on_after_a_repair(
    location, source, runtime
):
    commit(source, "eu")
    runtime.handler = lambda _: "422 no"
    ended = materialized(location, "eu")
    assert not ended.success
    (failure,) = ended.get_step_failure_events()
    assert "[10740] shop.orders/told, tenant 'eu': Service consumer 'told': invocation inv_0" in (
        failure.step_failure_data.error.message
    )
    ((tenant, shown),) = observed(location, ended).items()
    assert (tenant, shown["invocations"], shown["attached"]) == ("eu", 1, 0)
    assert rows_of(shown) == ["| (-1, 0] | 0 | 1 | [inv_0](http://here/inv_0) | failed |"]
    assert shown["error"].startswith("[10740] Service consumer 'told': invocation inv_0 of")
    (job,) = location.deployment.log.list_jobs()
    assert (job.state, job.status.code) == (JobState.ERROR, 10_740)
    runtime.handler = lambda _: None
    assert materialized(location, "eu").success
    assert len(runtime.bodies) == 2


def test_a_temporary_failure_leaves_the_watermark_and_is_planned_again(location, source, runtime):
    commit(source, "eu")
    runtime.handler = lambda _: "paused"
    ended = materialized(location, "eu")
    assert not ended.success
    assert rows_of(observed(location, ended)["eu"]) == [
        "| (-1, 0] | 0 | 1 | [inv_0](http://here/inv_0) | paused |"
    ]
    (job,) = location.deployment.log.list_jobs()
    assert (job.state, job.status.code, job.status.attempts) == (JobState.COMPLETED, 1_840, 1)
    assert job.watermark == START
    later = location.deployment.clock() + timedelta(hours=1)
    deployment = replace(location.deployment, clock=lambda: later)
    runner = Runner(deployment, [source])
    location.deployment.log.pause("eu", job.name)
    assert runner.look(None).dispatches == []
    location.deployment.log.resume("eu", job.name)
    (dispatch,) = runner.look(None).dispatches
    assert dispatch.iteration.jobs == (job.key,)


def test_a_run_of_many_tenants_shows_the_invocations_of_those_that_failed_too(
    location, source, runtime
):
    commit(source, "eu", "us")
    runtime.handler = lambda body: "422 no" if body["tenant"] == "us" else None
    job = location.defs.resolve_job_def("batch_sync_shop_orders")
    ended = job.execute_in_process(instance=location.instance, raise_on_error=False)
    assert not ended.success
    assert reported(location, ended, MADE).keys() == {"eu"}
    assert observed(location, ended).keys() == {"us"}
    (row,) = rows_of(observed(location, ended)["us"])
    assert row.startswith("| (-1, 0] | 0 | 1 | [inv_")
    assert row.endswith("| failed |")


def test_a_tenant_for_which_nothing_was_invoked_has_none_to_show(location, source, runtime):
    commit(source, "eu")
    runtime.down = True
    ended = materialized(location, "eu")
    assert not ended.success
    assert observed(location, ended) == {}


def left_unconfirmed(location, source):
    """Leave a range whose run was killed before it confirmed it, and another commit after it."""
    commit(source, "eu")
    assert materialized(location, "eu").success
    commit(source, "eu")
    (job,) = location.deployment.log.list_jobs()
    delta_log = location.deployment.make_delta_log(source)
    iteration = Iteration.from_jobs([job], delta_log.get_latest_moment())
    reader = SourceReader(location.deployment, source, iteration.tenants, delta_log)
    location.deployment.log.begin(iteration, "killed", reader.plan_layout(iteration.range))
    location.deployment.log.recover({"killed"})
    commit(source, "eu")


def test_the_invocations_of_a_range_that_is_replayed_first_show_too(location, source, runtime):
    left_unconfirmed(location, source)
    ended = materialized(location, "eu")
    shown = reported(location, ended, MADE)["eu"]
    assert [row.split("|")[1].strip() for row in rows_of(shown)] == ["(0, 1]", "(1, 2]"]
    assert (shown["invocations"], shown["attached"], shown["from_version"]) == (2, 0, 1)
    (job,) = location.deployment.log.list_jobs()
    assert job.status.counts["invocations"] == 2


def test_they_show_also_if_the_next_range_fails(location, source, runtime):
    left_unconfirmed(location, source)
    runtime.handler = lambda body: "422 no" if body["to"] == 2 else None
    ended = materialized(location, "eu")
    shown = observed(location, ended)["eu"]
    assert [row.split("|")[-2].strip() for row in rows_of(shown)] == ["completed", "failed"]
    assert shown["invocations"] == 2


def test_they_show_also_if_the_next_range_cannot_be_read(location, source, runtime, monkeypatch):
    left_unconfirmed(location, source)
    read = SourceReader.make_frame

    def once(self, spark, wanted, *arguments, **named):
        if wanted.range.to.version == 2:
            raise UnavailableError("Spark is gone.")
        return read(self, spark, wanted, *arguments, **named)

    monkeypatch.setattr(SourceReader, "make_frame", once)
    ended = materialized(location, "eu")
    assert not ended.success
    shown = observed(location, ended)["eu"]
    assert rows_of(shown) == ["| (0, 1] | 0 | 1 | [inv_1](http://here/inv_1) | completed |"]
    assert "Spark is gone" in shown["error"]


def test_they_show_also_if_the_job_was_taken_meanwhile(location, source, runtime):
    commit(source, "eu")

    def taken(_):
        held = {each.key: each.seq for each in location.deployment.log.list_jobs()}
        location.deployment.log.cancel(held)

    runtime.handler = taken
    ended = materialized(location, "eu")
    assert not ended.success
    shown = observed(location, ended)["eu"]
    assert rows_of(shown) == ["| (-1, 0] | 0 | 1 | [inv_0](http://here/inv_0) | completed |"]
    assert "by another writer; this run publishes nothing more for it" in shown["error"]


def test_an_asset_that_loads_its_rows_is_told_that_there_are_none():
    context = dg.build_input_context(asset_key=KEY)
    with pytest.raises(
        ConfigError, match=r"asset shop/orders_told is a service consumer, .*deps=\)"
    ):
        OutcomeIOManager(get_consumer_kind("service")).load_input(context)
