"""Checks the names that a person gave against those that exist."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from iscp_dagster.api.names import EVERY, check_table, listed, parsed, shown
from iscp_dagster.delta.log.tenants import tenants_in
from iscp_dagster.model.errors import NoSuchJobError

if TYPE_CHECKING:
    from iscp_dagster.api.jobs import Jobs
    from iscp_dagster.model.declared.tables import SourceTable
    from iscp_dagster.model.jobs import Job
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
    held = jobs.list_jobs()
    tables = {source.name for source in jobs.sources}
    tables |= {f"{each.name.db}.{each.name.table}" for each in held}
    if table is not None and table not in tables:
        check_table(table)
    _check("table", table, tables)
    declared = {
        f"{source.name}/{called}"
        for source in jobs.sources
        for index in source.indexes
        for called in (index.name, index.shown)
    }
    if name is not None:
        _check(what, shown(parsed(name, what)), declared | {shown(each.name) for each in held})
    if tenant is not None and tenant != EVERY:
        check_tenant(jobs.deployment, jobs.sources, held, tenant)


def check_tenant(
    deployment: Deployment, sources: Iterable[SourceTable], held: Iterable[Job], tenant: str
) -> None:
    """Raise NoSuchJobError for a tenant that none of the tables holds and none of the jobs has."""
    known = {each.key.tenant for each in held}
    if tenant not in known:
        for source in sources:
            known |= tenants_in(deployment.delta_log(source)) or set()
    _check("tenant", tenant, known)


def _check(what: str, name: str | None, known: set[str]) -> None:
    if name is not None and name not in known:
        raise NoSuchJobError(f"There is no {what} {name!r}; there are: {listed(known)}.")
