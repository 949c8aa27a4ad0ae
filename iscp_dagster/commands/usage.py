"""`iscp usage`."""

from __future__ import annotations

import os

from iscp_dagster.commands.job_options import AsJson, Since


def usage(*, since: Since = None, as_json: AsJson = False) -> None:
    """Show what every job of every tenant used: iterations, rows, bytes, seconds."""
    from iscp_dagster.commands import job_json, job_show
    from iscp_dagster.commands.job_specs import moment_of
    from iscp_dagster.jobs import api

    jobs = api.deployment(os.environ)
    found = jobs.usage(moment_of(since, jobs.engine.clock()) if since else None)
    if as_json:
        job_json.write([job_json.usage(each) for each in found])
    else:
        job_show.usage(found)
