"""`iscp verify`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from iscp_dagster.cli.parts.counting import Limit

if TYPE_CHECKING:
    from iscp_dagster.model.jobs import Job
    from iscp_dagster.sync.deployment import Deployment
    from iscp_dagster.upkeep.verify_tables import RequestedIndexes

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

    from iscp_dagster.api.discovery import load_tables
    from iscp_dagster.api.environment import open_deployment
    from iscp_dagster.api.selection import select_indexes
    from iscp_dagster.cli import verdicts
    from iscp_dagster.cli.parts.name_checks import check_tenant
    from iscp_dagster.cli.parts.progress import show_progress
    from iscp_dagster.cli.parts.sanitizing import escape_control_chars
    from iscp_dagster.local.stack.environment import add_stack_variables
    from iscp_dagster.model.consumers.kinds import is_index
    from iscp_dagster.model.errors import IscpError
    from iscp_dagster.spark.session import disconnect
    from iscp_dagster.upkeep.verify_tables import compare_tables

    try:
        environ = add_stack_variables(os.environ)
        deployment = open_deployment(environ)
        index_jobs = [
            job for job in deployment.log.list_jobs() if is_index(job.spec.detail.consumer)
        ]
        selection = select_indexes(
            index or [], load_tables(environ), {job.name for job in index_jobs}
        )
        with show_progress(Console(stderr=True)) as report:
            comparison = compare_tables(deployment, selection, tenant, report)
        verdicts.print_comparison(comparison, as_json=as_json, differs=differs, limit=limit)
        if comparison.empty and tenant is not None:
            tables = {source.name: source for source, _ in selection}
            jobs = [
                job
                for job in deployment.log.list_jobs()
                if f"{job.name.db}.{job.name.table}" in tables
            ]
            check_tenant(deployment, tables.values(), jobs, tenant)
        if not as_json:
            verdicts.print_nothing_found(
                comparison, tenant, _find_unregistered_jobs(deployment, selection, tenant)
            )
    except IscpError as error:
        # Exit code 1 means that an index differs.
        typer.echo(f"iscp: {escape_control_chars(str(error), colours=True)}", err=True)
        raise typer.Exit(NOT_COMPARED) from error
    disconnect()
    raise typer.Exit(DIFFERS if comparison.differs else 0 if comparison.complete else NOT_COMPARED)


def _find_unregistered_jobs(
    deployment: Deployment, selection: RequestedIndexes, tenant: str | None
) -> list[Job]:
    """The jobs of the selected indexes that a person unregistered."""
    from iscp_dagster.model.consumers.kinds import is_index

    names = {source.name: indexes for source, indexes in selection}

    def matches(job: Job) -> bool:
        table = f"{job.name.db}.{job.name.table}"
        indexes = names.get(table)
        return table in names and (indexes is None or job.name.job in indexes)

    return [
        job
        for job in deployment.log.list_jobs(tenant=tenant, include_dropped=True)
        if job.drop_at is not None and is_index(job.spec.detail.consumer) and matches(job)
    ]
