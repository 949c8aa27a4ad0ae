"""A service consumer whose handler works for long, beside indexes and other tenants."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pytest

from iscp_dagster import FullText, Mirror, ServiceConsumer
from iscp_dagster.joblog.iterations import FailedStep
from iscp_dagster.location.assets.iterations import Iterations
from iscp_dagster.model.states import JobState
from support.lake.delta_tables import Table
from support.outbox.memory_runtime import FakeRuntime
from support.services.stack import wait_for

SECONDS = 60
TOLD = ServiceConsumer("http://127.0.0.1:9", handler="Slow/told", name="told", patience=600)


@dataclass
class Gate:
    """A handler that works until it is opened."""

    entered: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)
    done: Counter = field(default_factory=Counter)

    def __call__(self, body):
        self.entered.set()
        assert self.opened.wait(SECONDS)
        self.done.update((body["tenant"], row["id"]) for row in body["rows"])


@pytest.fixture
def gate():
    found = Gate()
    yield found
    found.opened.set()


@pytest.fixture
def table(deployment, gate):
    runtime = FakeRuntime(handler=gate)
    served = replace(deployment, open_runtime=lambda: runtime)
    return Table.make(served, Mirror(), FullText("name"), services=[TOLD])


def places(table, *tenants):
    """Return where these tenants' indexes stand."""
    return {
        job.watermark.version
        for job in table.jobs()
        if job.key.tenant in tenants and job.key.job_name != "told"
    }


def told(table):
    """Return the jobs of the service consumer, by tenant."""
    return {job.key.tenant: job for job in table.jobs() if job.key.job_name == "told"}


def begin_runs(table, pool) -> list[Future]:
    """Have the runner look, and begin what it dispatches, each in a run of its own."""
    return [
        pool.submit(table.run, each.iteration, f"run {each.name}", queued_as=each.name)
        for each in table.look().dispatches
    ]


def test_indexes_and_new_tenants_go_on_while_a_handler_works(table, gate):
    with ThreadPoolExecutor(16) as pool:
        try:
            table.insert(1, tenant="a")
            runs = begin_runs(table, pool)
            assert gate.entered.wait(SECONDS)
            wait_for(lambda: places(table, "a") == {table.version}, SECONDS)
            table.insert(2, tenant="a")
            table.insert(3, tenant="b")
            runs += begin_runs(table, pool)
            wait_for(lambda: places(table, "a", "b") == {table.version}, SECONDS)
            assert not gate.opened.is_set()
            assert told(table)["a"].state is JobState.RUNNING
            assert {job.watermark.version for job in told(table).values()} == {-1}
        finally:
            gate.opened.set()
        outcomes = [outcome for run in runs for outcome in run.result(SECONDS)]
    outcomes += table.follow()
    assert not [each for each in outcomes if isinstance(each, FailedStep)]
    assert gate.done == {("a", 1): 1, ("a", 2): 1, ("b", 3): 1}
    assert {job.watermark.version for job in told(table).values()} == {table.version}
    table.check()


def test_a_run_by_hand_brings_the_indexes_in_step_before_it_waits_for_a_handler(table, gate):
    for tenant in ("a", "b"):
        table.insert(1, tenant=tenant)
    source, deployment = table.source, table.deployment
    by_hand = Iterations(
        deployment=deployment,
        source=source,
        run_id="by hand",
        tenants=("a", "b"),
        consumers=source.consumers,
        warn=pytest.fail,
    )
    with ThreadPoolExecutor(1) as pool:
        try:
            run = pool.submit(lambda: [each for some in by_hand.iterate_jobs() for each in some])
            assert gate.entered.wait(SECONDS)
            assert places(table, "a", "b") == {table.version}
        finally:
            gate.opened.set()
        outcomes = run.result(SECONDS)
    assert not [each for each in outcomes if isinstance(each, FailedStep)]
    assert gate.done == {("a", 1): 1, ("b", 1): 1}
    table.check()
