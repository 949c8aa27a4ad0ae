"""The flush of watermarks: a DELETE and an INSERT for each set of tenants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from iscp_dagster.joblog.sql.statements import COLUMNS, KEY, LIVE
from iscp_dagster.joblog.sql.tables import ISCP_LOG
from iscp_dagster.model.batch import Phase
from iscp_dagster.model.moment import START, Moment
from iscp_dagster.model.states import JobState

_FLUSHED = "iscp_flushed"


def flush(
    connection: sa.Connection, table_id: str, tenants: Sequence[str], since: Moment, to: Moment
) -> int:
    """Move the idle jobs of these tenants to `to`, in the caller's transaction; returns how many.

    A row that is unregistered meanwhile is neither deleted nor inserted: the DELETE requires
    `drop_at IS NULL`, and only what it deleted is inserted. Only watermark and `seq` change.
    """
    idle = sa.and_(
        COLUMNS.table_id == table_id,
        COLUMNS.account_id.in_(tenants),
        LIVE,
        COLUMNS.job_state == int(JobState.COMPLETED),
        COLUMNS.watermark_version >= max(since.version, START.version + 1),
        COLUMNS.watermark_version < to.version,
        COLUMNS.batch_phase.is_distinct_from(Phase.BEFORE.value),
    )
    if connection.dialect.name == "sqlite":
        return _through_a_table(connection, idle, to)
    gone = sa.delete(ISCP_LOG).where(idle).returning(*COLUMNS).cte("gone")
    return len(connection.execute(_inserted(_moved(gone, to))).all())


def _through_a_table(connection: sa.Connection, idle: sa.ColumnElement[bool], to: Moment) -> int:
    """SQLite cannot change data in a WITH; its transaction has the file to itself."""
    names = [column.name for column in COLUMNS]
    held = sa.Table(
        _FLUSHED,
        sa.MetaData(),
        *(sa.Column(column.name, column.type) for column in COLUMNS),
        prefixes=["TEMPORARY"],
    )
    held.create(connection, checkfirst=False)
    connection.execute(held.insert().from_select(names, sa.select(ISCP_LOG).where(idle)))
    keys = sa.select(*(held.c[column.name] for column in KEY))
    connection.execute(sa.delete(ISCP_LOG).where(sa.tuple_(*KEY).in_(keys), LIVE))
    moved = len(connection.execute(_inserted(_moved(held, to))).all())
    held.drop(connection, checkfirst=False)
    return moved


def _moved(rows: sa.FromClause, to: Moment) -> sa.Select[Any]:
    changed: dict[str, sa.ColumnElement[Any]] = {
        "watermark": sa.literal(str(to)),
        "watermark_version": sa.literal(to.version),
        "seq": rows.c.seq + 1,
    }
    return sa.select(*(changed.get(column.name, rows.c[column.name]) for column in COLUMNS))


def _inserted(rows: sa.Select[Any]) -> sa.Executable:
    names = [column.name for column in COLUMNS]
    # No driver gives a row count for an INSERT that follows a WITH.
    return sa.insert(ISCP_LOG).from_select(names, rows).returning(COLUMNS.job_id)
