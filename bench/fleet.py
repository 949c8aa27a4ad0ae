"""Many tenants of a table, through the real Dagster, against the same rows of one tenant."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.deployed import Followed, deployed
from bench.report import Report

ROWS = 20
"""Rows of each tenant."""
STEP = 100_000_000
"""Distance between the ids of one commit and the next."""


def measure(folder: Path, report: Report, tenants: int, rounds: int, apart: int) -> None:
    """Time a first synchronization, then commits that change every tenant.

    Then one more, with the tenants' watermarks at `apart` different commits; 0 leaves it out.
    """
    names = [f"tenant-{number:06}" for number in range(tenants)]
    first, changed = f"{tenants:,} tenants x {ROWS} rows: first", f"{tenants:,} tenants: a commit"
    scattered = f"{tenants:,} tenants at {apart} commits: a commit"
    alone = f"one tenant, {tenants * ROWS:,} rows: first"
    with deployed(folder, ["one", "many"]) as tables:
        for name, of, what in (("one", names[:1], alone), ("many", names, first)):
            tables[name].commit(of, tenants * ROWS // len(of), 0)
            with report.timed(what):
                tables[name].await_in_step(2 * len(of))
        for number in range(1, rounds + 1):
            tables["many"].commit(names, 1, number * STEP)
            with report.timed(changed):
                tables["many"].await_in_step(2 * tenants)
        if apart:
            _scatter(tables["many"], names, apart, (rounds + 1) * STEP)
            tables["many"].commit(names, 1, (rounds + 1 + apart) * STEP)
            with report.timed(scattered):
                tables["many"].await_in_step(2 * tenants)
            report.row(scattered, tenants)
    report.row(alone, tenants * ROWS)
    report.row(first, tenants * ROWS)
    report.row(changed, tenants)
    ratio = report.median(first) / report.median(alone)
    report.ratio("many tenants against one", ratio, "at most 8")


def _scatter(table: Followed, names: Sequence[str], apart: int, first: int) -> None:
    """Bring each of `apart` groups of tenants in step by a commit of its own."""
    for number in range(apart):
        id_ = first + number * STEP
        table.commit(names[number::apart], 1, id_)
        table.await_served(id_)
