"""`iscp job flush` and `collect`: the hourly upkeep, by hand."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from iscp_dagster.cli.jobs.options import AsJson
from iscp_dagster.cli.parts.counting import Limit


def flush(*, as_json: AsJson = False) -> None:
    """Save the watermarks of idle jobs, which move in memory, to the ISCP log."""
    from iscp_dagster.api import jobs as api
    from iscp_dagster.cli.jobs import json as job_json
    from iscp_dagster.cli.jobs import show as job_show
    from iscp_dagster.upkeep.maintenance import flush_watermarks

    jobs = api.open_jobs(os.environ)
    flushed = flush_watermarks(jobs.deployment, jobs.sources)
    if as_json:
        job_json.write({"moved": flushed.moved_jobs, "problems": flushed.problems})
        return
    for table, moved in flushed.moved_jobs.items():
        job_show.line(f"{table}: {moved:,} watermarks moved")
    for problem in flushed.problems:
        job_show.line(problem)


def collect(
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list what would be deleted.")
    ] = False,
    keep_hours: Annotated[
        float, typer.Option(min=0, help="Hours to keep unregistered jobs and their data.")
    ] = 24.0,
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """Delete expired unregistered jobs and their index data."""
    from datetime import timedelta

    from iscp_dagster.api import jobs as api
    from iscp_dagster.api.names import format_title
    from iscp_dagster.cli.jobs import json as job_json
    from iscp_dagster.cli.jobs import show as job_show
    from iscp_dagster.cli.parts.counting import ROWS, print_rest
    from iscp_dagster.upkeep import maintenance

    jobs = api.open_jobs(os.environ)
    garbage = maintenance.find_garbage(jobs.deployment, jobs.sources, timedelta(hours=keep_hours))
    if not dry_run:
        maintenance.delete_garbage(jobs.deployment, jobs.sources, garbage)
    rows = [
        {"tenant": expired.job.key.tenant, "job": str(expired.job.name), "drops": expired.scope}
        for expired in garbage
    ]
    if as_json:
        job_json.write({"dry_run": dry_run, "jobs": rows[:limit]})
        return
    for row in rows[: limit or ROWS]:
        job_show.line(f"{format_title(row['job'], row['tenant'])}: drops {row['drops']}")
    print_rest(min(limit or ROWS, len(rows)), len(rows), "--json")
    job_show.line(f"{len(rows):,} jobs {'would be deleted' if dry_run else 'deleted'}")
