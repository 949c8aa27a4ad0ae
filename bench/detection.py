"""The cost of finding that nothing changed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pyarrow as pa
from deltalake import write_deltalake

from bench.report import BenchReport
from bench.setting import BenchTable
from iscp_dagster import Mirror, SourceTable
from iscp_dagster.joblog.iterations import WrittenStep
from iscp_dagster.model.clock import get_utc_now
from iscp_dagster.planning.runner import Runner

TENANTS = 10
LOOK = "one idle look"


def measure(setting: BenchTable, report: BenchReport, tables: int) -> None:
    """Time idle looks at `tables` Delta tables of ten tenants each, every job in step."""
    sources = [_make_table(setting, number) for number in range(tables)]
    deployment = setting.deployment
    runner = Runner(deployment, sources)
    look = runner.look(None)
    while look.dispatches:
        for dispatch in look.dispatches:
            claims = deployment.log.claim_jobs(
                dispatch.iteration, "bench", {}, queued_as=dispatch.name
            )
            deployment.log.complete(
                [WrittenStep(claim=claim, to=claim.range.to) for claim in claims]
            )
        look = runner.look(look.cursor)
    cursor = settle_cursor(runner, look.cursor)
    # Ten minutes after the iterations: from here on looks are idle.
    runner.deployment = replace(deployment, clock=lambda: get_utc_now() + timedelta(minutes=10))
    runner.look(cursor)
    for _ in range(5):
        with report.measure_time(LOOK):
            idle = runner.look(cursor)
        assert not idle.dispatches
    seconds = report.compute_median(LOOK)
    report.add_fact("idle: tables x tenants", f"{tables} x {TENANTS}")
    report.add_fact("idle: per table", f"{1e6 * seconds / tables:.0f} us")
    report.add_fact("idle: per tenant", f"{1e6 * seconds / tables / TENANTS:.1f} us")
    report.add_fact("idle: cursor", f"{len(cursor) / tables:.0f} bytes a table")


def settle_cursor(runner: Runner, cursor: str) -> str:
    """Return the cursor once looks no longer change it."""
    while (next_cursor := runner.look(cursor).cursor) != cursor:
        cursor = next_cursor
    return cursor


def _make_table(setting: BenchTable, number: int) -> SourceTable:
    path = str(setting.folder / f"idle{number}")
    tenants = [f"t{n}" for n in range(TENANTS)]
    rows = pa.table({"id": [1] * TENANTS, "tenant": tenants})
    feed = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(path, rows, partition_by=["tenant"], configuration=feed)
    return SourceTable(f"idle.t{number}", key="id", tenant="tenant", path=path, indexes=[Mirror()])
