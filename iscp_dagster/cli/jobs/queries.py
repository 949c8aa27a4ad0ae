"""`iscp job status`, `list`, `count` and `history`."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from iscp_dagster.cli.jobs.options import (
    BUILDING,
    STATES,
    AsJson,
    Name,
    NameOrAll,
    Since,
    State,
    Table,
    TenantOrAll,
)
from iscp_dagster.cli.parts.counting import Limit

if TYPE_CHECKING:
    from iscp_dagster.api.jobs import Jobs
    from iscp_dagster.model.jobs import Job, JobID, JobKey
    from iscp_dagster.model.moment import HistoryStart
    from iscp_dagster.planning.problems import Problem
    from iscp_dagster.upkeep.progress import Progress


def status(
    name: Name, *, tenant: TenantOrAll = None, limit: Limit = None, as_json: AsJson = False
) -> None:
    """Show a job's state, watermark, lag and latest iteration, for all tenants or one.

    For many tenants, `iscp job list` shows a table with one line each.
    """
    from iscp_dagster.api import jobs as api
    from iscp_dagster.api.facts import describe_job as job_facts
    from iscp_dagster.api.names import ALL_TENANTS, parse_job_id
    from iscp_dagster.cli.jobs import json as job_json
    from iscp_dagster.cli.jobs import show as job_show
    from iscp_dagster.cli.parts.counting import ROWS, print_rest

    jobs, job_id = api.open_jobs(os.environ), parse_job_id(name)
    table = f"{job_id.db}.{job_id.table}"
    jobs.get_job(tenant or ALL_TENANTS, job_id)
    table_jobs = jobs.list_jobs(tenant, table)
    matching = sorted(
        (job for job in table_jobs if job.name == job_id), key=lambda job: job.create_at
    )
    # If the table was dropped and recreated, take the later job.
    newest = {job.key.tenant: job for job in matching}
    all_jobs = [job for _, job in sorted(newest.items())]
    page = all_jobs[: limit or (None if as_json else ROWS)]
    lags = _read_lags(jobs, table, {job.key.tenant for job in page}, [job_id.job])
    progress, unserved = _read_progress(jobs, page), _find_unserved(jobs, page)
    beginnings = _find_history_starts(jobs, page)
    if as_json:
        job_json.write(
            [
                job_facts(job)
                | {"lag": lags.get(job.key), "served": job.name not in unserved}
                | job_json.describe_progress(progress.get(job.key))
                | job_json.describe_history_start(beginnings.get(job.key))
                for job in page
            ]
        )
        return
    if len(all_jobs) > 1:
        job_show.print_job_counts(all_jobs)
    job_show.print_status(page, lags, progress, unserved, beginnings)
    print_rest(len(page), len(all_jobs), "--tenant, `iscp job list`")


def list_jobs(
    *,
    tenant: TenantOrAll = None,
    table: Table = None,
    state: State = None,
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """Count jobs by state, and list them.

    Those registered for every tenant (`*`) come first, then those in error.
    """
    from iscp_dagster.api import jobs as api
    from iscp_dagster.api.facts import describe_job as job_facts
    from iscp_dagster.api.names import ALL_TENANTS
    from iscp_dagster.cli.jobs import json as job_json
    from iscp_dagster.cli.jobs import show as job_show
    from iscp_dagster.cli.parts.counting import ROWS, print_rest
    from iscp_dagster.cli.parts.name_checks import check_known
    from iscp_dagster.model.states import JobState

    jobs = api.open_jobs(os.environ)
    all_jobs = _list_jobs_in_state(jobs, state, tenant, table)
    if not as_json:
        all_jobs.sort(key=lambda job: job.state is not JobState.ERROR)
    page = all_jobs[: limit or (None if as_json else ROWS)]
    standing = jobs.list_standing(table) if state is None and tenant in {None, ALL_TENANTS} else {}
    if not (page or standing):
        check_known(jobs, tenant=tenant, table=table)
    tenants: dict[str, set[str]] = {}
    for job in page:
        tenants.setdefault(f"{job.name.db}.{job.name.table}", set()).add(job.key.tenant)
    lags = {key: lag for pair in tenants.items() for key, lag in _read_lags(jobs, *pair).items()}
    if as_json:
        rows = [job_json.describe_standing(*registration) for registration in standing.items()]
        job_json.write(rows + [job_facts(job) | {"lag": lags.get(job.key)} for job in page])
        return
    if all_jobs:
        job_show.print_job_counts(all_jobs, len(standing))
    job_show.print_jobs(page, standing, lags)
    print_rest(len(page), len(all_jobs), "--state, --tenant, --table")
    job_show.print_problems(_find_table_problems(jobs, all_jobs))


def count(*, state: State = None, limit: Limit = None, as_json: AsJson = False) -> None:
    """Count jobs by state, or list those in one state with their latest iteration."""
    from iscp_dagster.api import jobs as api
    from iscp_dagster.cli.jobs import json as job_json
    from iscp_dagster.cli.jobs import show as job_show

    jobs = api.open_jobs(os.environ)
    if state is None:
        counts = jobs.count_jobs()
        if as_json:
            job_json.write({job_state.label: number for job_state, number in counts.items()})
        else:
            job_show.print_state_counts(counts)
        return
    statuses = [(job.key.tenant, job.name, job.status) for job in _list_jobs_in_state(jobs, state)]
    if as_json:
        job_json.write([job_json.describe_iteration(*row) for row in statuses[:limit]])
    else:
        job_show.print_statuses(statuses, limit)


def history(
    name: NameOrAll = None,
    *,
    tenant: TenantOrAll = None,
    since: Since = None,
    most: Annotated[
        int,
        typer.Option(
            "--limit", "--most", min=1, help="Show only the newest entries, at most this many."
        ),
    ] = 100,
    as_json: AsJson = False,
) -> None:
    """Show what happened to jobs, oldest first."""
    from iscp_dagster.api import jobs as api
    from iscp_dagster.api.names import parse_job_id
    from iscp_dagster.cli.jobs import json as job_json
    from iscp_dagster.cli.jobs import show as job_show
    from iscp_dagster.cli.jobs.specs import parse_time
    from iscp_dagster.cli.parts.name_checks import check_known

    jobs = api.open_jobs(os.environ)
    after = parse_time(since, jobs.deployment.clock()) if since else None
    entries = jobs.read_history(tenant, parse_job_id(name) if name else None, after, most)
    if not entries:
        check_known(jobs, tenant=tenant, name=name)
    if as_json:
        job_json.write([job_json.describe_entry(entry) for entry in entries])
    else:
        job_show.print_history(entries)


def _find_table_problems(jobs: Jobs, job_list: Iterable[Job]) -> list[Problem]:
    """What is wrong with the tables of these jobs."""
    from iscp_dagster.planning.table_problems import find_problems

    tables = {f"{job.name.db}.{job.name.table}" for job in job_list}
    sources = [source for source in jobs.sources if source.name in tables]
    return [problem for source in sources for problem in find_problems(jobs.deployment, source)]


def _list_jobs_in_state(
    jobs: Jobs, label: str | None, tenant: str | None = None, table: str | None = None
) -> list[Job]:
    """The jobs in a state of `STATES`; None for any. Raises ConfigError for an unknown one."""
    from iscp_dagster.api.facts import is_building
    from iscp_dagster.model.errors import ConfigError

    if label is not None and label.lower() not in STATES:
        raise ConfigError(f"The state {label!r} is unknown; use one of {', '.join(STATES)}.")
    if label is None or label.lower() != BUILDING:
        return jobs.list_jobs(tenant, table, label)
    return [job for job in jobs.list_jobs(tenant, table) if is_building(job)]


def _read_progress(jobs: Jobs, job_list: Iterable[Job]) -> dict[JobKey, Progress | None]:
    """How far each building job has come; left out if a service does not answer."""
    from iscp_dagster.api.facts import is_building
    from iscp_dagster.model.errors import IscpError

    progress: dict[JobKey, Progress | None] = {}
    for job in job_list:
        if is_building(job):
            with suppress(IscpError):
                progress[job.key] = jobs.get_progress(job)
    return progress


def _find_history_starts(jobs: Jobs, job_list: Iterable[Job]) -> dict[JobKey, HistoryStart | None]:
    """Where the histories of changes begin; left out if a service does not answer."""
    from iscp_dagster.model.errors import IscpError

    beginnings: dict[JobKey, HistoryStart | None] = {}
    for job in job_list:
        with suppress(IscpError):
            beginnings[job.key] = jobs.get_history_start(job)
    return beginnings


def _find_unserved(jobs: Jobs, job_list: Collection[Job]) -> frozenset[JobID]:
    """The indexes that still show an earlier generation; empty if a service does not answer."""
    from iscp_dagster.model.errors import IscpError
    from iscp_dagster.sync.writing.serving import find_unserved

    try:
        return find_unserved(jobs.deployment, job_list)
    except IscpError:
        return frozenset()


def _read_lags(
    jobs: Jobs, table: str, tenants: Collection[str], names: Collection[str] | None = None
) -> dict[JobKey, float | None]:
    """The lag by job in seconds, None if it is not built; empty when the table cannot be read."""
    from iscp_dagster.upkeep.position import read_positions

    try:
        source = jobs.get_source(table)
        positions = read_positions(jobs.deployment, source, tenants=tenants, job_names=names)
    except Exception:  # noqa: BLE001 - a table may raise anything
        return {}
    return {position.job.key: position.lag for position in positions}
