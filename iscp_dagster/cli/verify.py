"""`iscp verify`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from iscp_dagster.cli.parts.counting import Limit

if TYPE_CHECKING:
    from iscp_dagster.model.jobs import Job
    from iscp_dagster.sync.deployment import Deployment
    from iscp_dagster.upkeep.comparison import Wanted

DIFFERS, NOT_COMPARED = 1, 2
"""Exit codes."""


def verify(
    *,
    tenant: Annotated[
        str | None, typer.Option(help="One tenant; default: all.", show_default=False)
    ] = None,
    index: Annotated[
        list[str] | None,
        typer.Option(
            help="index, table/index, database.table/index or database.table; repeatable.",
            show_default=False,
        ),
    ] = None,
    differs: Annotated[
        bool, typer.Option("--differs", help="Show only what differs, or was not compared.")
    ] = False,
    limit: Limit = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare indexes with their sources: same keys, same values. What differs comes first.

    Exit code 1 when an index differs; else 2 when one could not be compared or none was found.
    """
    from rich.console import Console

    from iscp_dagster.api.chosen import chosen
    from iscp_dagster.api.discovery import declared
    from iscp_dagster.api.environment import deployment_of
    from iscp_dagster.cli import show
    from iscp_dagster.cli.parts.known import check_tenant
    from iscp_dagster.cli.parts.plain import plain
    from iscp_dagster.cli.parts.progress import telling
    from iscp_dagster.local.stack.environment import with_stack
    from iscp_dagster.model.consumers.kinds import is_index
    from iscp_dagster.model.errors import IscpError
    from iscp_dagster.spark.session import disconnect
    from iscp_dagster.upkeep.comparison import compared

    try:
        environ = with_stack(os.environ)
        deployment = deployment_of(environ)
        held = [job for job in deployment.log.jobs() if is_index(job.spec.detail.consumer)]
        wanted = chosen(index or [], declared(environ), {job.name for job in held})
        with telling(Console(stderr=True)) as tell:
            found = compared(deployment, wanted, tenant, tell)
        show.comparison(found, as_json=as_json, differs=differs, limit=limit)
        if found.empty and tenant is not None:
            tables = {source.name: source for source, _ in wanted}
            theirs = [j for j in deployment.log.jobs() if f"{j.name.db}.{j.name.table}" in tables]
            check_tenant(deployment, tables.values(), theirs, tenant)
        if not as_json:
            show.nothing(found, tenant, _unregistered(deployment, wanted, tenant))
    except IscpError as error:
        # Exit code 1 says that an index differs.
        typer.echo(f"iscp: {plain(str(error), colours=True)}", err=True)
        raise typer.Exit(NOT_COMPARED) from error
    disconnect()
    raise typer.Exit(DIFFERS if found.differs else 0 if found.whole else NOT_COMPARED)


def _unregistered(deployment: Deployment, wanted: Wanted, tenant: str | None) -> list[Job]:
    """The jobs of the wanted indexes that a person unregistered."""
    from iscp_dagster.model.consumers.kinds import is_index

    names = {source.name: indexes for source, indexes in wanted}

    def matches(job: Job) -> bool:
        table = f"{job.name.db}.{job.name.table}"
        indexes = names.get(table)
        return table in names and (indexes is None or job.name.job in indexes)

    return [
        job
        for job in deployment.log.jobs(tenant=tenant, include_dropped=True)
        if job.drop_at is not None and is_index(job.spec.detail.consumer) and matches(job)
    ]
