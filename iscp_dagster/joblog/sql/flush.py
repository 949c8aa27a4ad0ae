"""The flush of watermarks: one DELETE and one INSERT for all jobs that move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from iscp_dagster.joblog.sql.statements import COLUMNS, KEY, LIVE, to_key_columns
from iscp_dagster.joblog.sql.tables import ISCP_LOG
from iscp_dagster.model.batch import Phase, Range
from iscp_dagster.model.jobs import JobKey
from iscp_dagster.model.moment import START
from iscp_dagster.model.states import JobState
from sql_transactions.row_values import build_rows_table

_FLUSHED = "iscp_flushed"
_SINCE = sa.column("since", sa.BigInteger)
_TO = sa.column("moved_to", sa.Text)
_TO_VERSION = sa.column("moved_to_version", sa.BigInteger)


def flush(connection: sa.Connection, moves: Sequence[tuple[JobKey, Range]]) -> int:
    """Move idle jobs in the caller's transaction; returns how many.

    A row that is unregistered meanwhile is neither deleted nor inserted: the DELETE requires
    `drop_at IS NULL`, and only deleted rows are inserted. Only watermark and `seq` change.
    """
    rows = [
        {
            **to_key_columns(key),
            "since": range_.from_.version,
            "moved_to": str(range_.to),
            "moved_to_version": range_.to.version,
        }
        for key, range_ in moves
    ]
    moving = build_rows_table(connection.dialect, [*KEY, _SINCE, _TO, _TO_VERSION], rows)
    idle = sa.and_(
        *(column == moving.c[column.key] for column in KEY),
        COLUMNS.watermark_version == moving.c.since,
        COLUMNS.watermark_version > START.version,
        LIVE,
        # Plus 0, or SQLite scans all completed jobs, and the moves for each.
        COLUMNS.job_state + 0 == int(JobState.COMPLETED),
        COLUMNS.batch_phase.is_distinct_from(Phase.BEFORE.value),
    )
    columns = (*COLUMNS, moving.c.moved_to, moving.c.moved_to_version)
    if connection.dialect.name == "sqlite":
        return _flush_on_sqlite(connection, sa.select(*columns).where(idle))
    deleted = sa.delete(ISCP_LOG).where(idle).returning(*columns).cte("gone")
    return len(connection.execute(_build_insert(deleted)).all())


def _flush_on_sqlite(connection: sa.Connection, idle: sa.Select[Any]) -> int:
    """SQLite cannot change data in a WITH clause; its transaction locks the whole file."""
    columns = [sa.Column(column.key, column.type) for column in (*COLUMNS, _TO, _TO_VERSION)]
    flushed = sa.Table(_FLUSHED, sa.MetaData(), *columns, prefixes=["TEMPORARY"])
    flushed.create(connection, checkfirst=False)
    connection.execute(flushed.insert().from_select([column.key for column in columns], idle))
    keys = sa.select(*(flushed.c[column.key] for column in KEY))
    connection.execute(sa.delete(ISCP_LOG).where(sa.tuple_(*KEY).in_(keys), LIVE))
    moved = len(connection.execute(_build_insert(flushed)).all())
    flushed.drop(connection, checkfirst=False)
    return moved


def _build_insert(rows: sa.FromClause) -> sa.Executable:
    assignments: dict[str, sa.ColumnElement[Any]] = {
        "watermark": rows.c.moved_to,
        "watermark_version": rows.c.moved_to_version,
        "seq": rows.c.seq + 1,
    }
    names = [column.key for column in COLUMNS]
    query = sa.select(*(assignments.get(name, rows.c[name]) for name in names))
    # No driver returns a row count for an INSERT after a WITH.
    return sa.insert(ISCP_LOG).from_select(names, query).returning(COLUMNS.job_id)
