"""Many tenants of a table, through the real Dagster, against the same rows of one tenant."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from bench.deployed import StackTable, deploy_stack
from bench.latency import LONGEST_PAUSE
from bench.report import BenchReport

ROWS = 20
"""Rows of each tenant."""
STEP = 100_000_000
"""Distance between the ids of one commit and the next."""
SOME = 1_000
"""Tenants of a commit that changes some of very many."""
QUERIES = {
    "count()": "SELECT count() FROM bench.many_mirror",
    "one tenant's rows": "SELECT * FROM bench.many_mirror WHERE tenant = '{tenant}'",
    "a word in one tenant": "SELECT * FROM bench.many_text WHERE tenant = '{tenant}' "
    "AND hasAnyTokens(name, 'words')",
}


class Commits(NamedTuple):
    """The commits after the first."""

    rounds: int
    """That change every tenant, and, of very many, `SOME`."""
    apart: int
    """At which the tenants' watermarks are before one more; 0 leaves it out."""
    singles: int
    """That change one tenant each."""


def measure(
    folder: Path, report: BenchReport, tenants: int, commits: Commits, buckets: int | None
) -> None:
    """Time a first synchronization, then commits that change every tenant, some and one."""
    names = [f"tenant-{number:06}" for number in range(tenants)]
    first, single = f"{tenants:,} tenants x {ROWS} rows: first", f"{tenants * ROWS:,} rows: first"
    with deploy_stack(folder, ["one", "many"], buckets=buckets) as tables:
        for name, tenant_names, label in (("one", names[:1], single), ("many", names, first)):
            tables[name].commit(tenant_names, tenants * ROWS // len(tenant_names), 0)
            with report.measure_time(label):
                tables[name].await_in_step(2 * len(tenant_names))
        _measure_commits(tables["many"], report, names, commits)
        _measure_queries(tables["many"], report, names[tenants // 2], commits.rounds)
    report.add_rate(single, tenants * ROWS)
    report.add_rate(first, tenants * ROWS)
    ratio = report.compute_median(first) / report.compute_median(single)
    report.add_ratio("many tenants against one", ratio, "at most 8")


def _measure_commits(
    table: StackTable, report: BenchReport, names: Sequence[str], commits: Commits
) -> None:
    """Time commits until the mirror's readers see them, and then until all jobs are in step.

    They come at any moment of an idle stack.
    """
    jobs, next_id = 2 * len(names), STEP
    groups = [names] if len(names) <= SOME else [names[:: len(names) // SOME][:SOME], names]
    rounds = [*[group for group in groups for _ in range(commits.rounds)]]
    rounds += [[names[number * 7919 % len(names)]] for number in range(commits.singles)]
    moments = Random(7)
    for group in rounds:
        time.sleep(moments.uniform(1, LONGEST_PAUSE))
        table.commit(group, 1, next_id)
        with report.measure_time(f"a commit of {len(group):,} tenants: searchable"):
            table.await_served(next_id, len(group))
        with report.measure_time(f"a commit of {len(group):,} tenants: then in step"):
            table.await_in_step(jobs, group)
        next_id += STEP
    for size in dict.fromkeys(map(len, rounds)):
        report.add_time(f"a commit of {size:,} tenants: searchable")
        report.add_time(f"a commit of {size:,} tenants: then in step")
    if commits.apart:
        _scatter(table, names, commits.apart, next_id)
        table.commit(names, 1, next_id + commits.apart * STEP)
        label = f"{len(names):,} tenants at {commits.apart} commits: a commit"
        with report.measure_time(label):
            table.await_in_step(jobs)
        report.add_rate(label, len(names))


def _measure_queries(table: StackTable, report: BenchReport, tenant: str, rounds: int) -> None:
    client = table.deployment.endpoint.get_client()
    for label, query in QUERIES.items():
        for _ in range(rounds):
            with report.measure_time(label):
                client.query(query.format(tenant=tenant))
        report.add_time(label)
    parts = (
        "SELECT count() FROM system.parts WHERE active AND database = 'bench' "
        "AND startsWith(table, 'many_mirror__rows')"
    )
    report.add_fact("parts of the mirror", str(client.query(parts).first_row[0]))


def _scatter(table: StackTable, names: Sequence[str], apart: int, first: int) -> None:
    """Bring each of `apart` groups of tenants in step by a commit of its own."""
    for number in range(apart):
        id_ = first + number * STEP
        table.commit(names[number::apart], 1, id_)
        table.await_served(id_, len(names[number::apart]))
