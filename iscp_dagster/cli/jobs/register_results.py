"""What `iscp job register` did, and how the registered job differs from the wish."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from iscp_dagster.api.jobs import Jobs
from iscp_dagster.api.names import ALL_TENANTS, describe_tenant, format_command, format_title
from iscp_dagster.cli.jobs.specs import JobRequest
from iscp_dagster.delta.log.tenants import find_tenants
from iscp_dagster.model.specs import JobSpec


@dataclass(frozen=True, kw_only=True)
class RegistrationResult:
    """What became of one request; `note` is what the person should know about it."""

    request: JobRequest
    created: bool
    note: str = ""
    differs: bool = False
    """Whether a job already exists with another specification than requested."""

    def __str__(self) -> str:
        outcome = "registered" if self.created else "already exists"
        mark = (
            (", " if self.differs and self.request.tenant != ALL_TENANTS else "; ")
            if self.note
            else ""
        )
        title = format_title(str(self.request.job), self.request.tenant)
        return f"{title}: {outcome}{mark}{self.note}"

    def to_json(self) -> Mapping[str, Any]:
        note = {"note": self.note} if self.note else {}
        request = self.request
        return {"tenant": request.tenant, "job": str(request.job), "created": self.created} | note


def register_job(jobs: Jobs, request: JobRequest) -> RegistrationResult:
    """Register the wish. Raises what `Jobs.register_job` raises."""
    created = jobs.register_job(request.tenant, request.job, request.spec)
    note = "" if created and request.tenant != ALL_TENANTS else _describe_difference(jobs, request)
    differs = bool(note)
    if created and not note:
        note = _note_missing_rows(jobs, request)
    return RegistrationResult(request=request, created=created, note=note, differs=differs)


def _describe_difference(jobs: Jobs, request: JobRequest) -> str:
    """How the first existing job that differs from the wish differs; empty if none does."""
    for prefix, spec in _list_existing_jobs(jobs, request):
        if differences := request.change.find_differences(spec):
            details = "; ".join(
                _format_difference(name, *values) for name, values in differences.items()
            )
            change = format_command("update", request.tenant, request.job)
            return f"{prefix}with another specification ({details}); change it with {change}"
    return ""


def _list_existing_jobs(jobs: Jobs, request: JobRequest) -> Iterator[tuple[str, JobSpec]]:
    """The existing jobs that the wish names, each with the start of a sentence about it."""
    name, all_tenants = request.job, request.tenant == ALL_TENANTS
    if all_tenants and name in (templates := jobs.list_standing()):
        yield "for later tenants it already exists, ", templates[name]
    for job in jobs.deployment.log.list_jobs(
        tenant=None if all_tenants else request.tenant, name=name
    ):
        yield (
            f"for {describe_tenant(job.key.tenant)} it already exists, " if all_tenants else "",
            job.spec,
        )


def _format_difference(name: str, current: Any, requested: Any) -> str:
    label = "trigger" if name == "job_type" else name
    return f"{label}: {_format_value(current)}, not {_format_value(requested)}"


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _note_missing_rows(jobs: Jobs, request: JobRequest) -> str:
    delta_log = jobs.deployment.make_delta_log(
        jobs.get_source(f"{request.job.db}.{request.job.table}")
    )
    tenants = find_tenants(delta_log)
    if request.tenant == ALL_TENANTS or tenants is None or request.tenant in tenants:
        return ""
    return f"the table holds no rows of {describe_tenant(request.tenant)} yet"
