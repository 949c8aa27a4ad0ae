"""Many tenants of a table, through the real Dagster, against the same rows of one tenant."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.deployed import StackTable, deploy_stack
from bench.report import BenchReport

ROWS = 20
"""Rows of each tenant."""
STEP = 100_000_000
"""Distance between the ids of one commit and the next."""


def measure(folder: Path, report: BenchReport, tenants: int, rounds: int, apart: int) -> None:
    """Time a first synchronization, then commits that change every tenant.

    Then one more, with the tenants' watermarks at `apart` different commits; 0 leaves it out.
    """
    names = [f"tenant-{number:06}" for number in range(tenants)]
    first, changed = f"{tenants:,} tenants x {ROWS} rows: first", f"{tenants:,} tenants: a commit"
    scattered = f"{tenants:,} tenants at {apart} commits: a commit"
    single = f"one tenant, {tenants * ROWS:,} rows: first"
    with deploy_stack(folder, ["one", "many"]) as tables:
        for name, tenant_names, label in (("one", names[:1], single), ("many", names, first)):
            tables[name].commit(tenant_names, tenants * ROWS // len(tenant_names), 0)
            with report.measure_time(label):
                tables[name].await_in_step(2 * len(tenant_names))
        for number in range(1, rounds + 1):
            tables["many"].commit(names, 1, number * STEP)
            with report.measure_time(changed):
                tables["many"].await_in_step(2 * tenants)
        if apart:
            _scatter(tables["many"], names, apart, (rounds + 1) * STEP)
            tables["many"].commit(names, 1, (rounds + 1 + apart) * STEP)
            with report.measure_time(scattered):
                tables["many"].await_in_step(2 * tenants)
            report.add_rate(scattered, tenants)
    report.add_rate(single, tenants * ROWS)
    report.add_rate(first, tenants * ROWS)
    report.add_rate(changed, tenants)
    ratio = report.compute_median(first) / report.compute_median(single)
    report.add_ratio("many tenants against one", ratio, "at most 8")


def _scatter(table: StackTable, names: Sequence[str], apart: int, first: int) -> None:
    """Bring each of `apart` groups of tenants in step by a commit of its own."""
    for number in range(apart):
        id_ = first + number * STEP
        table.commit(names[number::apart], 1, id_)
        table.await_served(id_)
