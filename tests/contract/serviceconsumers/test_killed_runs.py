"""Runs that are killed between two chunks: each side effect once, whoever goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from itertools import count
from typing import Any

import pytest

from durable_invocations import Context, Service, TerminalError, service_app
from iscp_dagster.joblog.iterations import FailedStep
from iscp_dagster.location.assets.io_manager import build_outcome_metadata
from iscp_dagster.sync.iteration.outcomes import PendingCommit
from runtime_support.runtimes.live_runtime import running
from support.paths import ROOT
from support.workers import invoking_run
from support.workers.invoking_run import table_at

IDS = range(7)
TENANTS = ("a", "b")
SECONDS = 120
NUMBERS = count()
BOOKED: Counter[tuple[str, int]] = Counter()
STRUCK: dict[str, Any] = {}
"""Which run a chunk's handler strikes, and how."""
trades = Service("Trades")


@trades.handler
async def booked(ctx: Context, batch: dict) -> None:
    if (batch["tenant"], batch["chunk"]) == STRUCK.get("fails"):
        raise TerminalError("no such account", 422)
    for row in batch["rows"]:
        await ctx.run("book", BOOKED.update, [(batch["tenant"], row["id"])])
    if (batch["tenant"], batch["chunk"]) == STRUCK.get("at"):
        await ctx.run("strike", strike)


def strike() -> None:
    run, how = STRUCK["run"], STRUCK["how"]
    os.kill(run.pid, how)
    STRUCK["done"].set()
    if how == signal.SIGKILL:
        run.wait()


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    with running(tmp_path_factory.mktemp("runtime")) as found:
        yield found


@pytest.fixture(scope="module")
def endpoint(live):
    return live.serve(service_app(trades))


@pytest.fixture
def table(live, endpoint, near_spark, tmp_path):
    BOOKED.clear()
    STRUCK.clear()
    found = table_at(tmp_path, f"shop.t{next(NUMBERS)}", endpoint, live.url, near_spark)
    found.create()
    return found


def begun(table, live, endpoint, folder, how, at):
    """Begin a run of both tenants in a process of its own, which a chunk's handler strikes."""
    paths = (ROOT, ROOT / "tests")
    arguments = (str(folder), table.source.name, endpoint, live.url, *TENANTS)
    STRUCK.update(how=how, at=at, done=threading.Event())
    STRUCK["run"] = run = subprocess.Popen(
        [sys.executable, invoking_run.__file__, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
    )
    assert STRUCK["done"].wait(SECONDS)
    return run


def gone_on_with(table):
    """Take the jobs from the run, and bring the tenants in step one by one."""
    table.deployment.log.recover({"killed"})
    outcomes = [
        outcome
        for tenant in TENANTS
        for outcome in table.run(table.iteration(tenant), f"next {tenant}")
    ]
    assert not [each for each in outcomes if isinstance(each, FailedStep)]
    return {
        each.tenant: build_outcome_metadata(each, {})
        for each in outcomes
        if isinstance(each, PendingCommit)
    }


def filled(table):
    """Have both tenants due for changes; a snapshot's run is killed in the stack's test."""
    for tenant in TENANTS:
        table.insert(100, tenant=tenant)
    table.run(table.iteration(*TENANTS), "first")
    BOOKED.clear()
    for tenant in TENANTS:
        table.insert(*IDS, tenant=tenant)
    return Counter({(tenant, id_): 1 for tenant in TENANTS for id_ in IDS})


def test_each_side_effect_is_there_once_after_a_kill(table, live, endpoint, tmp_path):
    once = filled(table)
    run = begun(table, live, endpoint, tmp_path, signal.SIGKILL, ("a", 1))
    assert run.wait(SECONDS) == -signal.SIGKILL
    assert BOOKED["a", 4] == 0, "the run was killed between two chunks of a"
    # The tenants come apart now, as they may after the death of a run that had several.
    told = gone_on_with(table)
    assert once == BOOKED
    assert [told[tenant]["invocations"] for tenant in TENANTS] == [4, 4]
    assert told["a"]["attached"] == 2
    assert told["a"]["invoked"].value.count("completed, was there already |") == 2
    assert {job.watermark.version for job in table.jobs()} == {table.version}
    assert {job.status.counts["invocations"] for job in table.jobs()} == {4}


def test_a_zombie_that_wakes_up_invokes_nothing_more(table, live, endpoint, tmp_path):
    once = filled(table)
    zombie = begun(table, live, endpoint, tmp_path, signal.SIGSTOP, ("a", 1))
    gone_on_with(table)
    assert once == BOOKED
    known = {each["id"] for each in live.client.invocations(10_000)}
    os.kill(zombie.pid, signal.SIGCONT)
    assert zombie.wait(SECONDS) == 0
    assert once == BOOKED
    assert {each["id"] for each in live.client.invocations(10_000)} == known
    assert {job.watermark.version for job in table.jobs()} == {table.version}


def test_a_repaired_job_books_nothing_twice_whatever_others_committed_meanwhile(table):
    once = filled(table)
    STRUCK["fails"] = "a", 1
    (failed,) = table.run(table.iteration("a"), "fails")
    assert isinstance(failed, FailedStep)
    table.insert(200, tenant="b")
    once["b", 200] += 1
    STRUCK.clear()
    assert table.deployment.log.repair([failed.claim.key]) == (failed.claim.key,)
    gone_on_with(table)
    assert once == BOOKED
    assert {job.watermark.version for job in table.jobs()} == {table.version}
