"""`iscp usage`."""

from __future__ import annotations

import os

from iscp_dagster.cli.jobs.options import AsJson, Since


def usage(*, since: Since = None, as_json: AsJson = False) -> None:
    """Show what every job of every tenant used: iterations, rows, bytes, seconds."""
    from iscp_dagster.api import jobs as api
    from iscp_dagster.cli.jobs import json as job_json
    from iscp_dagster.cli.jobs import show as job_show
    from iscp_dagster.cli.jobs.specs import moment_of

    jobs = api.open_jobs(os.environ)
    found = jobs.usage(moment_of(since, jobs.deployment.clock()) if since else None)
    if as_json:
        job_json.write([job_json.usage(each) for each in found])
    else:
        job_show.usage(found)
