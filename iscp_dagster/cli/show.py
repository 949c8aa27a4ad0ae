"""What `iscp verify` prints."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter

from rich.console import Console

from iscp_dagster.api.facts import compared, named
from iscp_dagster.api.names import command_for, listed, titled
from iscp_dagster.cli.parts.counting import ROWS, count_nouns, print_counts, print_rest
from iscp_dagster.cli.parts.results import print_json
from iscp_dagster.cli.parts.tables import Listing, print_line, print_listing
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.jobs import Job, JobID
from iscp_dagster.upkeep.comparison import Comparison
from iscp_dagster.upkeep.verify import Verdict

NO_TABLE = "no table yet"
Verdicts = Sequence[tuple[SourceTable, Verdict]]


def comparison(
    found: Comparison, *, as_json: bool, differs: bool = False, limit: int | None = None
) -> None:
    """Print counts, then what differs by index and tenant, then the rest, and what is not compared.

    With `differs`, leave out what agrees.
    """
    chosen = replace(found, verdicts=_chosen(found.verdicts, differs=differs))
    if as_json:
        rows = compared(chosen)
        print_json(rows if limit is None else rows[:limit])
        return
    if found.verdicts:
        _count(found)
        _verdicts(chosen.verdicts[: limit or ROWS])
        print_rest(
            min(limit or ROWS, len(chosen.verdicts)),
            len(chosen.verdicts),
            "--differs, --tenant, --index",
        )
    for text in (*_unbuilt(found), *_failures(found)):
        print_line(text)
    for each in found.problems:
        print_line(f"{each.table}: {NO_TABLE if each.missing else each.message}")


def _chosen(verdicts: Verdicts, *, differs: bool) -> list[tuple[SourceTable, Verdict]]:
    """Those that differ, then the others, unless only those that differ are wanted."""
    wanted = [pair for pair in verdicts if not (differs and pair[1].agrees)]
    return sorted(wanted, key=lambda pair: pair[1].agrees)


def _count(found: Comparison) -> None:
    agree = sum(verdict.agrees for _, verdict in found.verdicts)
    number = len(found.verdicts)
    rows = sum(verdict.rows for _, verdict in found.verdicts)
    parts = {"differ": number - agree, "agree": agree}
    failed = sum(lacking.error is not None for _, lacking in found.unbuilt)
    parts |= {"not built yet": len(found.unbuilt) - failed, "in error": failed}
    parts |= {"not compared": sum(len(failure.tenants) for _, failure in found.failures)}
    parts |= {"rows in all": rows}
    print_counts(number, "comparison", parts)


def _unbuilt(found: Comparison) -> Iterator[str]:
    """A line for each index that some tenants lack, and why."""
    tenants: dict[tuple[str, str], list[str]] = {}
    for source, lacking in found.unbuilt:
        why = "not built yet"
        if lacking.error is not None:
            why = f"in error {lacking.error.code}: {lacking.error.message}"
        tenants.setdefault((named(source, lacking.index), why), []).append(lacking.tenant)
    for (name, why), its in tenants.items():
        yield f"{_head(name, its)}: {why}"


def _failures(found: Comparison) -> Iterator[str]:
    for source, failure in found.failures:
        head = _head(named(source, failure.index), failure.tenants)
        yield f"{head}: could not be compared: {failure}"


def _head(name: str, tenants: Sequence[str]) -> str:
    """An index of these tenants, as the head of a line."""
    return titled(name, tenants[0]) if len(tenants) == 1 else f"{name}, tenants {listed(tenants)}"


def nothing(found: Comparison, tenant: str | None, ended: Collection[Job] = ()) -> None:
    """Say that there was no index to compare, if the problems do not say why.

    `ended` are the matching jobs that a person unregistered.
    """
    if found.empty and (tenant is not None or not found.problems):
        elsewhere = " in another table" if found.problems else ""
        why = f"no matching index is registered{elsewhere}"
        remedy = _again(ended) if ended else "Check the name, or wait for the runner's next look."
        whom = "any tenant" if tenant is None else f"tenant {tenant!r}"
        Console(highlight=False).print(
            f"There is nothing to verify for {whom}: {why}. {remedy}", markup=False
        )


def _again(ended: Collection[Job]) -> str:
    tenants: dict[JobID, list[str]] = {}
    for each in sorted(ended, key=attrgetter("name", "key")):
        tenants.setdefault(each.name, []).append(each.key.tenant)
    commands = [command_for("register", its, name) for name, its in tenants.items()]
    return f"It was unregistered; to register it again, run {' and '.join(commands)}."


def _verdicts(found: Verdicts) -> None:
    rows = [
        (
            *(named(source, verdict.index), verdict.tenant),
            *(f"{n:,}" for n in (verdict.version, verdict.rows, verdict.missing)),
            *(f"{n:,}" for n in (verdict.extra, verdict.different)),
            "yes" if verdict.agrees else "no",
        )
        for source, verdict in found
    ]
    numbers = ("version", "rows", "missing", "extra", "differ")
    print_listing(
        Listing(
            heads=("index", "tenant", *numbers, "agrees"),
            rows=rows,
            numbers=numbers,
            unwrapped=(*numbers, "agrees"),
            styles={"yes": "green", "no": "red"},
        )
    )
    for source, verdict in found:
        place = titled(named(source, verdict.index), verdict.tenant)
        if verdict.samples:
            rest = verdict.wrong - len(verdict.samples)
            more = f"; and {rest:,} more" if rest > 0 else ""
            print_line(f"{place}: {'; '.join(verdict.samples)}{more}")
        if verdict.misread:
            print_line(
                f"{place}: {count_nouns(verdict.rows, 'row')} were read of the source, and its log "
                f"counts {verdict.logged:,}"
            )
        if verdict.dead:
            print_line(f"{place}: {count_nouns(verdict.dead, 'dead letter')}, see `iscp dlq list`")
