"""What the commands on jobs print."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from rich.console import Console
from rich.table import Table

from iscp_dagster.api.names import EVERY, shown
from iscp_dagster.cli.jobs.json import is_building
from iscp_dagster.cli.jobs.options import BUILDING
from iscp_dagster.cli.parts.plain import cell, plain, word
from iscp_dagster.clickhouse.tables.indexes import Beginning
from iscp_dagster.joblog.history import Entry, Usage
from iscp_dagster.model.jobs import Job, JobID, JobKey, JobStatus
from iscp_dagster.model.moment import START, Moment
from iscp_dagster.model.specs import JobSpec
from iscp_dagster.model.states import JobState
from iscp_dagster.planning.problems import Problem
from iscp_dagster.upkeep.progress import Progress

_FULL = "%Y-%m-%d %H:%M:%S"
_SHORT = "%m-%d %H:%M:%S"
_UUID = re.compile(r"^([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")
"""A run's id; Dagster's UI shows its first part."""
_COUNTS = ("iterations", "failed", "canceled", "inserted", "deleted", "bytes")
_RARE = {"failed", "canceled", "deleted"}
_UNBOUNDED = 10_000


def state_of(job: Job) -> str:
    """The state's label; `building` until the first iteration has completed."""
    label = BUILDING if is_building(job) else job.state.label
    if job.paused_at:
        return f"{label}, paused"
    return f"{label}, waits" if is_building(job) and not job.active else label


def line(text: str) -> None:
    """Print a line without wrapping or markup."""
    Console(soft_wrap=True, highlight=False).print(plain(text), markup=False)


def status(
    found: Iterable[Job],
    lags: Mapping[JobKey, float | None],
    built: Mapping[JobKey, Progress | None],
    waiting: Collection[JobID] = (),
    begun: Mapping[JobKey, Beginning | None] | None = None,
) -> None:
    """Print every job with its lag in seconds and its latest iteration, one line per fact."""
    console = Console(highlight=False)
    for number, job in enumerate(found):
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        facts = _facts(job, _lag(job, lags), built.get(job.key))
        facts |= _history((begun or {}).get(job.key))
        if job.name in waiting:
            facts["readers see"] = "the previous generation, until every tenant is built"
        for name, value in facts.items():
            table.add_row(name, cell(value))
        if number:
            console.print()
        console.print(table)


def jobs(
    found: Sequence[Job],
    standing: Mapping[JobID, JobSpec],
    lags: Mapping[JobKey, float | None],
) -> None:
    """Print one line per standing registration, then one per job."""
    table = _table("job", "tenant", "state", version=1, lag=1, type=0, trigger=0, code=1)
    for name, spec in standing.items():
        kind, rule = spec.detail.consumer.type, spec.trigger.job_type
        table.add_row(word(shown(name)), EVERY, "", "", "", cell(kind), rule, "")
    for job in found:
        table.add_row(
            *map(word, (shown(job.name), job.key.tenant, state_of(job))),
            _version(job.watermark),
            _seconds(lags.get(job.key)),
            cell(job.spec.detail.consumer.type),
            cell(job.spec.trigger.job_type),
            str(job.status.code or ""),
        )
    _print(table, "no jobs")


def problems(found: Sequence[Problem]) -> None:
    """Print one line per problem of a table."""
    for each in found:
        line(str(each))


def counts(found: Mapping[JobState, int]) -> None:
    """Print one line per state."""
    table = _table("state", jobs=1)
    for state, number in found.items():
        table.add_row(state.label, f"{number:,}")
    _print(table)


def statuses(found: Sequence[tuple[str, JobID, JobStatus]]) -> None:
    """Print one line per job, with how its latest iteration ended."""
    table = _table("job", "tenant", "range", ended=0, code=1, message=0)
    for tenant, name, each in found:
        table.add_row(
            word(shown(name)),
            word(tenant),
            _range(each.from_, each.to),
            _time(each.end_at, _SHORT),
            str(each.code),
            cell(each.message),
        )
    _print(table)
    line(f"{len(found):,} jobs")


def history(found: Sequence[Entry]) -> None:
    """Print two lines per transition: one would be wider than 80 columns."""
    table = _table("at", "job\ntenant", "event\nstates", "range\ncode", "who")
    for number in (0, 2, 3):
        table.columns[number].no_wrap = True
    table.columns[4].min_width, table.columns[4].max_width = 8, 12
    for each in found:
        table.add_row(
            _time(each.at, "%m-%d\n%H:%M:%S"),
            f"{word(shown(each.name))}\n{word(each.key.tenant)}",
            f"{each.event.value}\n{_states(each)}",
            f"{_range(each.from_, each.to)}\n{each.code or ''}",
            cell(_UUID.sub(r"\1", each.who)),
        )
    _print(table, "no history")


def usage(found: Sequence[Usage]) -> None:
    """Print one line per job and tenant, or two where one is wider than the terminal."""
    wide = _usage_wide(found)
    console = Console(highlight=False)
    unbounded = console.options.update(max_width=_UNBOUNDED)
    fits = console.measure(wide, options=unbounded).maximum <= console.width
    _print(wide if fits else _usage_narrow(found), "no usage")


def _usage_wide(found: Sequence[Usage]) -> Table:
    """Leaves out counts that are 0 for all."""
    rare = [name for name in _RARE if any(getattr(each, name) for each in found)]
    counts = [name for name in _COUNTS if name not in _RARE or name in rare]
    table = _table("job", "tenant", **dict.fromkeys((*counts, "seconds"), 1))
    for each in found:
        numbers = [f"{getattr(each, name):,}" for name in counts]
        names = map(word, (shown(each.name), each.tenant))
        table.add_row(*names, *numbers, f"{each.seconds:,.1f}")
    return table


def _usage_narrow(found: Sequence[Usage]) -> Table:
    heads = ("iterations\n", "failed\ncanceled", "inserted\ndeleted", "bytes\n", "seconds\n")
    table = _table("job\ntenant", **dict.fromkeys(heads, 1))
    for each in found:
        table.add_row(
            f"{word(shown(each.name))}\n{word(each.tenant)}",
            f"{each.iterations:,}",
            f"{each.failed:,}\n{each.canceled:,}",
            f"{each.inserted:,}\n{each.deleted:,}",
            f"{each.bytes:,}",
            f"{each.seconds:,.1f}",
        )
    return table


def _facts(job: Job, lag: str, built: Progress | None) -> dict[str, str]:
    status = job.status
    return {
        "job": shown(job.name),
        "tenant": job.key.tenant,
        "state": state_of(job) + _for_what(job) + _of_rows(built),
        "watermark": _place(job.watermark),
        "lag": lag,
        "type": job.spec.detail.consumer.type,
        "trigger": _trigger(job),
        "priority": str(job.priority),
        "last range": _range(status.from_, status.to),
        "started": _time(status.start_at, _FULL),
        "ended": _time(status.end_at, _FULL),
        "code": str(status.code),
        "message": status.message,
        "counts": ", ".join(f"{name} {number:,}" for name, number in status.counts.items()),
    }


def _history(begun: Beginning | None) -> dict[str, str]:
    """Where the history of changes begins, and the versions that it lacks."""
    if begun is None:
        return {}
    gap = {"gap": begun.gap[0]} if begun.gap else {}
    return {"changes since": _place(begun.at), **gap}


def _for_what(job: Job) -> str:
    """What a job waits for, if it is not built yet, idle and not paused."""
    if job.active or job.paused_at or not is_building(job):
        return ""
    trigger = f" for its trigger ({job.spec.trigger.job_type})"
    return " to be tried again" if job.status.code else trigger


def _of_rows(built: Progress | None) -> str:
    if built is None:
        return ""
    return f", {built.done:,} rows of {'?' if built.of is None else f'{built.of:,}'}"


def _states(each: Entry) -> str:
    if each.before is each.after:
        return each.after.label
    return f"{each.before.label if each.before is not None else ''} → {each.after.label}".strip()


def _lag(job: Job, lags: Mapping[JobKey, float | None]) -> str:
    if job.key not in lags:
        return "unknown: the table cannot be read, or the job belongs to an earlier table"
    return _seconds(lags[job.key]) or "not built"


def _seconds(lag: float | None) -> str:
    return "" if lag is None else f"{lag:,.1f} s"


def _trigger(job: Job) -> str:
    trigger = job.spec.trigger
    schedule = [f"{name} {value}" for name, value in trigger.schedule.items()]
    parts = [trigger.job_type, *schedule, *(["independent"] if trigger.independent else [])]
    return ", ".join(parts)


def _table(*texts: str, **others: int) -> Table:
    """Make a table: columns of text, then `others`, where 1 marks a column of numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in texts:
        table.add_column(name, overflow="fold")
    for name, number in others.items():
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    return table


def _print(table: Table, nothing: str = "") -> None:
    """Print the table, or `nothing` if it has no rows."""
    if table.row_count:
        Console(highlight=False).print(table)
    elif nothing:
        line(nothing)


def _place(watermark: Moment) -> str:
    if watermark == START:
        return "before the first version"
    return f"{watermark.version} of {_time(watermark.at, _FULL)}"


def _version(watermark: Moment) -> str:
    return "" if watermark == START else str(watermark.version)


def _range(from_: Moment | None, to: Moment | None) -> str:
    if from_ is None or to is None:
        return ""
    return f"all to {to.version}" if from_ == START else f"{from_.version} to {to.version}"


def _time(at: datetime | None, form: str) -> str:
    return "" if at is None else at.strftime(form)
