"""`iscp usage`."""

from __future__ import annotations

import os

from iscp_dagster.cli.jobs.options import AsJson, Since, Table, TenantOrAll
from iscp_dagster.cli.parts.counting import Limit


def usage(
    *,
    tenant: TenantOrAll = None,
    table: Table = None,
    since: Since = None,
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """Show what all jobs used, and each: iterations, rows, bytes, seconds; the longest first."""
    from iscp_dagster.api import jobs as api
    from iscp_dagster.cli.jobs import json as job_json
    from iscp_dagster.cli.jobs import show as job_show
    from iscp_dagster.cli.jobs.specs import parse_time
    from iscp_dagster.cli.parts.name_checks import check_known

    jobs = api.open_jobs(os.environ)
    after = parse_time(since, jobs.deployment.clock()) if since else None
    usages = jobs.read_usage(after, tenant, table)
    if not usages:
        check_known(jobs, tenant=tenant, table=table)
    if as_json:
        job_json.write([job_json.describe_usage(job_usage) for job_usage in usages[:limit]])
    else:
        job_show.print_usage(usages, limit)
