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
    AnyName,
    AsJson,
    MaybeTenant,
    Name,
    Since,
    State,
    Table,
)
from iscp_dagster.cli.parts.counting import Limit

if TYPE_CHECKING:
    from iscp_dagster.api.jobs import Jobs
    from iscp_dagster.model.jobs import Job, JobID, JobKey
    from iscp_dagster.model.moment import Beginning
    from iscp_dagster.planning.problems import Problem
    from iscp_dagster.upkeep.progress import Progress


def status(
    name: Name, *, tenant: MaybeTenant = None, limit: Limit = None, as_json: AsJson = False
) -> None:
    """Show a job's state, watermark, lag and latest iteration, for all tenants or one.

    For many tenants, `iscp job list` shows a table with one line each.
    """
    from iscp_dagster.api import jobs as api
    from iscp_dagster.api.facts import job as job_facts
    from iscp_dagster.api.names import EVERY, parsed
    from iscp_dagster.cli.jobs import json as job_json
    from iscp_dagster.cli.jobs import show as job_show
    from iscp_dagster.cli.parts.counting import ROWS, print_rest

    jobs, wanted = api.open_jobs(os.environ), parsed(name)
    table = f"{wanted.db}.{wanted.table}"
    jobs.get_job(tenant or EVERY, wanted)
    held = jobs.list_jobs(tenant, table)
    named = sorted((each for each in held if each.name == wanted), key=lambda each: each.create_at)
    # If the table was dropped and recreated, take the later job.
    newest = {each.key.tenant: each for each in named}
    every = [newest[each] for each in sorted(newest)]
    found = every[: limit or (None if as_json else ROWS)]
    lags = _lags(jobs, table, {each.key.tenant for each in found}, [wanted.job])
    built, waiting = _progress(jobs, found), _unserved(jobs, found)
    begun = _histories(jobs, found)
    if as_json:
        job_json.write(
            [
                job_facts(each)
                | {"lag": lags.get(each.key), "served": each.name not in waiting}
                | job_json.progress(built.get(each.key))
                | job_json.history(begun.get(each.key))
                for each in found
            ]
        )
        return
    if len(every) > 1:
        job_show.count_states(every)
    job_show.status(found, lags, built, waiting, begun)
    print_rest(len(found), len(every), "--tenant, `iscp job list`")


def list_jobs(
    *,
    tenant: MaybeTenant = None,
    table: Table = None,
    state: State = None,
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """Count jobs by state, and list them.

    Those registered for every tenant (`*`) come first, then those in error.
    """
    from iscp_dagster.api import jobs as api
    from iscp_dagster.api.facts import job as job_facts
    from iscp_dagster.api.names import EVERY
    from iscp_dagster.cli.jobs import json as job_json
    from iscp_dagster.cli.jobs import show as job_show
    from iscp_dagster.cli.parts.counting import ROWS, print_rest
    from iscp_dagster.cli.parts.known import check_known
    from iscp_dagster.model.states import JobState

    jobs = api.open_jobs(os.environ)
    every = _in_state(jobs, state, tenant, table)
    if not as_json:
        every.sort(key=lambda each: each.state is not JobState.ERROR)
    found = every[: limit or (None if as_json else ROWS)]
    standing = jobs.standing(table) if state is None and tenant in {None, EVERY} else {}
    if not (found or standing):
        check_known(jobs, tenant=tenant, table=table)
    tenants: dict[str, set[str]] = {}
    for each in found:
        tenants.setdefault(f"{each.name.db}.{each.name.table}", set()).add(each.key.tenant)
    lags = {key: lag for each in tenants.items() for key, lag in _lags(jobs, *each).items()}
    if as_json:
        all_ = [job_json.standing(*each) for each in standing.items()]
        job_json.write(all_ + [job_facts(e) | {"lag": lags.get(e.key)} for e in found])
        return
    if every:
        job_show.count_states(every, len(standing))
    job_show.jobs(found, standing, lags)
    print_rest(len(found), len(every), "--state, --tenant, --table")
    job_show.problems(_problems(jobs, every))


def count(*, state: State = None, limit: Limit = None, as_json: AsJson = False) -> None:
    """Count jobs by state, or list those in one state with their latest iteration."""
    from iscp_dagster.api import jobs as api
    from iscp_dagster.cli.jobs import json as job_json
    from iscp_dagster.cli.jobs import show as job_show

    jobs = api.open_jobs(os.environ)
    if state is None:
        counted = jobs.count_jobs()
        if as_json:
            job_json.write({each.label: number for each, number in counted.items()})
        else:
            job_show.counts(counted)
        return
    found = [(each.key.tenant, each.name, each.status) for each in _in_state(jobs, state)]
    if as_json:
        job_json.write([job_json.counted(*each) for each in found[:limit]])
    else:
        job_show.statuses(found, limit)


def history(
    name: AnyName = None,
    *,
    tenant: MaybeTenant = None,
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
    from iscp_dagster.api.names import parsed
    from iscp_dagster.cli.jobs import json as job_json
    from iscp_dagster.cli.jobs import show as job_show
    from iscp_dagster.cli.jobs.specs import moment_of
    from iscp_dagster.cli.parts.known import check_known

    jobs = api.open_jobs(os.environ)
    after = moment_of(since, jobs.deployment.clock()) if since else None
    found = jobs.history(tenant, parsed(name) if name else None, after, most)
    if not found:
        check_known(jobs, tenant=tenant, name=name)
    if as_json:
        job_json.write([job_json.entry(each) for each in found])
    else:
        job_show.history(found)


def _problems(jobs: Jobs, held: Iterable[Job]) -> list[Problem]:
    """What is wrong with the tables of these jobs."""
    from iscp_dagster.planning.table_problems import problems_of

    tables = {f"{each.name.db}.{each.name.table}" for each in held}
    chosen = [source for source in jobs.sources if source.name in tables]
    return [problem for source in chosen for problem in problems_of(jobs.deployment, source)]


def _in_state(
    jobs: Jobs, label: str | None, tenant: str | None = None, table: str | None = None
) -> list[Job]:
    """The jobs in a state of `STATES`; None for any. Raises ConfigError for an unknown one."""
    from iscp_dagster.api.facts import is_building
    from iscp_dagster.model.errors import ConfigError

    if label is not None and label.lower() not in STATES:
        raise ConfigError(f"The state {label!r} is unknown; use one of {', '.join(STATES)}.")
    if label is None or label.lower() != BUILDING:
        return jobs.list_jobs(tenant, table, label)
    return [each for each in jobs.list_jobs(tenant, table) if is_building(each)]


def _progress(jobs: Jobs, held: Iterable[Job]) -> dict[JobKey, Progress | None]:
    """How far each building job has come; left out if a service does not answer."""
    from iscp_dagster.api.facts import is_building
    from iscp_dagster.model.errors import IscpError

    found: dict[JobKey, Progress | None] = {}
    for each in held:
        if is_building(each):
            with suppress(IscpError):
                found[each.key] = jobs.get_progress(each)
    return found


def _histories(jobs: Jobs, held: Iterable[Job]) -> dict[JobKey, Beginning | None]:
    """Where the histories of changes begin; left out if a service does not answer."""
    from iscp_dagster.model.errors import IscpError

    found: dict[JobKey, Beginning | None] = {}
    for each in held:
        with suppress(IscpError):
            found[each.key] = jobs.get_history(each)
    return found


def _unserved(jobs: Jobs, held: Collection[Job]) -> frozenset[JobID]:
    """The indexes that still show an earlier generation; empty if a service does not answer."""
    from iscp_dagster.model.errors import IscpError
    from iscp_dagster.sync.writing.serving import unserved

    try:
        return unserved(jobs.deployment, held)
    except IscpError:
        return frozenset()


def _lags(
    jobs: Jobs, table: str, tenants: Collection[str], names: Collection[str] | None = None
) -> dict[JobKey, float | None]:
    """The lag by job in seconds, None if it is not built; empty when the table cannot be read."""
    from iscp_dagster.upkeep.position import positions

    try:
        source = jobs.source(table)
        found = positions(jobs.deployment, source, tenants=tenants, indexes=names)
    except Exception:  # noqa: BLE001 - a table may raise anything
        return {}
    return {each.job.key: each.lag for each in found}
