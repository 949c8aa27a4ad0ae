"""SQL statements that several methods of the log share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from iscp_dagster.joblog.groups import GroupChange, JobGroup, make_single_group
from iscp_dagster.joblog.history import HistoryEntry
from iscp_dagster.joblog.sql.rows import (
    find_changed_fields,
    group_jobs,
    make_group_entry_rows,
    make_group_rows,
    read_jobs,
    select_jobs,
    to_entry_row,
    to_row,
)
from iscp_dagster.joblog.sql.tables import ISCP_LOG, ISCP_LOG_EVENTS
from iscp_dagster.model.errors import FenceError
from iscp_dagster.model.jobs import Job, JobID, JobKey
from iscp_dagster.model.portions import split_into_portions
from iscp_dagster.model.states import ACTIVE
from sql_transactions.row_values import build_rows_table, make_insert

EntryOf = Callable[[Job | None, Job], HistoryEntry | None]
"""Makes the history entry for the change from one row to another."""

KEYS_PER_STATEMENT = 5_000
"""Three parameters each; SQLite takes 32,766 per statement."""

COLUMNS = ISCP_LOG.c
KEY = (COLUMNS.tenant, COLUMNS.table_id, COLUMNS.job_name)
_KEYS = frozenset(KEY)
_AT = sa.column("at_registration", sa.BigInteger)
_AT_SEQ = sa.column("at_seq", sa.BigInteger)
LIVE = COLUMNS.drop_at.is_(None)
IS_ACTIVE = COLUMNS.job_state.in_([int(state) for state in ACTIVE])


def insert_unless_live(
    connection: sa.Connection, jobs: Sequence[Job], *, revive: bool
) -> Iterator[JobKey]:
    """Insert the jobs' rows, or with `revive` replace dropped ones; yields the keys of new rows."""
    for portion in split_for_statements(jobs):
        rows = [to_row(job) for job in portion]
        values = build_rows_table(connection.dialect, list(COLUMNS), rows)
        # SQLite accepts `ON CONFLICT` after a SELECT only behind a WHERE.
        query = sa.select(*values.c).where(sa.true())
        insert = make_insert(connection.dialect, ISCP_LOG).from_select(list(COLUMNS), query)
        for row in connection.execute(_resolve_conflicts(insert, revive=revive).returning(*KEY)):
            yield JobKey(tenant=row.tenant, table_id=row.table_id, job_name=row.job_name)


def _resolve_conflicts(
    insert: sqlite.Insert | postgresql.Insert, *, revive: bool
) -> sqlite.Insert | postgresql.Insert:
    """Keep rows that exist, or with `revive` only live ones."""
    if not revive:
        return insert.on_conflict_do_nothing()
    names = {column.key for column in COLUMNS} - {column.key for column in KEY}
    assignments: dict[str, Any] = {name: insert.excluded[name] for name in names}
    assignments["seq"] = COLUMNS.seq + 1
    return insert.on_conflict_do_update(index_elements=list(KEY), set_=assignments, where=~LIVE)


def lock_groups(
    connection: sa.Connection, keys: Sequence[JobKey], *, by_status: bool = True
) -> list[JobGroup]:
    """The rows of these jobs in groups, dropped ones included, locked as by `lock`."""
    return group_jobs(_lock_keys(connection, keys), by_status=by_status)


def lock_jobs(connection: sa.Connection, keys: Sequence[JobKey]) -> dict[JobKey, Job]:
    """The rows of these jobs, dropped ones included, locked as by `lock`."""
    return {job.key: job for job in read_jobs(_lock_keys(connection, keys))}


def _lock_keys(connection: sa.Connection, keys: Sequence[JobKey]) -> list[sa.Row[Any]]:
    rows: list[sa.Row[Any]] = []
    for portion in split_for_statements(sorted(keys)):
        where = (is_one_of(connection.dialect, portion),)
        locked = _select_for_update(connection, where)
        rows += locked if len(locked) == len(portion) else _lock_rows(connection, where)
    return rows


def lock(connection: sa.Connection, where: Sequence[sa.ColumnElement[bool]]) -> dict[JobKey, Job]:
    """The rows, locked until the transaction ends; SQLite has locked the whole file already."""
    return {job.key: job for job in read_jobs(_lock_rows(connection, where))}


def _lock_rows(
    connection: sa.Connection, where: Sequence[sa.ColumnElement[bool]]
) -> Sequence[sa.Row[Any]]:
    """Queries PostgreSQL until two results agree: a query that waited for a flush's DELETE does not
    see the rows that the flush inserted instead.
    """
    rows = _select_for_update(connection, where)
    while connection.dialect.name == "postgresql":
        current = _select_for_update(connection, where)
        if list(map(_get_key, current)) == list(map(_get_key, rows)):
            return current
        rows = current
    return rows


def _select_for_update(
    connection: sa.Connection, where: Sequence[sa.ColumnElement[bool]]
) -> Sequence[sa.Row[Any]]:
    return connection.execute(select_jobs().where(*where).order_by(*KEY).with_for_update()).all()


def _get_key(row: sa.Row[Any]) -> tuple[str, str, str]:
    return row.tenant, row.table_id, row.job_name


def lock_names(connection: sa.Connection, names: Iterable[JobID]) -> None:
    """Let one transaction at a time decide an index's consumer; SQLite has one writer anyway."""
    if connection.dialect.name == "postgresql":
        for name in sorted(set(names)):
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_compute_lock_number(name))))


def _compute_lock_number(name: JobID) -> int:
    digest = hashlib.blake2b(repr(name).encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


def find_latest_job(
    connection: sa.Connection, name: JobID, *, except_tenant: str | None = None
) -> list[Job]:
    """A live job of that name, else the last dropped one; `except_tenant` is left out."""
    where = () if except_tenant is None else (COLUMNS.tenant != except_tenant,)
    query = select_jobs().where(*match_name(None, name), *where)
    order = (LIVE.desc(), COLUMNS.drop_at.desc())
    return list(read_jobs(connection.execute(query.order_by(*order).limit(1))))


def write_back(
    connection: sa.Connection,
    before: Mapping[JobKey, Job],
    changes: Sequence[Job],
    *,
    entry_of: EntryOf,
) -> None:
    """Write the changed jobs back, as `write_groups` does."""
    write_groups(
        connection,
        [
            GroupChange(group=make_single_group(before[job.key]), after=job)
            for job in changes
            if job != before[job.key]
        ],
        entry_of=entry_of,
    )


def write_groups(
    connection: sa.Connection, changes: Sequence[GroupChange], *, entry_of: EntryOf
) -> None:
    """Compare-and-set each row by registration and `seq`; FenceError, and no change, if one moved.

    The history entries are written in the same transaction.
    """
    fields = find_changed_fields((change.group.first, change.after) for change in changes)
    rows = [row for change in changes for row in _make_guarded_rows(change, fields)]
    for portion in split_for_statements(rows):
        columns = [column for column in COLUMNS if column.key in portion[0] and column not in _KEYS]
        values = build_rows_table(connection.dialect, [*KEY, *columns, _AT, _AT_SEQ], portion)
        assignments = {column.key: values.c[column.key] for column in columns}
        same_key = (column == values.c[column.key] for column in KEY)
        unchanged = (COLUMNS.job_id == values.c[_AT.name], COLUMNS.seq == values.c[_AT_SEQ.name])
        result = connection.execute(
            sa.update(ISCP_LOG).values(assignments).where(*same_key, *unchanged)
        )
        if result.rowcount != len(portion):
            names = ", ".join(str(_make_key(row)) for row in portion)
            raise FenceError(f"Another writer changed a row of: {names}; plan again.")
    entries = ((change, entry_of(change.group.first, change.after)) for change in changes)
    _insert_entries(
        connection,
        [row for change, entry in entries if entry for row in make_group_entry_rows(change, entry)],
    )


def _make_guarded_rows(change: GroupChange, fields: Collection[str]) -> Iterator[dict[str, Any]]:
    """The fields of the members' rows to write, and what each row must still be."""
    key = to_key_columns(change.after.key)
    rows = make_group_rows(change, fields)
    for member, row in zip(change.group.members, rows, strict=True):
        yield {**key, **row, _AT.name: member.registration, _AT_SEQ.name: member.seq}


def add_entries(connection: sa.Connection, entries: Iterable[HistoryEntry | None]) -> None:
    """Add the entries to the history, in order."""
    _insert_entries(connection, [to_entry_row(entry) for entry in entries if entry is not None])


def _insert_entries(connection: sa.Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    for portion in split_for_statements(rows):
        columns = [ISCP_LOG_EVENTS.c[name] for name in portion[0]]
        query = sa.select(build_rows_table(connection.dialect, columns, portion))
        connection.execute(sa.insert(ISCP_LOG_EVENTS).from_select(list(portion[0]), query))


def _make_key(row: Mapping[str, str]) -> JobKey:
    """The key that `to_key_columns` gives."""
    return JobKey(tenant=row["tenant"], table_id=row["table_id"], job_name=row["job_name"])


def is_one_of(dialect: sa.Dialect, keys: Iterable[JobKey]) -> sa.ColumnElement[bool]:
    """Whether a row belongs to one of the jobs."""
    return sa.tuple_(*KEY).in_(sa.select(build_rows_table(dialect, KEY, map(to_key_columns, keys))))


def to_key_columns(key: JobKey) -> dict[str, str]:
    """The columns of `KEY`."""
    return {"tenant": key.tenant, "table_id": key.table_id, "job_name": key.job_name}


def match_name(tenant: str | None, name: JobID) -> tuple[sa.ColumnElement[bool], ...]:
    """Whether a row has that job name, on any table that ever had that name; None: any tenant."""
    return (
        COLUMNS.db_name == name.db,
        COLUMNS.table_name == name.table,
        COLUMNS.job_name == name.job,
        *match_value(COLUMNS.tenant, tenant),
    )


def match_value(column: sa.ColumnElement[Any], value: Any) -> tuple[sa.ColumnElement[bool], ...]:
    """A condition on the column; no condition if `value` is None."""
    return () if value is None else (column == value,)


def split_for_statements(items: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield the items, as many at a time as a statement takes."""
    return split_into_portions(items, most=KEYS_PER_STATEMENT)
