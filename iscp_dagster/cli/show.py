"""What `iscp verify` prints."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from operator import attrgetter

from rich.console import Console
from rich.table import Table

from iscp_dagster.api.facts import compared, named
from iscp_dagster.api.names import command_for, titled
from iscp_dagster.cli.parts.plain import plain, word
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.jobs import Job, JobID
from iscp_dagster.upkeep.comparison import Comparison
from iscp_dagster.upkeep.verify import Verdict

NO_TABLE = "no table yet"


def comparison(found: Comparison, *, as_json: bool) -> None:
    """Print the rows compared and what differs by index and tenant, then what was not compared."""
    if as_json:
        Console(soft_wrap=True, highlight=False).print(
            json.dumps(compared(found), indent=2), markup=False
        )
        return
    console = Console(highlight=False)
    if found.verdicts:
        _verdicts(console, found.verdicts)
    for source, index, of in found.unbuilt:
        head = titled(named(source, index), of)
        console.print(plain(f"{head}: not built yet"), markup=False)
    for each in found.problems:
        said = NO_TABLE if each.missing else each.message
        console.print(plain(f"{each.table}: {said}"), markup=False)


def nothing(found: Comparison, tenant: str | None, ended: Collection[Job] = ()) -> None:
    """Say that there was no index to compare, if the problems do not say why.

    `ended` are the matching jobs that a person unregistered.
    """
    if found.empty and (tenant is not None or not found.problems):
        elsewhere = " in another table" if found.problems else ""
        why = f"no matching index is registered{elsewhere}"
        remedy = _again(ended) if ended else "Check the name, or wait for the runner's next look."
        Console(highlight=False).print(
            f"There is nothing to verify for {_whom(tenant)}: {why}. {remedy}", markup=False
        )


def _again(ended: Collection[Job]) -> str:
    tenants: dict[JobID, list[str]] = {}
    for each in sorted(ended, key=attrgetter("name", "key")):
        tenants.setdefault(each.name, []).append(each.key.tenant)
    commands = [command_for("register", its, name) for name, its in tenants.items()]
    return f"It was unregistered; to register it again, run {' and '.join(commands)}."


def _whom(tenant: str | None) -> str:
    return "any tenant" if tenant is None else f"tenant {tenant!r}"


def _verdicts(console: Console, found: Sequence[tuple[SourceTable, Verdict]]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("index", "tenant"):
        table.add_column(name, overflow="fold")
    for name in ("version", "rows", "missing", "extra", "differ"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("agrees", no_wrap=True)
    for source, verdict in found:
        table.add_row(
            *map(word, (named(source, verdict.index), verdict.tenant)),
            *(f"{n:,}" for n in (verdict.version, verdict.rows, verdict.missing)),
            *(f"{n:,}" for n in (verdict.extra, verdict.different)),
            "[green]yes[/]" if verdict.agrees else "[red]no[/]",
        )
    console.print(table)
    for source, verdict in found:
        place = titled(named(source, verdict.index), verdict.tenant)
        if verdict.samples:
            samples = "; ".join(verdict.samples)
            console.print(plain(f"{place}: look at {samples}"), markup=False)
        if verdict.dead:
            letters = f"{verdict.dead:,} dead letters, see `iscp dlq list`"
            console.print(plain(f"{place}: {letters}"), markup=False)
