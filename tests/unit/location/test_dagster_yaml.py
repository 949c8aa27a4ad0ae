"""The runs that `dagster.yaml` allows at once, as Dagster's own queue decides."""

import re
import shutil
from collections import Counter
from itertools import islice
from threading import Event

import pytest
import yaml
from dagster import DagsterInstance, DagsterRunStatus
from dagster._daemon.controller import create_daemon_of_type
from dagster._daemon.daemon import SpanMarker
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import QueuedRunCoordinatorDaemon

from iscp_dagster import Mirror, ServiceConsumer, SourceTable
from iscp_dagster.location.names import TABLE_TAG
from iscp_dagster.location.sensor.runner import build_run_request
from iscp_dagster.planning.look import Dispatch
from support.jobs.dagster_runs import make_run
from support.jobs.log_rows import key, over
from support.paths import ROOT

pytestmark = pytest.mark.slow

CONFIG = yaml.safe_load((ROOT / "dagster.yaml").read_text())
SERVICES = [
    ServiceConsumer("http://127.0.0.1:9", handler=f"Orders/{name}", name=name)
    for name in ("told", "billed")
]
SLOTS = CONFIG["concurrency"]["runs"]["max_concurrent_runs"]


@pytest.fixture
def queue(tmp_path, monkeypatch):
    """Give a function that queues runs of a table, one for each set of tenants."""
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    shutil.copyfile(ROOT / "dagster.yaml", tmp_path / "dagster.yaml")
    with DagsterInstance.from_config(str(tmp_path)) as instance:

        def add(table, *tenants, status=DagsterRunStatus.QUEUED, job="mirror"):
            source = SourceTable(
                table, key="id", tenant="region", indexes=[Mirror()], services=SERVICES
            )
            for of_run in tenants:
                tags = build_run_request(make_dispatch(source, of_run, job)).tags
                instance.add_run(make_run(status, tags))

        add.instance = instance
        yield add


def make_dispatch(source, tenants, job):
    services = {service.name for service in source.services}
    iteration = over(*(key(job, tenant) for tenant in tenants), waits_long=job in services)
    return Dispatch(source=source, iteration=iteration, name=f"{job} of {min(tenants)}")


def list_next_tables(instance):
    """Return the tables of the runs that Dagster would start now, first to last."""
    daemon = QueuedRunCoordinatorDaemon(interval_seconds=1)
    config = instance.get_concurrency_config()
    runs = daemon._get_runs_to_dequeue(instance, config, fixed_iteration_time=None)
    return [run.tags[TABLE_TAG] for run in runs]


FLOODS = {
    "of one tenant each": [{f"t{number}"} for number in range(3 * SLOTS)],
    "of many tenants": [{f"t{number}", f"u{number}"} for number in range(3 * SLOTS)],
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=list(FLOODS))
def test_a_table_that_floods_the_queue_leaves_a_slot_to_another(queue, flood):
    queue("shop.noisy", *flood)
    assert list_next_tables(queue.instance) == ["shop.noisy"] * (SLOTS - 1)
    queue("shop.calm", {"eu"})
    assert list_next_tables(queue.instance) == ["shop.noisy"] * (SLOTS - 1) + ["shop.calm"]


def test_a_tenant_takes_at_most_half_of_the_slots(queue):
    for table in ("shop.a", "shop.b", "shop.c"):
        queue(table, {"eu"})
    assert list_next_tables(queue.instance) == ["shop.a", "shop.b"]


@pytest.mark.parametrize("flood", FLOODS.values(), ids=list(FLOODS))
def test_runs_that_wait_for_handlers_leave_slots_to_indexes_of_their_table(queue, flood):
    queue("shop.slow", *flood, job="told")
    queue("shop.other", *flood, job="told")
    assert len(list_next_tables(queue.instance)) == SLOTS // 2
    queue("shop.slow", {"eu"}, {"us"})
    assert Counter(list_next_tables(queue.instance))["shop.slow"] == SLOTS - 1


def test_a_tenants_runs_that_wait_for_handlers_leave_a_slot_to_its_indexes(queue):
    queue("shop.a", {"eu"}, job="told", status=DagsterRunStatus.STARTED)
    queue("shop.a", {"eu"}, job="billed")
    queue("shop.b", {"eu"}, job="told")
    assert list_next_tables(queue.instance) == []
    queue("shop.a", {"eu"})
    queue("shop.b", {"us"}, job="told")
    assert list_next_tables(queue.instance) == ["shop.a", "shop.b"]


def test_a_queued_run_waits_for_half_a_second_at_most(queue):
    daemon = create_daemon_of_type(QueuedRunCoordinatorDaemon.daemon_type(), queue.instance)
    waits = []

    class Shutdown(Event):
        def wait(self, timeout=None):
            waits.append(timeout)
            return super().wait(timeout)

    daemon.run_iteration = lambda _: iter(())
    loop = daemon.core_loop(None, Shutdown())
    assert [*islice(loop, 9)].count(SpanMarker.START_SPAN) == 3
    assert waits == [0.5] * 2


def test_sensors_have_as_many_threads_as_documented():
    """A waiting tick of each location takes one; news, and others' sensors, need some as well."""
    workers = CONFIG["sensors"]["num_workers"]
    text = " ".join((ROOT / "docs" / "production.md").read_text().split())
    (threads,) = re.findall(r"use_threads: true, num_workers: (\d+)", text)
    (locations,) = re.findall(r"enough for (\d+) locations", text)
    assert int(threads) == workers == int(locations) + 2
