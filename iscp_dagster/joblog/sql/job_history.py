"""Statements on the history of jobs."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

import sqlalchemy as sa

from iscp_dagster.joblog.history import ENDS, INTERRUPTIONS, Bookmark, HistoryEntry, Usage
from iscp_dagster.joblog.results import ChangedTenants
from iscp_dagster.joblog.sql.rows import from_entry_row
from iscp_dagster.joblog.sql.statements import match_value
from iscp_dagster.joblog.sql.tables import ISCP_LOG_EVENTS
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.states import Event, JobState

EVENTS = ISCP_LOG_EVENTS.c
BEGINNINGS = [Event.ENQUEUE.value, Event.START.value]
"""The events after which only the end of what began changes anything."""
_JOB = (EVENTS.tenant, EVENTS.db_name, EVENTS.table_name, EVENTS.job_name)


def read_history(
    connection: sa.Connection,
    tenant: str | None,
    name: JobID | None,
    since: datetime | None,
    most: int,
) -> list[HistoryEntry]:
    """The newest `most` entries that match, oldest first."""
    query = sa.select(ISCP_LOG_EVENTS).where(
        *match_value(EVENTS.tenant, tenant), *_match_since(since)
    )
    if name is not None:
        query = query.where(
            EVENTS.db_name == name.db, EVENTS.table_name == name.table, EVENTS.job_name == name.job
        )
    newest = query.order_by(EVENTS.number.desc()).limit(most)
    return [from_entry_row(row) for row in reversed(connection.execute(newest).all())]


def read_run_tenants(connection: sa.Connection, names: Collection[str]) -> list[str]:
    """The tenants of jobs whose iterations these runs started or ended."""
    query = sa.select(EVENTS.tenant).distinct().where(EVENTS.who.in_(names))
    return list(connection.scalars(query))


def read_changed_tenants(
    connection: sa.Connection, since: Bookmark | None, *, beginnings: bool
) -> ChangedTenants:
    """The (table id, tenant) of jobs with history entries since the bookmark.

    Without `beginnings`, leaves out that an iteration was queued or began.

    On PostgreSQL `position` is the oldest open transaction: entries of older transactions are
    visible, and those of later ones are at or after it, in whatever order they commit. On SQLite,
    which has one writer at a time, it is the number of an entry.
    """
    # Read the place first: entries written between the statements are read twice, not missed.
    upto = _read_bookmark(connection)
    if since is None:
        return ChangedTenants(upto=upto)
    ordered = EVENTS.transaction_id if _is_postgres(connection) else EVENTS.number
    query = sa.select(EVENTS.table_id, EVENTS.tenant).distinct()
    query = query.where(ordered >= since.position)
    if not beginnings:
        query = query.where(EVENTS.event.not_in(BEGINNINGS))
    tenants = frozenset(map(tuple, connection.execute(query)))
    complete = (
        since.position <= upto.position and _read_sign(connection, since.number) == since.sign
    )
    return ChangedTenants(upto=upto, tenants=tenants, complete=complete)


def _read_bookmark(connection: sa.Connection) -> Bookmark:
    oldest_open = None
    if _is_postgres(connection):
        oldest = sa.text("pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
        oldest_open = int(connection.execute(sa.select(oldest)).scalar_one())
    newest = connection.scalar(sa.select(sa.func.max(EVENTS.number))) or 0
    return Bookmark(
        newest + 1 if oldest_open is None else oldest_open, newest, _read_sign(connection, newest)
    )


def _read_sign(connection: sa.Connection, number: int) -> str:
    """The sign of the entry with that number; empty if there is none."""
    query = sa.select(EVENTS.at, EVENTS.job_id).where(EVENTS.number == number)
    entry = connection.execute(query).one_or_none()
    return "" if entry is None else Bookmark.compute_sign(entry.at, entry.job_id)


def _is_postgres(connection: sa.Connection) -> bool:
    return connection.dialect.name == "postgresql"


def read_usage(
    connection: sa.Connection, since: datetime | None, tenant: str | None, table: str | None
) -> list[Usage]:
    """What ended iterations used, by tenant and job; `table` is `database.table`, None for all."""
    completed = EVENTS.event == Event.COMPLETE.value
    cut = sa.and_(
        EVENTS.event.in_([event.value for event in INTERRUPTIONS]),
        EVENTS.from_state == int(JobState.RUNNING),
    )
    ended = EVENTS.event.in_([event.value for event in ENDS])
    query = (
        sa.select(
            *_JOB,
            sa.func.count().filter(completed).label("iterations"),
            sa.func.count().filter(ended, ~completed).label("failed"),
            sa.func.count().filter(cut).label("canceled"),
            *(
                sa.func.coalesce(sa.func.sum(column), 0).label(column.name)
                for column in (EVENTS.inserted, EVENTS.deleted, EVENTS.bytes, EVENTS.seconds)
            ),
        )
        .where(sa.or_(ended, cut), *_match_since(since), *match_value(EVENTS.tenant, tenant))
        .where(*match_value(EVENTS.db_name + "." + EVENTS.table_name, table))
        .group_by(*_JOB)
        .order_by(*_JOB)
    )
    return [
        Usage(
            tenant=row.tenant,
            name=JobID(db=row.db_name, table=row.table_name, job=row.job_name),
            iterations=row.iterations,
            failed=row.failed,
            canceled=row.canceled,
            inserted=int(row.inserted),
            deleted=int(row.deleted),
            bytes=int(row.bytes),
            seconds=float(row.seconds),
        )
        for row in connection.execute(query)
    ]


def prune(connection: sa.Connection, before: datetime) -> int:
    """Delete entries older than `before`, except the newest one; returns how many."""
    newest = sa.select(sa.func.max(EVENTS.number)).scalar_subquery()
    statement = sa.delete(ISCP_LOG_EVENTS).where(EVENTS.at < before, EVENTS.number < newest)
    return connection.execute(statement).rowcount


def _match_since(since: datetime | None) -> tuple[sa.ColumnElement[bool], ...]:
    return () if since is None else (EVENTS.at >= since,)
