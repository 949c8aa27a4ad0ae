"""How a person names jobs: `database.table/job`, of one tenant or of all."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from shlex import quote

from iscp_dagster.model import errors
from iscp_dagster.model.jobs import JobID, JobStatus

ALL_TENANTS = "*"
"""Stands for every tenant, including later ones."""
MOST, LONGEST = 10, 60
"""The most names that a message lists, and the most characters of one."""
PLAIN = re.compile(rf"[^\W_][\w.:@/%+-]{{0,{LONGEST - 1}}}")
"""Names that need no quotes among others."""
_VERBS = {errors.TableGoneError.code: "register", errors.UntimedError.code: "rebuild"}
"""The verb that fixes a job in error, by error code; the others need `repair`."""
_REMEDY = re.compile(r"`iscp job (register|repair|rebuild)\b([^`]*)`")


def parse_job_id(text: str, what: str = "job") -> JobID:
    """Read the name of a job or an index, as `str` writes it. Raises ConfigError."""
    table_name, slash, job = text.partition("/")
    db, dot, table = table_name.partition(".")
    if not (slash and dot and db and table and job):
        raise errors.ConfigError(
            f"The {what} {text!r} is not written database.table/{what}, such as "
            "docs.symbols/mirror."
        )
    return JobID(db=db, table=table, job=job)


def check_table(name: str) -> None:
    """Raises ConfigError for a name that is not written database.table."""
    db, dot, table = name.partition(".")
    if not (db and dot and table) or "/" in table:
        raise errors.ConfigError(
            f"The table {name!r} is not written database.table, such as docs.symbols."
        )


def to_job_id(job: JobID | str) -> JobID:
    """The job, given as a JobID or as the command line names it. Raises ConfigError."""
    return job if isinstance(job, JobID) else parse_job_id(str(job))


def format_names(names: Iterable[str], like: str | None = None) -> str:
    """The first ten names, those like `like` before the others, and how many more there are."""
    ordered = sorted(names)
    if like is not None and len(ordered) > MOST:
        similar = get_close_matches(like, ordered, n=MOST)
        ordered = similar + [name for name in ordered if name not in similar]
    more = f" and {len(ordered) - MOST:,} more" if len(ordered) > MOST else ""
    return f"{', '.join(map(_quote_odd, ordered[:MOST])) or 'none'}{more}"


def _quote_odd(name: str) -> str:
    """Return the name; quoted, escaped and shortened if it would not read as one name."""
    if PLAIN.fullmatch(name):
        return name
    return repr(name if len(name) <= LONGEST else f"{name[:LONGEST]}...")


def make_unknown_error(
    what: str, name: str, known_names: Collection[str], where: str = ""
) -> errors.NoSuchJobError:
    """The error for an unknown `what`, such as a table; lists the known ones (in `where`)."""
    intro = f"there are in {where}" if where else "there are"
    return errors.NoSuchJobError(
        f"There is no {what} {name!r}; {intro}: {format_names(known_names, name)}."
    )


def to_tenant_filter(tenant: str | None) -> str | None:
    """The tenant to select; None for all of them."""
    return None if tenant == ALL_TENANTS else tenant


def describe_tenant(tenant: str) -> str:
    """The tenant, for a negative sentence: `any tenant` for `*`."""
    return "any tenant" if tenant == ALL_TENANTS else f"tenant {tenant!r}"


def format_title(name: str, tenant: str) -> str:
    """A tenant's job or index by its full name, as the heading of an output line."""
    return f"{name}, {'every tenant' if tenant == ALL_TENANTS else f'tenant {tenant}'}"


@contextmanager
def prefix_errors(job: JobID) -> Iterator[None]:
    """Put the job's name before what a ConfigError says, unless it is there already."""
    head = f"Job {job}: "
    try:
        yield
    except (errors.ConfigError, errors.KeyColumnError) as error:
        raise errors.ConfigError(head + str(error).removeprefix(head)) from error


def get_remedy_verb(status: JobStatus) -> str:
    """The verb that fixes a job in error; empty if its message has the whole command already."""
    match = _REMEDY.search(status.message)
    if match is None:
        return _VERBS.get(status.code, "repair")
    return "" if match[2] else match[1]


def explains_remedy(status: JobStatus) -> bool:
    """Whether the message or the code names the fix; else a person has to find the cause."""
    return status.code in _VERBS or _REMEDY.search(status.message) is not None


def suggest_command(verb: str, tenants: Sequence[str], job: JobID) -> str:
    """Like `format_command`, but for every tenant if several need it.

    A tenant named `*` can only be handled in Dagster.
    """
    if list(tenants) == [ALL_TENANTS]:
        return "materialize its partition in Dagster, since `*` stands for all tenants here"
    return format_command(verb, ALL_TENANTS if len(tenants) > 1 else tenants[0], job)


def format_command(verb: str, tenant: str, job: JobID) -> str:
    """The shell command that does this to the job, as a message shows it."""
    return f"`iscp job {verb} {job} --tenant {quote(tenant)}`"
