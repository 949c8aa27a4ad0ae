"""How a person names jobs: `database.table/job`, of a tenant or of every one."""

from __future__ import annotations

from collections.abc import Iterable
from shlex import quote

from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.jobs import JobID

EVERY = "*"
"""The tenant that stands for every tenant, also those that appear later."""
MOST = 10
"""Names that a message lists."""


def shown(job: JobID) -> str:
    """The job as the command line names it."""
    return f"{job.db}.{job.table}/{job.job}"


def parsed(text: str, what: str = "job") -> JobID:
    """Read what `shown` gave, of a job or an index. Raises ConfigError."""
    place, slash, job = text.partition("/")
    db, dot, table = place.partition(".")
    if not (slash and dot and db and table and job):
        raise ConfigError(
            f"The {what} {text!r} is not named database.table/{what}, such as docs.symbols/mirror."
        )
    return JobID(db=db, table=table, job=job)


def job_of(job: JobID | str) -> JobID:
    """The job, be it given as the command line names it. Raises ConfigError."""
    return job if isinstance(job, JobID) else parsed(str(job))


def listed(names: Iterable[str]) -> str:
    """Some of them, and how many more there are."""
    every = sorted(names)
    more = f" and {len(every) - MOST:,} more" if len(every) > MOST else ""
    return f"{', '.join(every[:MOST]) or 'none'}{more}"


def narrowed(tenant: str | None) -> str | None:
    """The one tenant that is meant; None for all of them."""
    return None if tenant == EVERY else tenant


def whose(tenant: str) -> str:
    """Of whom, in a sentence."""
    return "any tenant" if tenant == EVERY else f"tenant {tenant!r}"


def command(verb: str, tenant: str, job: JobID) -> str:
    """What a person types in a shell to do that with the job, as a message shows it."""
    return f"`iscp job {verb} {shown(job)} --tenant {quote(tenant)}`"
