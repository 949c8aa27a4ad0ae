"""What the commands on jobs print."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rich.console import Console

from iscp_dagster.api.facts import is_building
from iscp_dagster.api.names import EVERY
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
    fits,
    is_terminal,
    print_facts,
    print_line,
    print_listing,
    table_of,
    time_text,
)
from iscp_dagster.joblog.history import Entry, Usage
from iscp_dagster.model.consumers.kinds import consumer_kind
from iscp_dagster.model.jobs import Job, JobID, JobKey, JobStatus
from iscp_dagster.model.moment import START, Beginning, Moment
from iscp_dagster.model.specs import JobSpec
from iscp_dagster.model.states import JobState
from iscp_dagster.planning.problems import Problem
from iscp_dagster.upkeep.progress import Progress

_DAY, _CLOCK = "%Y-%m-%d", "%H:%M:%S"
_FULL = f"{_DAY} {_CLOCK} UTC"
_UUID = re.compile(r"^([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")
"""A run's id; Dagster's UI shows its first part."""
_COUNTS = ("iterations", "failed", "canceled", "inserted", "deleted", "bytes")
_COUNTED = {"matches": "began to match", "unmatches": "ceased to match"}
"""What an event trigger counts."""
_RARE = {"failed", "canceled", "deleted"}
line = print_line


def state_of(job: Job) -> str:
    """The state's label; `building` until the first iteration has completed."""
    label = BUILDING if is_building(job) else job.state.label
    if job.paused_at:
        return f"{label}, paused"
    return f"{label}, waits" if is_building(job) and not job.active else label


def state_label(job: Job) -> str:
    """The label by which a person asks for jobs like it: one of `STATES`."""
    return BUILDING if is_building(job) else job.state.label


def status(
    found: Sequence[Job],
    lags: Mapping[JobKey, float | None],
    built: Mapping[JobKey, Progress | None],
    waiting: Collection[JobID] = (),
    begun: Mapping[JobKey, Beginning | None] | None = None,
) -> None:
    """Print every job with its lag in seconds and its latest iteration, one line per fact."""
    for number, job in enumerate(found):
        facts = _facts(job, _lag(job, lags), built.get(job.key))
        facts |= _history((begun or {}).get(job.key))
        if job.name in waiting:
            facts["readers see"] = "the previous generation, until every tenant is built"
        if number:
            print_line("")
        print_facts(facts)


def count_states(found: Sequence[Job], standing: int = 0) -> None:
    """Print how many jobs there are, by state, how many of them are paused, and how many standing
    registrations are listed with them.
    """
    parts = count_labels(map(state_label, found), STATES)
    parts |= {"paused": sum(bool(job.paused_at) for job in found)}
    stand = f"{count_nouns(standing, 'standing registration')} ({EVERY})" if standing else ""
    print_counts(len(found), "job", parts, stand)


def jobs(
    found: Sequence[Job],
    standing: Mapping[JobID, JobSpec],
    lags: Mapping[JobKey, float | None],
) -> None:
    """Print one line per standing registration, then one per job."""
    rows = []
    for name, spec in standing.items():
        rows.append(((str(name), EVERY), "", ("", ""), _kind_and_trigger(spec), ""))
    for job in found:
        names = (str(job.name), job.key.tenant)
        place = (_version(job.watermark), _seconds(lags.get(job.key)))
        code = str(job.status.code or "")
        rows.append((names, state_of(job), place, _kind_and_trigger(job.spec), code))
    heads = ("job\ntenant", "state", "version\nlag", "type\ntrigger", "code")
    numbers = {"version\nlag", "code"}
    print_listing(
        Listing(heads=heads, rows=rows, numbers=numbers, unwrapped=heads[1:], spreads=True),
        "no jobs",
    )


def problems(found: Sequence[Problem]) -> None:
    """Print one line per problem of a table."""
    for each in found:
        print_line(str(each))


def counts(found: Mapping[JobState, int]) -> None:
    """Print one line per state."""
    rows = [(state.label, f"{number:,}") for state, number in found.items()]
    print_listing(Listing(heads=("state", "jobs"), rows=rows, numbers={"jobs"}))


def statuses(found: Sequence[tuple[str, JobID, JobStatus]], limit: int | None = None) -> None:
    """Print how many jobs there are, then one line per job, with how its iteration ended."""
    print_counts(len(found), "job", {})
    rows = [
        (
            (str(name), tenant),
            (_range(each.from_, each.to), str(each.code)),
            (time_text(each.end_at, _DAY), time_text(each.end_at, _CLOCK)),
            each.message,
        )
        for tenant, name, each in found[: limit or ROWS]
    ]
    heads = ("job\ntenant", "range\ncode", "ended\nUTC", "message")
    print_listing(Listing(heads=heads, rows=rows, unwrapped=heads[1:3], spreads=True))
    print_rest(len(rows), len(found), "`iscp job list`")


def history(found: Sequence[Entry]) -> None:
    """Print a line per transition; a terminal gets two: one would be wider than 80 columns."""
    heads = ("at\nUTC", "job\ntenant", "event\nstates", "range\ncode", "who")
    rows = [
        (
            (time_text(each.at, _DAY), time_text(each.at, _CLOCK)),
            (str(each.name), each.key.tenant),
            (each.event.value, _states(each)),
            (_range(each.from_, each.to), str(each.code or "")),
            _UUID.sub(r"\1", each.who),
        )
        for each in found
    ]
    listing = Listing(heads=heads, rows=rows, unwrapped={heads[0], *heads[2:4]})
    if not (rows and is_terminal()):
        print_listing(listing, "no history")
        return
    table = table_of(listing)
    table.columns[4].min_width, table.columns[4].max_width = 8, 12
    Console(highlight=False).print(table)


def usage(found: Sequence[Usage], limit: int | None = None) -> None:
    """Print the totals, then one line per job and tenant, those with the most seconds first.

    A job has two lines where one is wider than the terminal.
    """
    if not found:
        print_line("no usage")
        return
    print_counts(len(found), "job", _totals(found))
    most = sorted(found, key=lambda each: -each.seconds)[: limit or ROWS]
    wide = _usage_wide(most)
    print_listing(wide if not is_terminal() or fits(wide) else _usage_narrow(most))
    print_rest(len(most), len(found), "--tenant, --table, --since")


def _totals(found: Sequence[Usage]) -> dict[str, Any]:
    totals: dict[str, Any] = {name: sum(getattr(each, name) for each in found) for name in _COUNTS}
    return totals | {"seconds": round(sum(each.seconds for each in found), 1)}


def _usage_wide(found: Sequence[Usage]) -> Listing:
    """Leaves out counts that are 0 for all."""
    rare = [name for name in _RARE if any(getattr(each, name) for each in found)]
    counts = [name for name in _COUNTS if name not in _RARE or name in rare]
    rows = [
        (
            *(str(each.name), each.tenant, *(f"{getattr(each, name):,}" for name in counts)),
            f"{each.seconds:,.1f}",
        )
        for each in found
    ]
    heads = ("job", "tenant", *counts, "seconds")
    return Listing(heads=heads, rows=rows, numbers=heads[2:])


def _usage_narrow(found: Sequence[Usage]) -> Listing:
    heads = ("iterations", "failed\ncanceled", "inserted\ndeleted", "bytes", "seconds")
    rows = [
        (
            (str(each.name), each.tenant),
            f"{each.iterations:,}",
            (f"{each.failed:,}", f"{each.canceled:,}"),
            (f"{each.inserted:,}", f"{each.deleted:,}"),
            f"{each.bytes:,}",
            f"{each.seconds:,.1f}",
        )
        for each in found
    ]
    return Listing(heads=("job\ntenant", *heads), rows=rows, numbers=heads)


def _facts(job: Job, lag: str, built: Progress | None) -> dict[str, str]:
    status = job.status
    return {
        "job": str(job.name),
        "tenant": job.key.tenant,
        "state": state_of(job) + _for_what(job) + _of_rows(built),
        "watermark": _place(job.watermark),
        "lag": lag,
        "type": _kind(job.spec),
        "trigger": _trigger(job),
        "priority": str(job.priority),
        "last range": _range(status.from_, status.to),
        "started": time_text(status.start_at, _FULL),
        "ended": time_text(status.end_at, _FULL),
        "code": str(status.code),
        "message": status.message,
        "counts": ", ".join(
            f"{_COUNTED.get(name, name)} {number:,}" for name, number in status.counts.items()
        ),
    }


def _history(begun: Beginning | None) -> dict[str, str]:
    """Where the history of changes begins, and the versions that it lacks."""
    if begun is None:
        return {}
    gap = {"gap": begun.gap[0]} if begun.gap else {}
    return {"changes since": _place(begun.at), **gap}


def _kind(spec: JobSpec) -> str:
    """The type of the job's consumer."""
    return consumer_kind(spec.detail.consumer.type).title


def _kind_and_trigger(spec: JobSpec) -> tuple[str, str]:
    return _kind(spec), spec.trigger.job_type


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


def _place(watermark: Moment) -> str:
    if watermark == START:
        return "before the first version"
    return f"{watermark.version} of {time_text(watermark.at, _FULL)}"


def _version(watermark: Moment) -> str:
    return "" if watermark == START else str(watermark.version)


def _range(from_: Moment | None, to: Moment | None) -> str:
    if from_ is None or to is None:
        return ""
    return f"all to {to.version}" if from_ == START else f"{from_.version} to {to.version}"
