"""How a person names jobs: `database.table/job`, of one tenant or of all."""

from __future__ import annotations

from collections.abc import Iterable
from shlex import quote

from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.jobs import JobID

EVERY = "*"
"""The tenant that stands for every tenant, also those that appear later."""
MOST = 10
"""The most names that a message lists."""


def shown(job: JobID) -> str:
    """The job as the command line names it."""
    return f"{job.db}.{job.table}/{job.job}"


def parsed(text: str, what: str = "job") -> JobID:
    """Read the name of a job or an index, as `shown` writes it. Raises ConfigError."""
    place, slash, job = text.partition("/")
    db, dot, table = place.partition(".")
    if not (slash and dot and db and table and job):
        raise ConfigError(
            f"The {what} {text!r} is not named database.table/{what}, such as docs.symbols/mirror."
        )
    return JobID(db=db, table=table, job=job)


def job_of(job: JobID | str) -> JobID:
    """The job, also where it is given as the command line names it. Raises ConfigError."""
    return job if isinstance(job, JobID) else parsed(str(job))


def listed(names: Iterable[str]) -> str:
    """The first ten names, and how many more there are."""
    every = sorted(names)
    more = f" and {len(every) - MOST:,} more" if len(every) > MOST else ""
    return f"{', '.join(every[:MOST]) or 'none'}{more}"


def narrowed(tenant: str | None) -> str | None:
    """The tenant to select; None for all of them."""
    return None if tenant == EVERY else tenant


def whose(tenant: str) -> str:
    """The tenant as a sentence names it."""
    return "any tenant" if tenant == EVERY else f"tenant {tenant!r}"


def command(verb: str, tenant: str, job: JobID) -> str:
    """The shell command that does this to the job, as a message shows it."""
    return f"`iscp job {verb} {shown(job)} --tenant {quote(tenant)}`"
