"""What the commands on jobs print with `--json`.

One thing has one key: a job is `tenant` and `job`, a moment `version` and `at`, what went wrong
`code` and `message`.
"""

from __future__ import annotations

from typing import Any

from iscp_dagster.api.facts import moment, status
from iscp_dagster.api.names import EVERY
from iscp_dagster.cli.parts.results import print_json
from iscp_dagster.joblog.history import Entry, Usage
from iscp_dagster.model.jobs import JobID, JobStatus
from iscp_dagster.model.moment import Beginning
from iscp_dagster.model.specs import JobSpec
from iscp_dagster.upkeep.progress import Progress

write = print_json


def standing(name: JobID, spec: JobSpec) -> dict[str, Any]:
    """A standing registration, which is for every tenant."""
    return {"tenant": EVERY, "job": str(name), "state": None, "spec": spec.to_json()}


def progress(found: Progress | None) -> dict[str, Any]:
    """Rows done and to do of an index that is building; empty for any other."""
    return {} if found is None else {"rows_done": found.done, "rows_to_do": found.of}


def history(found: Beginning | None) -> dict[str, Any]:
    """Where a changes index's history begins, and what it lacks; empty for any other."""
    if found is None:
        return {}
    return {"changes_since": moment(found.at), "gap": found.gap[0] if found.gap else None}


def counted(tenant: str, name: JobID, each: JobStatus) -> dict[str, Any]:
    """A job with its latest iteration."""
    return {"tenant": tenant, "job": str(name), "status": status(each)}


def entry(each: Entry) -> dict[str, Any]:
    """Everything about a transition."""
    return {
        "number": each.number,
        "at": each.at.isoformat(),
        "tenant": each.key.tenant,
        "job": str(each.name),
        # Too large for the integers of many JSON readers.
        "registration": str(each.registration),
        "event": each.event.value,
        "before": None if each.before is None else each.before.label,
        "after": each.after.label,
        "who": each.who,
        "from": moment(each.from_),
        "to": moment(each.to),
        "code": each.code,
        "message": each.message,
        "inserted": each.inserted,
        "deleted": each.deleted,
        "bytes": each.bytes,
        "seconds": each.seconds,
    }


def usage(each: Usage) -> dict[str, Any]:
    """Everything about a job's usage."""
    return {
        "tenant": each.tenant,
        "job": str(each.name),
        "iterations": each.iterations,
        "failed": each.failed,
        "canceled": each.canceled,
        "inserted": each.inserted,
        "deleted": each.deleted,
        "bytes": each.bytes,
        "seconds": each.seconds,
    }
