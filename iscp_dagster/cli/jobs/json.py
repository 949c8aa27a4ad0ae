"""What the commands on jobs print with `--json`.

One thing has one key: a job is `tenant` and `job`, a moment `version` and `at`, what went wrong
`code` and `message`.
"""

from __future__ import annotations

from typing import Any

from iscp_dagster.api.facts import describe_moment, describe_status
from iscp_dagster.api.names import ALL_TENANTS
from iscp_dagster.cli.parts.results import print_json
from iscp_dagster.joblog.history import HistoryEntry, Usage
from iscp_dagster.model.jobs import JobID, JobStatus
from iscp_dagster.model.moment import HistoryStart
from iscp_dagster.model.specs import JobSpec
from iscp_dagster.upkeep.progress import Progress

write = print_json


def describe_standing(name: JobID, spec: JobSpec) -> dict[str, Any]:
    """A standing registration, which is for every tenant."""
    return {"tenant": ALL_TENANTS, "job": str(name), "state": None, "spec": spec.to_json()}


def describe_progress(rows: Progress | None) -> dict[str, Any]:
    """Rows done and to do of an index that is building; empty for any other."""
    return {} if rows is None else {"rows_done": rows.done, "rows_to_do": rows.total}


def describe_history_start(beginning: HistoryStart | None) -> dict[str, Any]:
    """Where a changes index's history begins, and what it lacks; empty for any other."""
    if beginning is None:
        return {}
    return {
        "changes_since": describe_moment(beginning.at),
        "gap": beginning.gap[0] if beginning.gap else None,
    }


def describe_iteration(tenant: str, name: JobID, iteration: JobStatus) -> dict[str, Any]:
    """A job with its latest iteration."""
    return {"tenant": tenant, "job": str(name), "status": describe_status(iteration)}


def describe_entry(entry: HistoryEntry) -> dict[str, Any]:
    """Everything about a transition."""
    return {
        "number": entry.number,
        "at": entry.at.isoformat(),
        "tenant": entry.key.tenant,
        "job": str(entry.name),
        # Too large for the integers of many JSON readers.
        "registration": str(entry.registration),
        "event": entry.event.value,
        "before": None if entry.from_state is None else entry.from_state.label,
        "after": entry.to_state.label,
        "who": entry.actor,
        "from": describe_moment(entry.from_),
        "to": describe_moment(entry.to),
        "code": entry.code,
        "message": entry.message,
        "inserted": entry.inserted,
        "deleted": entry.deleted,
        "bytes": entry.bytes,
        "seconds": entry.seconds,
    }


def describe_usage(job_usage: Usage) -> dict[str, Any]:
    """Everything about a job's usage."""
    return {
        "tenant": job_usage.tenant,
        "job": str(job_usage.name),
        "iterations": job_usage.iterations,
        "failed": job_usage.failed,
        "canceled": job_usage.canceled,
        "inserted": job_usage.inserted,
        "deleted": job_usage.deleted,
        "bytes": job_usage.bytes,
        "seconds": job_usage.seconds,
    }
