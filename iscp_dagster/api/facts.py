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
from iscp_dagster.upkeep.comparison import Comparison

_UNBUILT = {JobState.PENDING, JobState.RUNNING, JobState.COMPLETED}


def is_building(job: Job) -> bool:
    """Whether the job's first iteration is still to come or under way."""
    return job.watermark == START and job.state in _UNBUILT


def job(each: Job) -> dict[str, Any]:
    """Everything about a job."""
    return {
        "tenant": each.key.tenant,
        "job": str(each.name),
        "table_id": each.key.table_id,
        "state": each.state.label,
        "building": is_building(each),
        "paused": each.paused_at is not None,
        "watermark": moment(each.watermark),
        "spec": each.spec.to_json(),
        "status": status(each.status),
    }


def status(each: JobStatus) -> dict[str, Any]:
    """The latest iteration; `from` null means all rows."""
    return {
        "from": moment(each.from_),
        "to": moment(each.to),
        "start_at": at(each.start_at),
        "end_at": at(each.end_at),
        "code": each.code,
        "message": each.message,
        "counts": dict(each.counts),
        "attempts": each.attempts,
        "shared_by": each.shared_by,
    }


def at(time: datetime | None) -> str | None:
    """A time in ISO 8601."""
    return None if time is None else time.isoformat()


def moment(each: Moment | None) -> dict[str, Any] | None:
    """A commit; null before the first."""
    if each is None or each == START:
        return None
    return {"version": each.version, "at": each.at.isoformat()}


def compared(found: Comparison) -> list[dict[str, Any]]:
    """One object for each index and tenant that was compared, and for each that could not be."""
    rows = [
        asdict(verdict)
        | {"index": named(source, verdict.index), "agrees": verdict.agrees, "built": True}
        | _why(None)
        for source, verdict in found.verdicts
    ]
    rows += [
        {
            "index": named(source, lacking.index),
            "tenant": lacking.tenant,
            "agrees": False,
            "built": False,
            **_why(lacking.error),
        }
        for source, lacking in found.unbuilt
    ]
    rows += [
        {
            "index": named(source, failure.index),
            "tenant": tenant,
            "agrees": False,
            "built": True,
            "code": failure.error.code,
            "message": str(failure),
        }
        for source, failure in found.failures
        for tenant in failure.tenants
    ]
    rows += [
        {"table": each.table, "agrees": False, "message": each.message} for each in found.problems
    ]
    return rows


def _why(error: JobStatus | None) -> dict[str, Any]:
    code, message = (0, "") if error is None else (error.code, error.message)
    return {"code": code, "message": message}


def named(source: SourceTable, index: str) -> str:
    """The index as users name it."""
    return f"{source.name}/{index}"
