"""Facts about jobs, and about indexes compared with their sources, as JSON.

One thing has one key: a job is `tenant` and `job`, a moment `version` and `at`, what went wrong
`code` and `message`.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.jobs import Job, JobStatus
from iscp_dagster.model.moment import START, Moment
from iscp_dagster.model.states import JobState
from iscp_dagster.upkeep.verify_tables import ComparisonResult

_UNBUILT = {JobState.PENDING, JobState.RUNNING, JobState.COMPLETED}


def is_building(job: Job) -> bool:
    """Whether the job's first iteration is still to come or under way."""
    return job.watermark == START and job.state in _UNBUILT


def describe_job(job: Job) -> dict[str, Any]:
    """Everything about a job."""
    return {
        "tenant": job.key.tenant,
        "job": str(job.name),
        "table_id": job.key.table_id,
        "state": job.state.label,
        "building": is_building(job),
        "paused": job.paused_at is not None,
        "watermark": describe_moment(job.watermark),
        "spec": job.spec.to_json(),
        "status": describe_status(job.status),
    }


def describe_status(status: JobStatus) -> dict[str, Any]:
    """The latest iteration; `from` null means all rows."""
    return {
        "from": describe_moment(status.from_),
        "to": describe_moment(status.to),
        "start_at": format_iso_time(status.start_at),
        "end_at": format_iso_time(status.end_at),
        "code": status.code,
        "message": status.message,
        "counts": dict(status.counts),
        "attempts": status.attempts,
        "shared_by": status.shared_by,
    }


def format_iso_time(time: datetime | None) -> str | None:
    """A time in ISO 8601."""
    return None if time is None else time.isoformat()


def describe_moment(moment: Moment | None) -> dict[str, Any] | None:
    """A commit; null before the first."""
    if moment is None or moment == START:
        return None
    return {"version": moment.version, "at": moment.at.isoformat()}


def describe_comparison(comparison: ComparisonResult) -> list[dict[str, Any]]:
    """One object for each index and tenant that was compared, and for each that could not be."""
    rows = [
        asdict(verdict)
        | {
            "index": format_index_name(source, verdict.index),
            "agrees": verdict.agrees,
            "built": True,
        }
        | _describe_error(None)
        for source, verdict in comparison.verdicts
    ]
    rows += [
        {
            "index": format_index_name(source, unbuilt.index),
            "tenant": unbuilt.tenant,
            "agrees": False,
            "built": False,
            **_describe_error(unbuilt.error),
        }
        for source, unbuilt in comparison.unbuilt
    ]
    rows += [
        {
            "index": format_index_name(source, failure.index),
            "tenant": tenant,
            "agrees": False,
            "built": True,
            "code": failure.error.code,
            "message": str(failure),
        }
        for source, failure in comparison.failures
        for tenant in failure.tenants
    ]
    rows += [
        {"table": problem.table, "agrees": False, "message": problem.message}
        for problem in comparison.problems
    ]
    return rows


def _describe_error(error: JobStatus | None) -> dict[str, Any]:
    code, message = (0, "") if error is None else (error.code, error.message)
    return {"code": code, "message": message}


def format_index_name(source: SourceTable, index: str) -> str:
    """The index as users name it."""
    return f"{source.name}/{index}"
