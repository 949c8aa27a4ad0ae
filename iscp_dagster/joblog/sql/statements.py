"""The statements of the SQL log that more than one method needs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from iscp_dagster.joblog.history import Entry
from iscp_dagster.joblog.sql.tables import ISCP_LOG, ISCP_LOG_EVENTS, entry_to_row, from_row, to_row
from iscp_dagster.model.errors import FenceError
from iscp_dagster.model.jobs import Job, JobID, JobKey
from iscp_dagster.model.portions import split_into_portions
from iscp_dagster.model.states import ACTIVE
from sql_transactions.given import given, insert_into

EntryOf = Callable[[Job | None, Job], Entry | None]
"""Gives the history's entry for the change from one row to another."""

KEYS_PER_STATEMENT = 5_000
"""Three parameters each; SQLite takes 32,766 per statement."""

COLUMNS = ISCP_LOG.c
KEY = (COLUMNS.tenant, COLUMNS.table_id, COLUMNS.job_name)
_KEYS = frozenset(KEY)
_AT = sa.column("at_registration", sa.BigInteger)
_AT_SEQ = sa.column("at_seq", sa.BigInteger)
LIVE = COLUMNS.drop_at.is_(None)
IS_ACTIVE = COLUMNS.job_state.in_([int(state) for state in ACTIVE])


def insert_unless_live(dialect: sa.Dialect, *, revive: bool) -> sa.Executable:
    """Insert rows, or with `revive` replace dropped ones; returns the keys of the new rows."""
    insert = insert_into(dialect, ISCP_LOG)
    if not revive:
        return insert.on_conflict_do_nothing().returning(*KEY)
    names = {column.key for column in COLUMNS} - {column.key for column in KEY}
    replaced: dict[str, Any] = {name: insert.excluded[name] for name in names}
    replaced["seq"] = COLUMNS.seq + 1
    return insert.on_conflict_do_update(
        index_elements=list(KEY), set_=replaced, where=~LIVE
    ).returning(*KEY)


def locked(connection: sa.Connection, keys: Sequence[JobKey]) -> dict[JobKey, Job]:
    """The rows of these jobs, dropped ones included, locked as by `lock`."""
    rows: dict[JobKey, Job] = {}
    for some in portions(sorted(keys)):
        chosen = (is_one_of(connection.dialect, some),)
        found = _locked_now(connection, chosen)
        rows |= found if len(found) == len(some) else lock(connection, chosen)
    return rows


def lock(connection: sa.Connection, where: Sequence[sa.ColumnElement[bool]]) -> dict[JobKey, Job]:
    """The rows, locked until the transaction ends; on SQLite the whole file already is.

    PostgreSQL is asked until two answers agree: a query that waited for a flush's DELETE does not
    see the rows that the flush inserted instead.
    """
    found = _locked_now(connection, where)
    while connection.dialect.name == "postgresql":
        again = _locked_now(connection, where)
        if again.keys() == found.keys():
            return again
        found = again
    return found


def _locked_now(
    connection: sa.Connection, where: Sequence[sa.ColumnElement[bool]]
) -> dict[JobKey, Job]:
    chosen = sa.select(ISCP_LOG).where(*where).order_by(*KEY).with_for_update()
    found = [from_row(row) for row in connection.execute(chosen)]
    return {job.key: job for job in found}


def take_turns(connection: sa.Connection, names: Iterable[JobID]) -> None:
    """Let one transaction at a time decide an index's consumer; SQLite has one writer anyway."""
    if connection.dialect.name == "postgresql":
        for name in sorted(set(names)):
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_number(name))))


def _number(name: JobID) -> int:
    hashed = hashlib.blake2b(repr(name).encode(), digest_size=8).digest()
    return int.from_bytes(hashed, signed=True)


def latest(connection: sa.Connection, name: JobID, *, but: str | None = None) -> list[Job]:
    """One live job of that name, else the one that was dropped last; none of tenant `but`."""
    others = () if but is None else (COLUMNS.tenant != but,)
    chosen = sa.select(ISCP_LOG).where(*named(None, name), *others)
    order = (LIVE.desc(), COLUMNS.drop_at.desc())
    return [from_row(row) for row in connection.execute(chosen.order_by(*order).limit(1))]


def write_back(
    connection: sa.Connection,
    before: Mapping[JobKey, Job],
    changes: Sequence[Job],
    *,
    entry_of: EntryOf,
) -> None:
    """Compare-and-set each row by registration and `seq`; FenceError, and no change, if one moved.

    The history's entries are written in the same transaction.
    """
    jobs = [job for job in changes if job != before[job.key]]
    for some in portions(jobs):
        new = given(
            connection.dialect, [*COLUMNS, _AT, _AT_SEQ], [_row(before, job) for job in some]
        )
        changed = {column.key: new.c[column.key] for column in COLUMNS if column not in _KEYS}
        same = (column == new.c[column.key] for column in KEY)
        seen = (COLUMNS.job_id == new.c[_AT.name], COLUMNS.seq == new.c[_AT_SEQ.name])
        done = connection.execute(sa.update(ISCP_LOG).values(changed).where(*same, *seen))
        if done.rowcount != len(some):
            names = ", ".join(str(job.key) for job in some)
            raise FenceError(f"Another writer changed a row of: {names}; plan again.")
    remember(connection, [entry_of(before[job.key], job) for job in jobs])


def remember(connection: sa.Connection, entries: Iterable[Entry | None]) -> None:
    """Add the entries to the history, in their order."""
    rows = [entry_to_row(each) for each in entries if each is not None]
    for some in portions(rows):
        columns = [ISCP_LOG_EVENTS.c[name] for name in some[0]]
        new = sa.select(given(connection.dialect, columns, some))
        connection.execute(sa.insert(ISCP_LOG_EVENTS).from_select(list(some[0]), new))


def _row(before: Mapping[JobKey, Job], job: Job) -> dict[str, Any]:
    seen = before[job.key]
    return {**to_row(job), _AT.name: seen.registration, _AT_SEQ.name: seen.seq}


def is_one_of(dialect: sa.Dialect, keys: Iterable[JobKey]) -> sa.ColumnElement[bool]:
    """Whether a row belongs to one of the jobs."""
    return sa.tuple_(*KEY).in_(sa.select(given(dialect, KEY, map(key_columns, keys))))


def key_columns(key: JobKey) -> dict[str, str]:
    """The columns of `KEY`."""
    return {"tenant": key.tenant, "table_id": key.table_id, "job_name": key.job_name}


def named(tenant: str | None, name: JobID) -> tuple[sa.ColumnElement[bool], ...]:
    """Whether a row has that job name, on any table that had its name; None: any tenant."""
    return (
        COLUMNS.db_name == name.db,
        COLUMNS.table_name == name.table,
        COLUMNS.job_name == name.job,
        *equal(COLUMNS.tenant, tenant),
    )


def equal(column: sa.ColumnElement[Any], value: Any) -> tuple[sa.ColumnElement[bool], ...]:
    """A condition on the column, or none if `value` is None."""
    return () if value is None else (column == value,)


def portions(items: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield the items, as many at a time as a statement takes."""
    return split_into_portions(items, most=KEYS_PER_STATEMENT)
