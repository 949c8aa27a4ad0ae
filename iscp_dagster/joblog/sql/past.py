"""The statements over the history of jobs."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa

from iscp_dagster.joblog.history import CUTS, ENDS, Entry, Usage
from iscp_dagster.joblog.protocol import Touched
from iscp_dagster.joblog.sql.statements import equal
from iscp_dagster.joblog.sql.tables import ISCP_LOG_EVENTS, entry_from_row
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.states import Event, JobState

EVENTS = ISCP_LOG_EVENTS.c
_JOB = (EVENTS.account_id, EVENTS.db_name, EVENTS.table_name, EVENTS.job_name)


def history(
    connection: sa.Connection,
    account: str | None,
    name: JobID | None,
    since: datetime | None,
    most: int,
) -> list[Entry]:
    """The newest `most` entries of a job, oldest first."""
    chosen = sa.select(ISCP_LOG_EVENTS).where(*equal(EVENTS.account_id, account), *_since(since))
    if name is not None:
        chosen = chosen.where(
            EVENTS.db_name == name.db, EVENTS.table_name == name.table, EVENTS.job_name == name.job
        )
    newest = chosen.order_by(EVENTS.number.desc()).limit(most)
    return [entry_from_row(row) for row in reversed(connection.execute(newest).all())]


def touched(connection: sa.Connection, since: int | None) -> Touched:
    """The (table id, tenant) of jobs that something happened to at or after that place.

    On PostgreSQL a place is the oldest transaction that is under way: whatever an older one wrote
    is there to be read, whatever a later one writes comes at or after it, in whatever order they
    commit. On SQLite, where one writes at a time, it is a number of the history.
    """
    ordered = EVENTS.number
    place = sa.select(sa.func.coalesce(sa.func.max(EVENTS.number), 0) + 1)
    if connection.dialect.name == "postgresql":
        ordered = EVENTS.transaction_id
        place = sa.select(sa.text("pg_snapshot_xmin(pg_current_snapshot())::text::bigint"))
    # First the place, so that what comes between the two statements is read twice, not never.
    here = int(connection.execute(place).scalar_one())
    if since is None:
        return Touched(place=here)
    chosen = sa.select(EVENTS.table_id, EVENTS.account_id).distinct().where(ordered >= since)
    return Touched(place=here, tenants=frozenset(map(tuple, connection.execute(chosen))))


def usage(connection: sa.Connection, since: datetime | None) -> list[Usage]:
    """What the iterations that ended used, by tenant and job."""
    completed = EVENTS.event == Event.COMPLETE.value
    cut = sa.and_(
        EVENTS.event.in_([event.value for event in CUTS]),
        EVENTS.from_state == int(JobState.RUNNING),
    )
    ended = EVENTS.event.in_([event.value for event in ENDS])
    summed = (
        sa.select(
            *_JOB,
            sa.func.count().filter(completed).label("iterations"),
            sa.func.count().filter(ended, ~completed).label("failures"),
            sa.func.count().filter(cut).label("canceled"),
            *(
                sa.func.coalesce(sa.func.sum(column), 0).label(column.name)
                for column in (EVENTS.inserted, EVENTS.deleted, EVENTS.bytes, EVENTS.seconds)
            ),
        )
        .where(sa.or_(ended, cut), *_since(since))
        .group_by(*_JOB)
        .order_by(*_JOB)
    )
    return [
        Usage(
            account=row.account_id,
            name=JobID(db=row.db_name, table=row.table_name, job=row.job_name),
            iterations=row.iterations,
            failures=row.failures,
            canceled=row.canceled,
            inserted=int(row.inserted),
            deleted=int(row.deleted),
            bytes=int(row.bytes),
            seconds=float(row.seconds),
        )
        for row in connection.execute(summed)
    ]


def prune(connection: sa.Connection, before: datetime) -> int:
    """Delete entries from before that time."""
    return connection.execute(sa.delete(ISCP_LOG_EVENTS).where(EVENTS.at < before)).rowcount


def _since(since: datetime | None) -> tuple[sa.ColumnElement[bool], ...]:
    return () if since is None else (EVENTS.at >= since,)
