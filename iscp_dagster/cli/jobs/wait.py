"""`iscp wait`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from iscp_dagster.cli.jobs.options import AsJson, TableName, TenantOrAll

LINE_SECONDS = 10.0
"""Between two lines of progress if stderr is not a terminal."""


def wait(
    table: TableName,
    *,
    version: Annotated[
        int | None,
        typer.Option(min=0, help="A commit's version; default: the latest.", show_default=False),
    ] = None,
    tenant: TenantOrAll = None,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait.")] = 300.0,
    as_json: AsJson = False,
) -> None:
    """Wait until a commit is searchable in every index. Exit code 1 if it is not in time.

    Also waits for your own registered consumers. Progress is shown on stderr.
    """
    from rich.console import Console

    from iscp_dagster.api import jobs as api
    from iscp_dagster.cli.parts.progress import show_progress
    from iscp_dagster.cli.parts.results import print_result

    jobs = api.open_jobs(os.environ)
    with show_progress(Console(stderr=True), seconds=LINE_SECONDS) as report:
        reached = jobs.wait(table, version, tenant, timeout, report=report)
    text = f"{table} is searchable at version {reached} in every index."
    print_result({"table": table, "tenant": tenant, "version": reached}, text, as_json=as_json)
