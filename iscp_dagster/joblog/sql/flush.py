"""The flush of watermarks: a DELETE and an INSERT for all jobs that move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from iscp_dagster.joblog.sql.statements import COLUMNS, KEY, LIVE, key_columns
from iscp_dagster.joblog.sql.tables import ISCP_LOG
from iscp_dagster.model.batch import Phase, Range
from iscp_dagster.model.jobs import JobKey
from iscp_dagster.model.moment import START
from iscp_dagster.model.states import JobState
from sql_transactions.given import given

_FLUSHED = "iscp_flushed"
_SINCE = sa.column("since", sa.BigInteger)
_TO = sa.column("moved_to", sa.Text)
_TO_VERSION = sa.column("moved_to_version", sa.BigInteger)


def flush(connection: sa.Connection, moves: Sequence[tuple[JobKey, Range]]) -> int:
    """Move idle jobs in the caller's transaction; returns how many.

    A row that is unregistered meanwhile is neither deleted nor inserted: the DELETE requires
    `drop_at IS NULL`, and only what it deleted is inserted. Only watermark and `seq` change.
    """
    rows = [
        {
            **key_columns(key),
            "since": range_.from_.version,
            "moved_to": str(range_.to),
            "moved_to_version": range_.to.version,
        }
        for key, range_ in moves
    ]
    moving = given(connection.dialect, [*KEY, _SINCE, _TO, _TO_VERSION], rows)
    idle = sa.and_(
        *(column == moving.c[column.key] for column in KEY),
        COLUMNS.watermark_version == moving.c.since,
        COLUMNS.watermark_version > START.version,
        LIVE,
        # Plus 0, or SQLite goes through all completed jobs, and through the moves for each.
        COLUMNS.job_state + 0 == int(JobState.COMPLETED),
        COLUMNS.batch_phase.is_distinct_from(Phase.BEFORE.value),
    )
    found = (*COLUMNS, moving.c.moved_to, moving.c.moved_to_version)
    if connection.dialect.name == "sqlite":
        return _through_a_table(connection, sa.select(*found).where(idle))
    gone = sa.delete(ISCP_LOG).where(idle).returning(*found).cte("gone")
    return len(connection.execute(_inserted(gone)).all())


def _through_a_table(connection: sa.Connection, idle: sa.Select[Any]) -> int:
    """SQLite cannot change data in a WITH; its transaction has the file to itself."""
    columns = [sa.Column(each.key, each.type) for each in (*COLUMNS, _TO, _TO_VERSION)]
    held = sa.Table(_FLUSHED, sa.MetaData(), *columns, prefixes=["TEMPORARY"])
    held.create(connection, checkfirst=False)
    connection.execute(held.insert().from_select([each.key for each in columns], idle))
    keys = sa.select(*(held.c[column.key] for column in KEY))
    connection.execute(sa.delete(ISCP_LOG).where(sa.tuple_(*KEY).in_(keys), LIVE))
    moved = len(connection.execute(_inserted(held)).all())
    held.drop(connection, checkfirst=False)
    return moved


def _inserted(rows: sa.FromClause) -> sa.Executable:
    changed: dict[str, sa.ColumnElement[Any]] = {
        "watermark": rows.c.moved_to,
        "watermark_version": rows.c.moved_to_version,
        "seq": rows.c.seq + 1,
    }
    names = [column.key for column in COLUMNS]
    moved = sa.select(*(changed.get(name, rows.c[name]) for name in names))
    # No driver gives a row count for an INSERT that follows a WITH.
    return sa.insert(ISCP_LOG).from_select(names, moved).returning(COLUMNS.job_id)
