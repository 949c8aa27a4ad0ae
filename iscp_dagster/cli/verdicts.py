"""What `iscp verify` prints."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter

from rich.console import Console

from iscp_dagster.api.facts import describe_comparison, format_index_name
from iscp_dagster.api.names import format_names, format_title, suggest_command
from iscp_dagster.cli.parts.counting import ROWS, count_nouns, print_counts, print_rest
from iscp_dagster.cli.parts.results import print_json
from iscp_dagster.cli.parts.tables import Listing, print_line, print_listing
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.jobs import Job, JobID
from iscp_dagster.upkeep.verify_indexes import IndexVerdict
from iscp_dagster.upkeep.verify_tables import ComparisonResult

NO_TABLE = "no table yet"
Verdicts = Sequence[tuple[SourceTable, IndexVerdict]]


def print_comparison(
    comparison: ComparisonResult, *, as_json: bool, differs: bool = False, limit: int | None = None
) -> None:
    """Print counts, then what differs by index and tenant, then the rest, and what is not compared.

    With `differs`, leave out what agrees.
    """
    selection = replace(comparison, verdicts=_select_verdicts(comparison.verdicts, differs=differs))
    if as_json:
        rows = describe_comparison(selection)
        print_json(rows if limit is None else rows[:limit])
        return
    if comparison.verdicts:
        _print_summary(comparison)
        _print_verdicts(selection.verdicts[: limit or ROWS])
        print_rest(
            min(limit or ROWS, len(selection.verdicts)),
            len(selection.verdicts),
            "--differs, --tenant, --index",
        )
    for text in (*_format_unbuilt(comparison), *_format_failures(comparison)):
        print_line(text)
    for problem in comparison.problems:
        print_line(f"{problem.table}: {NO_TABLE if problem.missing else problem.message}")


def _select_verdicts(
    verdicts: Verdicts, *, differs: bool
) -> list[tuple[SourceTable, IndexVerdict]]:
    """Those that differ, then, unless `differs`, the others."""
    pairs = [pair for pair in verdicts if not (differs and pair[1].agrees)]
    return sorted(pairs, key=lambda pair: pair[1].agrees)


def _print_summary(comparison: ComparisonResult) -> None:
    agree = sum(verdict.agrees for _, verdict in comparison.verdicts)
    number = len(comparison.verdicts)
    rows = sum(verdict.rows for _, verdict in comparison.verdicts)
    parts = {"differ": number - agree, "agree": agree}
    failed = sum(missing.error is not None for _, missing in comparison.unbuilt)
    parts |= {"not built yet": len(comparison.unbuilt) - failed, "in error": failed}
    parts |= {"not compared": sum(len(failure.tenants) for _, failure in comparison.failures)}
    parts |= {"rows in all": rows}
    print_counts(number, "comparison", parts)


def _format_unbuilt(comparison: ComparisonResult) -> Iterator[str]:
    """A line for each index that some tenants lack, and why."""
    tenants: dict[tuple[str, str], list[str]] = {}
    for source, missing in comparison.unbuilt:
        why = "not built yet"
        if missing.error is not None:
            why = f"in error {missing.error.code}: {missing.error.message}"
        tenants.setdefault((format_index_name(source, missing.index), why), []).append(
            missing.tenant
        )
    for (name, why), names in tenants.items():
        yield f"{_format_head(name, names)}: {why}"


def _format_failures(comparison: ComparisonResult) -> Iterator[str]:
    for source, failure in comparison.failures:
        head = _format_head(format_index_name(source, failure.index), failure.tenants)
        yield f"{head}: could not be compared: {failure}"


def _format_head(name: str, tenants: Sequence[str]) -> str:
    """An index of these tenants, as the head of a line."""
    return (
        format_title(name, tenants[0])
        if len(tenants) == 1
        else f"{name}, tenants {format_names(tenants)}"
    )


def print_nothing_found(
    comparison: ComparisonResult, tenant: str | None, unregistered: Collection[Job] = ()
) -> None:
    """Say that there was no index to compare, if the problems do not say why.

    `unregistered` are the matching jobs that a person unregistered.
    """
    if comparison.empty and (tenant is not None or not comparison.problems):
        elsewhere = " in another table" if comparison.problems else ""
        why = f"no matching index is registered{elsewhere}"
        remedy = (
            _format_register_hint(unregistered)
            if unregistered
            else "Check the name, or wait for the runner's next look."
        )
        scope = "any tenant" if tenant is None else f"tenant {tenant!r}"
        Console(highlight=False).print(
            f"There is nothing to verify for {scope}: {why}. {remedy}", markup=False
        )


def _format_register_hint(unregistered: Collection[Job]) -> str:
    tenants: dict[JobID, list[str]] = {}
    for job in sorted(unregistered, key=attrgetter("name", "key")):
        tenants.setdefault(job.name, []).append(job.key.tenant)
    commands = [suggest_command("register", names, name) for name, names in tenants.items()]
    return f"It was unregistered; to register it again, run {' and '.join(commands)}."


def _print_verdicts(verdicts: Verdicts) -> None:
    rows = [
        (
            *(format_index_name(source, verdict.index), verdict.tenant),
            *(f"{n:,}" for n in (verdict.version, verdict.rows, verdict.missing)),
            *(f"{n:,}" for n in (verdict.extra, verdict.different)),
            "yes" if verdict.agrees else "no",
        )
        for source, verdict in verdicts
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
    for source, verdict in verdicts:
        place = format_title(format_index_name(source, verdict.index), verdict.tenant)
        if verdict.samples:
            rest = verdict.wrong - len(verdict.samples)
            more = f"; and {rest:,} more" if rest > 0 else ""
            print_line(f"{place}: {'; '.join(verdict.samples)}{more}")
        if verdict.misread:
            print_line(
                f"{place}: {count_nouns(verdict.rows, 'row')} were read from the source, but its "
                f"log counts {verdict.logged:,}"
            )
        if verdict.dead:
            print_line(f"{place}: {count_nouns(verdict.dead, 'dead letter')}, see `iscp dlq list`")
