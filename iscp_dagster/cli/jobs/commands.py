"""`iscp job`: register, change and watch jobs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from iscp_dagster.cli.jobs import look as job_look
from iscp_dagster.cli.jobs import upkeep as job_upkeep
from iscp_dagster.cli.jobs.options import (
    AsJson,
    Columns,
    File,
    Independent,
    Interval,
    MaxBytes,
    MaxVersions,
    MaybeName,
    Name,
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
    name: MaybeName = None,
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
    from iscp_dagster.api.names import parsed
    from iscp_dagster.cli.jobs import json as job_json
    from iscp_dagster.cli.jobs import show as job_show
    from iscp_dagster.cli.jobs.registering import registered
    from iscp_dagster.cli.jobs.specs import asked, read_file, wished
    from iscp_dagster.model.errors import ConfigError

    change = asked(
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
    jobs = _jobs()
    if (name is None) == (file is None) or (file and not change.empty):
        raise ConfigError("Name either a job, with its options, or a --file of jobs.")
    if file is not None:
        wishes = read_file(jobs, file)
    else:
        wishes = [wished(jobs, tenant, parsed(name or ""), change, options=True)]
    done = []
    for wish in wishes:
        done.append(registered(jobs, wish))
        if not as_json:
            job_show.line(str(done[-1]))
    if as_json:
        job_json.write([each.to_json() for each in done])
    raise typer.Exit(1 if any(each.differs for each in done) else 0)


@job.command()
def unregister(name: Name, *, tenant: Tenant = "default", as_json: AsJson = False) -> None:
    """Unregister a job; its index data is deleted a day later.

    The runner does not register it again, even if its index is declared.
    """
    done = {True: "unregistered", False: "already unregistered"}
    _change(name, tenant, lambda jobs: jobs.unregister_job, done, as_json=as_json)


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
    from iscp_dagster.api.names import parsed
    from iscp_dagster.cli.jobs.specs import asked
    from iscp_dagster.cli.jobs.updating import update_spec
    from iscp_dagster.cli.parts.results import print_result
    from iscp_dagster.model.errors import ConfigError

    change = asked(
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

    done = update_spec(_jobs(), tenant, parsed(name), change, interrupt=interrupt)
    print_result(done.to_json(), str(done), as_json=as_json)


@job.command()
def pause(name: Name, *, tenant: Tenant = "default", as_json: AsJson = False) -> None:
    """Stop planning iterations of a job; a running one finishes."""
    done = {True: "paused", False: "already paused"}
    _change(name, tenant, lambda jobs: jobs.pause_job, done, as_json=as_json)


@job.command()
def resume(name: Name, *, tenant: Tenant = "default", as_json: AsJson = False) -> None:
    """Plan a paused job again."""
    done = {True: "resumed", False: "not paused"}
    _change(name, tenant, lambda jobs: jobs.resume_job, done, as_json=as_json)


@job.command()
def repair(name: Name, *, tenant: Tenant = "default", as_json: AsJson = False) -> None:
    """Plan a job in error again, once the cause is gone."""
    done = {True: "planned again", False: "not in error"}
    _change(name, tenant, lambda jobs: jobs.repair_job, done, as_json=as_json)


@job.command()
def rebuild(name: Name, *, tenant: Tenant = "default", as_json: AsJson = False) -> None:
    """Rebuild an index from its source; its current rows stay readable until then.

    With --tenant '*' it builds new tables beside the served ones; for one tenant it rebuilds in
    place.
    """
    done = {True: "will be rebuilt", False: "unchanged"}
    _change(name, tenant, lambda jobs: jobs.rebuild_job, done, as_json=as_json)


def _jobs() -> Jobs:
    from iscp_dagster.api import jobs as api

    return api.open_jobs(os.environ)


def _change(name: str, tenant: str, verb: Verb, said: Mapping[bool, str], *, as_json: bool) -> None:
    """Apply `verb` to the job, and print whether it changed anything."""
    from iscp_dagster.api.names import parsed, titled
    from iscp_dagster.cli.parts.results import print_result

    wanted = parsed(name)
    changed = verb(_jobs())(tenant, wanted)
    fact = {"tenant": tenant, "job": str(wanted), "changed": changed}
    print_result(fact, f"{titled(str(wanted), tenant)}: {said[changed]}", as_json=as_json)


job.command()(job_look.status)
job.command("list")(job_look.list_jobs)
job.command()(job_look.count)
job.command()(job_look.history)
job.command()(job_upkeep.flush)
job.command()(job_upkeep.collect)
