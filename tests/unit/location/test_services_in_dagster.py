"""Service consumers as assets: below their table, materialized tenant by tenant."""

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import dagster as dg
import pytest

from iscp_dagster import Mirror, ServiceConsumer, SourceTable, build_definitions
from iscp_dagster.joblog.iterations import Iteration
from iscp_dagster.location.assets.io_manager import ClickHouseIOManager
from iscp_dagster.location.names import get_partitions_name
from iscp_dagster.model.errors import FenceError, UnavailableError
from iscp_dagster.model.moment import START
from iscp_dagster.model.states import JobState
from iscp_dagster.planning.runner import Runner
from iscp_dagster.sync.reading.reader import SourceReader
from support.errors import assert_names
from support.jobs.one_table import commit, orders
from support.lake.delta_tables import deployment_at
from support.outbox.memory_runtime import FakeRuntime

KEY = dg.AssetKey(["shop", "orders_told"])
MADE = dg.DagsterEventType.ASSET_MATERIALIZATION
OBSERVED = dg.DagsterEventType.ASSET_OBSERVATION
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def source(tmp_path):
    options = {"name": "told", "columns": ["id"], "tags": {"domain": "trade"}}
    consumer = ServiceConsumer("http://127.0.0.1:9080", handler="Orders/told", **options)
    return orders(tmp_path, indexes=[], services=[consumer], owners=["team:shop"])


@pytest.fixture
def runtime():
    return FakeRuntime()


@pytest.fixture
def location(source, runtime, near_spark, tmp_path):
    deployment = deployment_at(NOWHERE, near_spark, tmp_path, open_runtime=lambda: runtime)
    resources = {"iscp": SimpleNamespace(create_deployment=lambda: deployment)}
    defs = build_definitions([source], resources, environ={})
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(get_partitions_name(source), ["eu", "us"])
        yield SimpleNamespace(defs=defs, instance=instance, deployment=deployment)


def materialize(location, tenant):
    """Materialize the partition as a person does; return the run."""
    job = location.defs.resolve_job_def("sync_shop_orders")
    options = {"partition_key": tenant, "raise_on_error": False}
    return job.execute_in_process(instance=location.instance, **options)


def fail_to_materialize(location):
    """Materialize the partition "eu" in a run that fails; return it and what it then shows."""
    run = materialize(location, "eu")
    assert not run.success
    return run, read_events(location, run, OBSERVED)


def read_events(location, run, kind):
    """Return the metadata of the run's events about the consumer's asset, by tenant."""
    records = location.instance.get_records_for_run(run.run_id, of_type=kind).records
    data = [record.event_log_entry.dagster_event.event_specific_data for record in records]
    events = [getattr(each, "materialization", None) or each.asset_observation for each in data]
    return {
        event.partition: {name: entry.value for name, entry in event.metadata.items()}
        for event in events
        if event.asset_key == KEY
    }


def list_rows(metadata):
    """Return the rows of the table of invocations."""
    return metadata["invoked"].splitlines()[2:]


def test_its_asset_is_below_its_table_and_shows_its_handler(location):
    graph = location.defs.resolve_asset_graph()
    assert graph.get(KEY).parent_keys == {dg.AssetKey(["shop", "orders"])}
    assert graph.get(KEY).partitions_def.name == "shop_orders_tenants"
    assert KEY not in {check.asset_key for check in graph.asset_check_keys}
    (spec,) = [spec for spec in location.defs.resolve_all_asset_specs() if spec.key == KEY]
    metadata = {name: spec.metadata[name] for name in ("on", "handler", "payload")}
    assert metadata == {"on": "shop.orders", "handler": "Orders/told", "payload": "id"}
    assert spec.metadata["service_endpoint"].url == "http://127.0.0.1:9080"
    assert {"iscp/index": "service", "domain": "trade"}.items() <= spec.tags.items()
    assert (spec.owners, spec.kinds) == (["team:shop"], {"service"})
    assert_names(spec.description, "`Orders/told`")


def test_a_declaration_beside_the_table_is_an_asset_too(source):
    table = SourceTable("shop.orders", key="id", indexes=[Mirror()])
    beside = ServiceConsumer(NOWHERE, handler="Orders/told", name="told", on=table)
    resources = {"iscp": SimpleNamespace(), "clickhouse": ClickHouseIOManager(lambda: None)}
    defs = build_definitions([table], resources, services=[beside], environ={})
    assert KEY in defs.resolve_asset_graph().get_all_asset_keys()


def test_a_run_shows_its_invocations_with_status_and_link(location, source, runtime):
    commit(source, "eu")
    run = materialize(location, "eu")
    assert run.success
    shown = read_events(location, run, MADE)["eu"]
    assert (shown["invocations"], shown["attached"]) == (1, 0)
    assert list_rows(shown) == ["| (-1, 0] | 0 | 1 | [inv_0](http://here/inv_0) | completed |"]
    assert read_events(location, run, OBSERVED) == {}
    (row,) = runtime.bodies[0]["rows"]
    assert row == {"id": 1, "region": "eu", "_change": "upsert", "_version": 0}
    (job,) = location.deployment.log.list_jobs()
    assert (job.watermark.version, job.status.counts["invocations"]) == (0, 1)


def test_a_failed_run_shows_its_invocation_if_any_and_continues_after_a_repair(
    location, source, runtime
):
    commit(source, "eu")
    runtime.down = True
    _, observations = fail_to_materialize(location)
    assert observations == {}
    runtime.down = False
    runtime.handler = lambda _: "422 no"
    run, observations = fail_to_materialize(location)
    (failure,) = run.get_step_failure_events()
    message = failure.step_failure_data.error.message
    assert_names(message, "[10740]", "shop.orders/told", "'eu'", "inv_0")
    ((tenant, shown),) = observations.items()
    assert (tenant, shown["invocations"], shown["attached"]) == ("eu", 1, 0)
    assert list_rows(shown) == ["| (-1, 0] | 0 | 1 | [inv_0](http://here/inv_0) | failed |"]
    assert_names(shown["error"], "[10740]", "'told'", "inv_0")
    (job,) = location.deployment.log.list_jobs()
    assert (job.state, job.status.code) == (JobState.ERROR, 10_740)
    runtime.handler = lambda _: None
    assert materialize(location, "eu").success
    assert len(runtime.bodies) == 2


def test_a_temporary_failure_leaves_the_watermark_and_is_planned_again(location, source, runtime):
    commit(source, "eu")
    runtime.handler = lambda _: "paused"
    _, observations = fail_to_materialize(location)
    paused = ["| (-1, 0] | 0 | 1 | [inv_0](http://here/inv_0) | paused |"]
    assert list_rows(observations["eu"]) == paused
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


def test_a_run_of_many_tenants_shows_the_invocations_of_failed_ones_too(location, source, runtime):
    commit(source, "eu", "us")
    runtime.handler = lambda body: "422 no" if body["tenant"] == "us" else None
    job = location.defs.resolve_job_def("batch_sync_shop_orders")
    run = job.execute_in_process(instance=location.instance, raise_on_error=False)
    assert not run.success
    assert read_events(location, run, MADE).keys() == {"eu"}
    observations = read_events(location, run, OBSERVED)
    assert observations.keys() == {"us"}
    (row,) = list_rows(observations["us"])
    assert row.startswith("| (-1, 0] | 0 | 1 | [inv_")
    assert row.endswith("| failed |")


@pytest.fixture
def unconfirmed(location, source):
    """Leave a range whose run was killed before it confirmed it, and commit once more."""
    commit(source, "eu")
    assert materialize(location, "eu").success
    commit(source, "eu")
    (job,) = location.deployment.log.list_jobs()
    delta_log = location.deployment.make_delta_log(source)
    iteration = Iteration.from_jobs([job], delta_log.get_latest_moment())
    reader = SourceReader(location.deployment, source, iteration.tenants, delta_log)
    location.deployment.log.claim_jobs(iteration, "killed", reader.plan_layout(iteration.range))
    location.deployment.log.recover_run_jobs({"killed"})
    commit(source, "eu")


@pytest.mark.usefixtures("unconfirmed")
def test_the_invocations_of_a_replayed_range_are_shown_too(location):
    run = materialize(location, "eu")
    shown = read_events(location, run, MADE)["eu"]
    assert [row.split("|")[1].strip() for row in list_rows(shown)] == ["(0, 1]", "(1, 2]"]
    assert (shown["invocations"], shown["attached"], shown["from_version"]) == (2, 0, 1)
    (job,) = location.deployment.log.list_jobs()
    assert job.status.counts["invocations"] == 2


@pytest.mark.usefixtures("unconfirmed")
def test_they_are_shown_even_if_the_next_range_fails(location, runtime):
    runtime.handler = lambda body: "422 no" if body["to"] == 2 else None
    _, observations = fail_to_materialize(location)
    rows = list_rows(observations["eu"])
    assert [row.split("|")[-2].strip() for row in rows] == ["completed", "failed"]
    assert observations["eu"]["invocations"] == 2


@pytest.mark.usefixtures("unconfirmed")
def test_they_are_shown_even_if_the_next_range_cannot_be_read(location, monkeypatch):
    make_frame = SourceReader.make_frame

    def fail_at_the_last(self, spark, wanted, *arguments, **named):
        if wanted.range.to.version == 2:
            raise UnavailableError("Spark is gone.")
        return make_frame(self, spark, wanted, *arguments, **named)

    monkeypatch.setattr(SourceReader, "make_frame", fail_at_the_last)
    _, observations = fail_to_materialize(location)
    shown = observations["eu"]
    assert list_rows(shown) == ["| (0, 1] | 0 | 1 | [inv_1](http://here/inv_1) | completed |"]
    assert_names(shown["error"], f"[{UnavailableError.code}]", "Spark is gone")


def test_they_are_shown_even_if_another_writer_took_the_job(location, source, runtime):
    commit(source, "eu")
    log = location.deployment.log

    def take_job(_):
        log.cancel({job.key: job.seq for job in log.list_jobs()})

    runtime.handler = take_job
    run, observations = fail_to_materialize(location)
    shown = observations["eu"]
    assert list_rows(shown) == ["| (-1, 0] | 0 | 1 | [inv_0](http://here/inv_0) | completed |"]
    assert_names(shown["error"], f"[{FenceError.code}]", run.run_id)
