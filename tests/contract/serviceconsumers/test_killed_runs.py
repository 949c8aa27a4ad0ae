"""Runs that are killed between two chunks: each side effect happens once, whoever continues."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from contextlib import closing
from itertools import count
from typing import Any

import pytest

from durable_invocations import Context, Service, TerminalError, service_app
from iscp_dagster.joblog.iterations import FailedStep
from iscp_dagster.location.assets.io_manager import build_outcome_metadata
from iscp_dagster.sync.iteration.outcomes import RowDelivery
from support.paths import ROOT
from support.workers import invoking_run
from support.workers.invoking_run import table_at

IDS = range(7)
TENANTS = ("a", "b")
SECONDS = 120
NUMBERS = count()
BOOKED: Counter[tuple[str, int]] = Counter()
STRIKE: dict[str, Any] = {}
"""Which run a chunk's handler strikes, and how."""
trades = Service("Trades")


@trades.handler
async def booked(ctx: Context, batch: dict) -> None:
    if (batch["tenant"], batch["chunk"]) == STRIKE.get("fails"):
        raise TerminalError("no such account", 422)
    for row in batch["rows"]:
        await ctx.run("book", BOOKED.update, [(batch["tenant"], row["id"])])
    if (batch["tenant"], batch["chunk"]) == STRIKE.get("at"):
        await ctx.run("strike", strike)


def strike() -> None:
    # A process that is stopped within a write would lock everybody out of SQLite.
    with closing(sqlite3.connect(STRIKE["log"], timeout=SECONDS, isolation_level=None)) as log:
        log.execute("BEGIN IMMEDIATE")
        os.kill(STRIKE["run"].pid, STRIKE["how"])
        os.waitid(os.P_PID, STRIKE["run"].pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    STRIKE["done"].set()


@pytest.fixture(scope="module")
def endpoint(live):
    return live.serve(service_app(trades))


@pytest.fixture
def table(live, endpoint, near_spark, tmp_path):
    BOOKED.clear()
    STRIKE.clear()
    table = table_at(tmp_path, f"shop.t{next(NUMBERS)}", endpoint, live.url, near_spark)
    table.create()
    return table


@pytest.fixture
def begin_run(table, live, endpoint, tmp_path):
    """Give a function that begins a run of both tenants in a process, and has it struck."""

    runs = []

    def begin(how):
        paths = (ROOT, ROOT / "tests")
        arguments = (str(tmp_path), table.source.name, endpoint, live.url, *TENANTS)
        log = tmp_path / "iscp_log.sqlite"
        STRIKE.update(how=how, at=("a", 1), done=threading.Event(), log=log)
        STRIKE["run"] = run = subprocess.Popen(
            [sys.executable, invoking_run.__file__, *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        )
        runs.append(run)
        assert STRIKE["done"].wait(SECONDS)
        return run

    yield begin
    for run in runs:
        run.kill()
        run.wait()


def insert_rows(table):
    """Make changes due for both tenants; return how often each must be booked."""
    for tenant in TENANTS:
        table.insert(100, tenant=tenant)
    table.run(table.iteration(*TENANTS), "first")
    BOOKED.clear()
    for tenant in TENANTS:
        table.insert(*IDS, tenant=tenant)
    return Counter({(tenant, id_): 1 for tenant in TENANTS for id_ in IDS})


def catch_up(table):
    """Take the jobs from the run, and run each tenant's on its own; return their metadata.

    Tenants of one run may come apart so when it dies.
    """
    table.deployment.log.recover_run_jobs({"killed"})
    outcomes = [
        outcome
        for tenant in TENANTS
        for outcome in table.run(table.iteration(tenant), f"next {tenant}")
    ]
    assert not [outcome for outcome in outcomes if isinstance(outcome, FailedStep)]
    assert {job.watermark.version for job in table.jobs()} == {table.version}
    return {
        outcome.tenant: build_outcome_metadata(outcome, {})
        for outcome in outcomes
        if isinstance(outcome, RowDelivery)
    }


def test_each_side_effect_happens_once_after_a_kill(table, begin_run):
    once = insert_rows(table)
    run = begin_run(signal.SIGKILL)
    assert run.wait(SECONDS) == -signal.SIGKILL
    assert BOOKED["a", 4] == 0, "the run was killed between two chunks of a"
    metadata = catch_up(table)
    assert once == BOOKED
    assert [metadata[tenant]["invocations"] for tenant in TENANTS] == [4, 4]
    assert metadata["a"]["attached"] == 2
    assert metadata["a"]["invoked"].value.count("completed, was there already |") == 2
    assert {job.status.counts["invocations"] for job in table.jobs()} == {4}


def test_a_zombie_that_wakes_up_invokes_nothing_more(table, live, begin_run):
    once = insert_rows(table)
    zombie = begin_run(signal.SIGSTOP)
    catch_up(table)
    assert once == BOOKED
    invocations = {each["id"] for each in live.client.invocations(10_000)}
    os.kill(zombie.pid, signal.SIGCONT)
    assert zombie.wait(SECONDS) == 0
    assert once == BOOKED
    assert {each["id"] for each in live.client.invocations(10_000)} == invocations
    assert {job.watermark.version for job in table.jobs()} == {table.version}


def test_a_repaired_job_books_nothing_twice_whatever_others_committed_meanwhile(table):
    once = insert_rows(table)
    STRIKE["fails"] = "a", 1
    (failed,) = table.run(table.iteration("a"), "fails")
    assert isinstance(failed, FailedStep)
    table.insert(200, tenant="b")
    once["b", 200] += 1
    STRIKE.clear()
    assert table.deployment.log.repair([failed.claim.key]) == (failed.claim.key,)
    catch_up(table)
    assert once == BOOKED
