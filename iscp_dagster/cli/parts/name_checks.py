"""Checks the names that a person gave against those that exist."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from iscp_dagster.api.names import ALL_TENANTS, check_table, make_unknown_error, parse_job_id
from iscp_dagster.delta.log.tenants import find_tenants

if TYPE_CHECKING:
    from iscp_dagster.api.jobs import Jobs
    from iscp_dagster.model.declared.tables import SourceTable
    from iscp_dagster.model.jobs import Job, JobID
    from iscp_dagster.sync.deployment import Deployment


def check_known(
    jobs: Jobs,
    *,
    tenant: str | None = None,
    table: str | None = None,
    name: str | None = None,
    what: str = "job",
) -> None:
    """Raise NoSuchJobError for an unknown tenant, table or job, listing those that exist.

    Call it only when nothing was found: it reads all jobs. Messages call `name` a `what`.
    """
    all_jobs, tables = jobs.list_jobs(), jobs.list_known_tables()
    if table is not None and table not in tables:
        check_table(table)
    _check_name("table", table, tables)
    declared = {
        f"{source.name}/{label}"
        for source in jobs.sources
        for consumer in source.consumers
        for label in (consumer.name, consumer.shown)
    }
    if name is not None:
        _check_name(
            what, str(parse_job_id(name, what)), declared | {str(job.name) for job in all_jobs}
        )
    if tenant is not None and tenant != ALL_TENANTS:
        where = table or (_get_table_name(parse_job_id(name, what)) if name else None)
        check_tenant(jobs.deployment, jobs.sources, all_jobs, tenant, where)


def check_tenant(
    deployment: Deployment,
    sources: Iterable[SourceTable],
    jobs: Iterable[Job],
    tenant: str,
    table: str | None = None,
) -> None:
    """Raise NoSuchJobError for a tenant that has neither rows in the tables nor a job.

    The error lists only the tenants of `table`, if it is given.
    """
    tenants: dict[str, set[str]] = {}
    for job in jobs:
        tenants.setdefault(_get_table_name(job.name), set()).add(job.key.tenant)
    if any(tenant in names for names in tenants.values()):
        return
    for source in sources:
        names = find_tenants(deployment.make_delta_log(source)) or ()
        tenants.setdefault(source.name, set()).update(names)
    all_tenants = set().union(*tenants.values())
    if tenant not in all_tenants:
        raise make_unknown_error(
            "tenant", tenant, all_tenants if table is None else tenants[table], table or ""
        )


def _get_table_name(job: JobID) -> str:
    return f"{job.db}.{job.table}"


def _check_name(what: str, name: str | None, existing: set[str]) -> None:
    if name is not None and name not in existing:
        raise make_unknown_error(what, name, existing)
