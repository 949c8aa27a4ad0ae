"""Checks the names that a person gave against those that exist."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from iscp_dagster.api.names import EVERY, check_table, no_such, parsed
from iscp_dagster.delta.log.tenants import tenants_in

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
    held, tables = jobs.list_jobs(), jobs.known_tables()
    if table is not None and table not in tables:
        check_table(table)
    _check("table", table, tables)
    declared = {
        f"{source.name}/{called}"
        for source in jobs.sources
        for each in source.consumers
        for called in (each.name, each.shown)
    }
    if name is not None:
        _check(what, str(parsed(name, what)), declared | {str(each.name) for each in held})
    if tenant is not None and tenant != EVERY:
        where = table or (_table(parsed(name, what)) if name else None)
        check_tenant(jobs.deployment, jobs.sources, held, tenant, where)


def check_tenant(
    deployment: Deployment,
    sources: Iterable[SourceTable],
    held: Iterable[Job],
    tenant: str,
    table: str | None = None,
) -> None:
    """Raise NoSuchJobError for a tenant that has neither rows in the tables nor a job.

    The error lists the tenants of `table` alone, if it is given.
    """
    known: dict[str, set[str]] = {}
    for each in held:
        known.setdefault(_table(each.name), set()).add(each.key.tenant)
    if any(tenant in its for its in known.values()):
        return
    for source in sources:
        its = tenants_in(deployment.delta_log(source)) or ()
        known.setdefault(source.name, set()).update(its)
    every = set().union(*known.values())
    if tenant not in every:
        raise no_such("tenant", tenant, every if table is None else known[table], table or "")


def _table(job: JobID) -> str:
    return f"{job.db}.{job.table}"


def _check(what: str, name: str | None, known: set[str]) -> None:
    if name is not None and name not in known:
        raise no_such(what, name, known)
