"""The job API on the deployment that this process's environment names.

Each function opens the deployment's log; a program that makes many calls keeps the `Jobs` of
`iscp_dagster.api.jobs.open_jobs` instead. A job is given by its JobID or as `database.table/job`;
anything else raises ConfigError. `connection`, a SQLAlchemy connection to the ISCP log's database,
makes a call part of the caller's transaction.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from iscp_dagster.api import jobs as api
from iscp_dagster.joblog.updates import SpecUpdate
from iscp_dagster.model.jobs import JobID, JobStatus
from iscp_dagster.model.specs import JobSpec
from iscp_dagster.model.states import JobState


def register_job(tenant: str, job: JobID | str, spec: JobSpec, *, connection: Any = None) -> bool:
    """See `Jobs.register_job`."""
    return _open_jobs().register_job(tenant, job, spec, connection=connection)


def unregister_job(tenant: str, job: JobID | str, *, connection: Any = None) -> bool:
    """See `Jobs.unregister_job`."""
    return _open_jobs().unregister_job(tenant, job, connection=connection)


def update_job_spec(
    tenant: str,
    job: JobID | str,
    change: SpecUpdate | JobSpec,
    *,
    interrupt: bool = False,
    connection: Any = None,
) -> bool:
    """See `Jobs.update_job_spec`."""
    return _open_jobs().update_job_spec(
        tenant, job, change, interrupt=interrupt, connection=connection
    )


def get_job_status(tenant: str, job: JobID | str) -> JobStatus:
    """See `Jobs.get_job_status`."""
    return _open_jobs().get_job_status(tenant, job)


def get_job_count(state: JobState | str) -> list[tuple[str, JobID, JobStatus]]:
    """Tenant, name and latest iteration of every job in `state`, a JobState or its name.

    See `Jobs.get_job_count`.
    """
    return _open_jobs().get_job_count(state)


def count_jobs() -> Mapping[JobState, int]:
    """See `Jobs.count_jobs`."""
    return _open_jobs().count_jobs()


def pause_job(tenant: str, job: JobID | str) -> bool:
    """See `Jobs.pause_job`."""
    return _open_jobs().pause_job(tenant, job)


def resume_job(tenant: str, job: JobID | str) -> bool:
    """See `Jobs.resume_job`."""
    return _open_jobs().resume_job(tenant, job)


def wait(
    table: str, version: int | None = None, tenant: str | None = None, timeout: float = 300.0
) -> int:
    """See `Jobs.wait`."""
    return _open_jobs().wait(table, version, tenant, timeout)


def _open_jobs() -> api.Jobs:
    return api.open_jobs(os.environ)
