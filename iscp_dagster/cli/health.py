"""`iscp health`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from iscp_dagster.cli.jobs.options import AsJson

UNWELL = 1


def show_health(
    *,
    max_lag: Annotated[
        float, typer.Option(min=0, help="Seconds that an index may be behind its source.")
    ] = 600.0,
    as_json: AsJson = False,
) -> None:
    """Check services, Dagster, jobs in error and lag. Exit code 1 when something is wrong."""
    from dataclasses import asdict

    from iscp_dagster.api import jobs as api
    from iscp_dagster.cli.checkup import inspect_deployment
    from iscp_dagster.cli.jobs import json as job_json
    from iscp_dagster.cli.jobs import show as job_show
    from iscp_dagster.local.stack.environment import add_stack_variables

    findings = []
    environ = add_stack_variables(os.environ)
    for finding in inspect_deployment(environ, lambda: api.open_jobs(os.environ), max_lag):
        findings.append(finding)
        if not as_json:
            job_show.line(str(finding))
    if as_json:
        job_json.write([asdict(finding) for finding in findings])
    raise typer.Exit(UNWELL if any(finding.problem for finding in findings) else 0)
