"""How a person names jobs: `database.table/job`, of one tenant or of all."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from shlex import quote

from iscp_dagster.model import errors
from iscp_dagster.model.jobs import JobID, JobStatus

EVERY = "*"
"""The tenant that stands for every tenant, also those that appear later."""
MOST, LONGEST = 10, 60
"""The most names that a message lists, and the most characters of one."""
PLAIN = re.compile(rf"[^\W_][\w.:@/%+-]{{0,{LONGEST - 1}}}")
"""Names that need no quotes among others."""
_VERBS = {errors.TableGoneError.code: "register", errors.UntimedError.code: "rebuild"}
"""What mends a job in error, by its code; others are repaired."""
_TOLD = re.compile(r"`iscp job (register|repair|rebuild)\b([^`]*)`")


def parsed(text: str, what: str = "job") -> JobID:
    """Read the name of a job or an index, as `str` writes it. Raises ConfigError."""
    place, slash, job = text.partition("/")
    db, dot, table = place.partition(".")
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


def job_of(job: JobID | str) -> JobID:
    """The job, given as a JobID or as the command line names it. Raises ConfigError."""
    return job if isinstance(job, JobID) else parsed(str(job))


def listed(names: Iterable[str], like: str | None = None) -> str:
    """The first ten names, those like `like` before the others, and how many more there are."""
    every = sorted(names)
    if like is not None and len(every) > MOST:
        near = get_close_matches(like, every, n=MOST)
        every = near + [each for each in every if each not in near]
    more = f" and {len(every) - MOST:,} more" if len(every) > MOST else ""
    return f"{', '.join(map(_quote_odd, every[:MOST])) or 'none'}{more}"


def _quote_odd(name: str) -> str:
    """Return the name; quoted, escaped and shortened where it would not be seen as one."""
    if PLAIN.fullmatch(name):
        return name
    return repr(name if len(name) <= LONGEST else f"{name[:LONGEST]}...")


def no_such(what: str, name: str, known: Collection[str], where: str = "") -> errors.NoSuchJobError:
    """The error for an unknown `what`, such as a table; lists the known ones (in `where`)."""
    there = f"there are in {where}" if where else "there are"
    return errors.NoSuchJobError(f"There is no {what} {name!r}; {there}: {listed(known, name)}.")


def narrowed(tenant: str | None) -> str | None:
    """The tenant to select; None for all of them."""
    return None if tenant == EVERY else tenant


def whose(tenant: str) -> str:
    """The tenant, for a negative sentence: `any tenant` for `*`."""
    return "any tenant" if tenant == EVERY else f"tenant {tenant!r}"


def titled(name: str, tenant: str) -> str:
    """A tenant's job or index, by its whole name, as the head of a line of output."""
    return f"{name}, {'every tenant' if tenant == EVERY else f'tenant {tenant}'}"


@contextmanager
def about(job: JobID) -> Iterator[None]:
    """Put the job's name before what a ConfigError says, unless it is there already."""
    head = f"Job {job}: "
    try:
        yield
    except (errors.ConfigError, errors.KeyColumnError) as error:
        raise errors.ConfigError(head + str(error).removeprefix(head)) from error


def mending_verb(status: JobStatus) -> str:
    """The verb that mends a job in error; empty if its message has the whole command already."""
    told = _TOLD.search(status.message)
    if told is None:
        return _VERBS.get(status.code, "repair")
    return "" if told[2] else told[1]


def has_remedy(status: JobStatus) -> bool:
    """Whether the message, or the code itself, says what is to be done."""
    return status.code in _VERBS or _TOLD.search(status.message) is not None


def command_for(verb: str, tenants: Sequence[str], job: JobID) -> str:
    """Like `command`, but for every tenant if several need it.

    A tenant named `*` can only be handled in Dagster.
    """
    if list(tenants) == [EVERY]:
        return "materialize its partition in Dagster, since `*` stands for all tenants here"
    return command(verb, EVERY if len(tenants) > 1 else tenants[0], job)


def command(verb: str, tenant: str, job: JobID) -> str:
    """The shell command that does this to the job, as a message shows it."""
    return f"`iscp job {verb} {job} --tenant {quote(tenant)}`"
