"""`iscp job`: register, change and watch jobs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from iscp_dagster.cli.jobs import queries as job_look
from iscp_dagster.cli.jobs import upkeep as job_upkeep
from iscp_dagster.cli.jobs.options import (
    AsJson,
    Columns,
    File,
    Independent,
    Interval,
    MaxBytes,
    MaxVersions,
    Name,
    NameOrFile,
    Option,
    Priority,
    Share,
    Tenant,
    Trigger,
    Type,
)
from iscp_dagster.cli.parts.group import Group

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from iscp_dagster.api.jobs import Jobs
    from iscp_dagster.model.jobs import JobID

    Verb = Callable[[Jobs], Callable[[str, JobID], bool]]

job = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    cls=Group,
    help="Register, change and watch jobs.",
)


@job.command()
def register(
    name: NameOrFile = None,
    *,
    tenant: Tenant = "default",
    type: Type = None,  # noqa: A002  (the option's name)
    columns: Columns = None,
    option: Option = None,
    trigger: Trigger = None,
    interval: Interval = None,
    share: Share = None,
    independent: Independent = None,
    priority: Priority = None,
    max_versions: MaxVersions = None,
    max_bytes: MaxBytes = None,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Register a job, or the jobs in a file; a declared index needs no options.

    Exit code 1 when the job exists with a different specification.
    """
    from iscp_dagster.api.names import parse_job_id
    from iscp_dagster.cli.jobs import json as job_json
    from iscp_dagster.cli.jobs import show as job_show
    from iscp_dagster.cli.jobs.register_results import register_job
    from iscp_dagster.cli.jobs.specs import build_job_request, build_spec_update, read_file
    from iscp_dagster.model.errors import ConfigError

    change = build_spec_update(
        type=type,
        columns=columns,
        option=option,
        trigger=trigger,
        interval=interval,
        share=share,
        independent=independent,
        priority=priority,
        max_versions=max_versions,
        max_bytes=max_bytes,
    )
    jobs = _open_jobs()
    if (name is None) == (file is None) or (file and not change.empty):
        raise ConfigError("Name either a job, with its options, or a --file of jobs.")
    if file is not None:
        requests = read_file(jobs, file)
    else:
        requests = [build_job_request(jobs, tenant, parse_job_id(name or ""), change, options=True)]
    results = []
    for request in requests:
        results.append(register_job(jobs, request))
        if not as_json:
            job_show.line(str(results[-1]))
    if as_json:
        job_json.write([result.to_json() for result in results])
    raise typer.Exit(1 if any(result.differs for result in results) else 0)


@job.command()
def unregister(name: Name, *, tenant: Tenant = "default", as_json: AsJson = False) -> None:
    """Unregister a job; its index data is deleted a day later.

    The runner does not register it again, even if its index is declared.
    """
    outcomes = {True: "unregistered", False: "already unregistered"}
    _apply_verb(name, tenant, lambda jobs: jobs.unregister_job, outcomes, as_json=as_json)


@job.command()
def update(
    name: Name,
    *,
    tenant: Tenant = "default",
    type: Type = None,  # noqa: A002  (the option's name)
    columns: Columns = None,
    option: Option = None,
    trigger: Trigger = None,
    interval: Interval = None,
    share: Share = None,
    independent: Independent = None,
    priority: Priority = None,
    max_versions: MaxVersions = None,
    max_bytes: MaxBytes = None,
    interrupt: Annotated[
        bool, typer.Option("--interrupt", help="Cancel the current iteration to apply this now.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Change a job's spec; options left out keep their values."""
    from iscp_dagster.api.names import parse_job_id
    from iscp_dagster.cli.jobs.specs import build_spec_update
    from iscp_dagster.cli.jobs.update_results import update_spec
    from iscp_dagster.cli.parts.results import print_result
    from iscp_dagster.model.errors import ConfigError

    change = build_spec_update(
        type=type,
        columns=columns,
        option=option,
        trigger=trigger,
        interval=interval,
        share=share,
        independent=independent,
        priority=priority,
        max_versions=max_versions,
        max_bytes=max_bytes,
    )
    if change.empty and not interrupt:
        raise ConfigError("There is nothing to change; name an option, see `iscp job update -h`.")

    result = update_spec(_open_jobs(), tenant, parse_job_id(name), change, interrupt=interrupt)
    print_result(result.to_json(), str(result), as_json=as_json)


@job.command()
def pause(name: Name, *, tenant: Tenant = "default", as_json: AsJson = False) -> None:
    """Stop planning iterations of a job; a running one finishes."""
    outcomes = {True: "paused", False: "already paused"}
    _apply_verb(name, tenant, lambda jobs: jobs.pause_job, outcomes, as_json=as_json)


@job.command()
def resume(name: Name, *, tenant: Tenant = "default", as_json: AsJson = False) -> None:
    """Plan a paused job again."""
    outcomes = {True: "resumed", False: "not paused"}
    _apply_verb(name, tenant, lambda jobs: jobs.resume_job, outcomes, as_json=as_json)


@job.command()
def repair(name: Name, *, tenant: Tenant = "default", as_json: AsJson = False) -> None:
    """Plan a job in error again, once the cause is gone."""
    outcomes = {True: "planned again", False: "not in error"}
    _apply_verb(name, tenant, lambda jobs: jobs.repair_job, outcomes, as_json=as_json)


@job.command()
def rebuild(name: Name, *, tenant: Tenant = "default", as_json: AsJson = False) -> None:
    """Rebuild an index from its source; its current rows stay readable until then.

    With --tenant '*' it builds new tables beside the served ones; for one tenant it rebuilds in
    place.
    """
    outcomes = {True: "will be rebuilt", False: "unchanged"}
    _apply_verb(name, tenant, lambda jobs: jobs.rebuild_job, outcomes, as_json=as_json)


def _open_jobs() -> Jobs:
    from iscp_dagster.api import jobs as api

    return api.open_jobs(os.environ)


def _apply_verb(
    name: str, tenant: str, verb: Verb, outcomes: Mapping[bool, str], *, as_json: bool
) -> None:
    """Apply `verb` to the job, and print whether it changed anything."""
    from iscp_dagster.api.names import format_title, parse_job_id
    from iscp_dagster.cli.parts.results import print_result

    job_id = parse_job_id(name)
    changed = verb(_open_jobs())(tenant, job_id)
    fact = {"tenant": tenant, "job": str(job_id), "changed": changed}
    print_result(fact, f"{format_title(str(job_id), tenant)}: {outcomes[changed]}", as_json=as_json)


job.command()(job_look.status)
job.command("list")(job_look.list_jobs)
job.command()(job_look.count)
job.command()(job_look.history)
job.command()(job_upkeep.flush)
job.command()(job_upkeep.collect)
