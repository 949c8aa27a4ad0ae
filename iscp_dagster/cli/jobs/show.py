"""What the commands on jobs print."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rich.console import Console

from iscp_dagster.api.facts import is_building
from iscp_dagster.api.names import ALL_TENANTS
from iscp_dagster.cli.jobs.options import BUILDING, STATES
from iscp_dagster.cli.parts.counting import (
    ROWS,
    count_labels,
    count_nouns,
    print_counts,
    print_rest,
)
from iscp_dagster.cli.parts.tables import (
    Listing,
    build_table,
    can_fit,
    format_time,
    is_terminal,
    print_facts,
    print_line,
    print_listing,
)
from iscp_dagster.joblog.history import HistoryEntry, Usage
from iscp_dagster.model.consumers.kinds import get_consumer_kind
from iscp_dagster.model.jobs import Job, JobID, JobKey, JobStatus
from iscp_dagster.model.moment import START, HistoryStart, Moment
from iscp_dagster.model.specs import JobSpec
from iscp_dagster.model.states import JobState
from iscp_dagster.planning.problems import Problem
from iscp_dagster.upkeep.progress import Progress

_DAY, _CLOCK = "%Y-%m-%d", "%H:%M:%S"
_FULL = f"{_DAY} {_CLOCK} UTC"
_UUID = re.compile(r"^([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")
"""A run's id; Dagster's UI shows its first part."""
_COUNTS = ("iterations", "failed", "canceled", "inserted", "deleted", "bytes")
_COUNT_TITLES = {"matches": "began to match", "unmatches": "ceased to match"}
"""What an event trigger counts."""
_RARE_COUNTS = {"failed", "canceled", "deleted"}
line = print_line


def format_state(job: Job) -> str:
    """The state's label; `building` until the first iteration has completed."""
    label = BUILDING if is_building(job) else job.state.label
    if job.paused_at:
        return f"{label}, paused"
    return f"{label}, waits" if is_building(job) and not job.active else label


def get_state_label(job: Job) -> str:
    """The label that selects jobs like it: one of `STATES`."""
    return BUILDING if is_building(job) else job.state.label


def print_status(
    job_list: Sequence[Job],
    lags: Mapping[JobKey, float | None],
    progress: Mapping[JobKey, Progress | None],
    unserved: Collection[JobID] = (),
    beginnings: Mapping[JobKey, HistoryStart | None] | None = None,
) -> None:
    """Print every job with its lag in seconds and its latest iteration, one line per fact."""
    for number, job in enumerate(job_list):
        facts = _describe_job(job, _format_lag(job, lags), progress.get(job.key))
        facts |= _describe_history_start((beginnings or {}).get(job.key))
        if job.name in unserved:
            facts["readers see"] = "the previous generation, until every tenant is built"
        if number:
            print_line("")
        print_facts(facts)


def print_job_counts(job_list: Sequence[Job], standing: int = 0) -> None:
    """Print how many jobs there are, by state, how many of them are paused, and how many standing
    registrations are listed with them.
    """
    parts = count_labels(map(get_state_label, job_list), STATES)
    parts |= {"paused": sum(bool(job.paused_at) for job in job_list)}
    beside = f"{count_nouns(standing, 'standing registration')} ({ALL_TENANTS})" if standing else ""
    print_counts(len(job_list), "job", parts, beside)


def print_jobs(
    job_list: Sequence[Job],
    standing: Mapping[JobID, JobSpec],
    lags: Mapping[JobKey, float | None],
) -> None:
    """Print one line per standing registration, then one per job."""
    rows = []
    for name, spec in standing.items():
        rows.append(((str(name), ALL_TENANTS), "", ("", ""), _get_kind_and_trigger(spec), ""))
    for job in job_list:
        names = (str(job.name), job.key.tenant)
        position = (_format_version(job.watermark), _format_seconds(lags.get(job.key)))
        code = str(job.status.code or "")
        rows.append((names, format_state(job), position, _get_kind_and_trigger(job.spec), code))
    heads = ("job\ntenant", "state", "version\nlag", "type\ntrigger", "code")
    numbers = {"version\nlag", "code"}
    print_listing(
        Listing(heads=heads, rows=rows, numbers=numbers, unwrapped=heads[1:], spreads=True),
        "no jobs",
    )


def print_problems(problems: Sequence[Problem]) -> None:
    """Print one line per problem of a table."""
    for problem in problems:
        print_line(str(problem))


def print_state_counts(counts: Mapping[JobState, int]) -> None:
    """Print one line per state."""
    rows = [(state.label, f"{number:,}") for state, number in counts.items()]
    print_listing(Listing(heads=("state", "jobs"), rows=rows, numbers={"jobs"}))


def print_statuses(
    statuses: Sequence[tuple[str, JobID, JobStatus]], limit: int | None = None
) -> None:
    """Print how many jobs there are, then one line per job, with how its iteration ended."""
    print_counts(len(statuses), "job", {})
    rows = [
        (
            (str(name), tenant),
            (_format_range(iteration.from_, iteration.to), str(iteration.code)),
            (format_time(iteration.end_at, _DAY), format_time(iteration.end_at, _CLOCK)),
            iteration.message,
        )
        for tenant, name, iteration in statuses[: limit or ROWS]
    ]
    heads = ("job\ntenant", "range\ncode", "ended\nUTC", "message")
    print_listing(Listing(heads=heads, rows=rows, unwrapped=heads[1:3], spreads=True))
    print_rest(len(rows), len(statuses), "`iscp job list`")


def print_history(entries: Sequence[HistoryEntry]) -> None:
    """Print a line per transition; a terminal gets two: one would be wider than 80 columns."""
    heads = ("at\nUTC", "job\ntenant", "event\nstates", "range\ncode", "who")
    rows = [
        (
            (format_time(entry.at, _DAY), format_time(entry.at, _CLOCK)),
            (str(entry.name), entry.key.tenant),
            (entry.event.value, _format_transition(entry)),
            (_format_range(entry.from_, entry.to), str(entry.code or "")),
            _UUID.sub(r"\1", entry.actor),
        )
        for entry in entries
    ]
    listing = Listing(heads=heads, rows=rows, unwrapped={heads[0], *heads[2:4]})
    if not (rows and is_terminal()):
        print_listing(listing, "no history")
        return
    table = build_table(listing)
    table.columns[4].min_width, table.columns[4].max_width = 8, 12
    Console(highlight=False).print(table)


def print_usage(usages: Sequence[Usage], limit: int | None = None) -> None:
    """Print the totals, then one line per job and tenant, those with the most seconds first.

    A job has two lines where one is wider than the terminal.
    """
    if not usages:
        print_line("no usage")
        return
    print_counts(len(usages), "job", _compute_totals(usages))
    longest = sorted(usages, key=lambda job_usage: -job_usage.seconds)[: limit or ROWS]
    wide = _build_wide_usage(longest)
    print_listing(wide if not is_terminal() or can_fit(wide) else _build_narrow_usage(longest))
    print_rest(len(longest), len(usages), "--tenant, --table, --since")


def _compute_totals(usages: Sequence[Usage]) -> dict[str, Any]:
    totals: dict[str, Any] = {
        name: sum(getattr(job_usage, name) for job_usage in usages) for name in _COUNTS
    }
    return totals | {"seconds": round(sum(job_usage.seconds for job_usage in usages), 1)}


def _build_wide_usage(usages: Sequence[Usage]) -> Listing:
    """Leaves out counts that are 0 for all."""
    rare = [name for name in _RARE_COUNTS if any(getattr(job_usage, name) for job_usage in usages)]
    counts = [name for name in _COUNTS if name not in _RARE_COUNTS or name in rare]
    rows = [
        (
            *(
                str(job_usage.name),
                job_usage.tenant,
                *(f"{getattr(job_usage, name):,}" for name in counts),
            ),
            f"{job_usage.seconds:,.1f}",
        )
        for job_usage in usages
    ]
    heads = ("job", "tenant", *counts, "seconds")
    return Listing(heads=heads, rows=rows, numbers=heads[2:])


def _build_narrow_usage(usages: Sequence[Usage]) -> Listing:
    heads = ("iterations", "failed\ncanceled", "inserted\ndeleted", "bytes", "seconds")
    rows = [
        (
            (str(job_usage.name), job_usage.tenant),
            f"{job_usage.iterations:,}",
            (f"{job_usage.failed:,}", f"{job_usage.canceled:,}"),
            (f"{job_usage.inserted:,}", f"{job_usage.deleted:,}"),
            f"{job_usage.bytes:,}",
            f"{job_usage.seconds:,.1f}",
        )
        for job_usage in usages
    ]
    return Listing(heads=("job\ntenant", *heads), rows=rows, numbers=heads)


def _describe_job(job: Job, lag: str, progress: Progress | None) -> dict[str, str]:
    status = job.status
    return {
        "job": str(job.name),
        "tenant": job.key.tenant,
        "state": format_state(job) + _describe_wait(job) + _format_progress(progress),
        "watermark": _format_moment(job.watermark),
        "lag": lag,
        "type": _get_kind_title(job.spec),
        "trigger": _format_trigger(job),
        "priority": str(job.priority),
        "last range": _format_range(status.from_, status.to),
        "started": format_time(status.start_at, _FULL),
        "ended": format_time(status.end_at, _FULL),
        "code": str(status.code),
        "message": status.message,
        "counts": ", ".join(
            f"{_COUNT_TITLES.get(name, name)} {number:,}" for name, number in status.counts.items()
        ),
    }


def _describe_history_start(beginning: HistoryStart | None) -> dict[str, str]:
    """Where the history of changes begins, and the versions that it lacks."""
    if beginning is None:
        return {}
    gap = {"gap": beginning.gap[0]} if beginning.gap else {}
    return {"changes since": _format_moment(beginning.at), **gap}


def _get_kind_title(spec: JobSpec) -> str:
    """The type of the job's consumer."""
    return get_consumer_kind(spec.detail.consumer.type).title


def _get_kind_and_trigger(spec: JobSpec) -> tuple[str, str]:
    return _get_kind_title(spec), spec.trigger.job_type


def _describe_wait(job: Job) -> str:
    """What a job waits for, if it is not built yet, idle and not paused."""
    if job.active or job.paused_at or not is_building(job):
        return ""
    trigger = f" for its trigger ({job.spec.trigger.job_type})"
    return " to be tried again" if job.status.code else trigger


def _format_progress(progress: Progress | None) -> str:
    if progress is None:
        return ""
    return f", {progress.done:,} rows of {'?' if progress.total is None else f'{progress.total:,}'}"


def _format_transition(entry: HistoryEntry) -> str:
    if entry.from_state is entry.to_state:
        return entry.to_state.label
    start = "" if entry.from_state is None else entry.from_state.label
    return f"{start} → {entry.to_state.label}".strip()


def _format_lag(job: Job, lags: Mapping[JobKey, float | None]) -> str:
    if job.key not in lags:
        return "unknown: the table cannot be read, or the job belongs to an earlier table"
    return _format_seconds(lags[job.key]) or "not built"


def _format_seconds(lag: float | None) -> str:
    return "" if lag is None else f"{lag:,.1f} s"


def _format_trigger(job: Job) -> str:
    trigger = job.spec.trigger
    schedule = [f"{name} {value}" for name, value in trigger.schedule.items()]
    parts = [trigger.job_type, *schedule, *(["independent"] if trigger.independent else [])]
    return ", ".join(parts)


def _format_moment(watermark: Moment) -> str:
    if watermark == START:
        return "before the first version"
    return f"{watermark.version} of {format_time(watermark.at, _FULL)}"


def _format_version(watermark: Moment) -> str:
    return "" if watermark == START else str(watermark.version)


def _format_range(from_: Moment | None, to: Moment | None) -> str:
    if from_ is None or to is None:
        return ""
    return f"all to {to.version}" if from_ == START else f"{from_.version} to {to.version}"
