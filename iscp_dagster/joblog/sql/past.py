"""The statements on the history of jobs."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

import sqlalchemy as sa

from iscp_dagster.joblog.history import CUTS, ENDS, Bookmark, Entry, Usage
from iscp_dagster.joblog.protocol import Touched
from iscp_dagster.joblog.sql.statements import equal
from iscp_dagster.joblog.sql.tables import ISCP_LOG_EVENTS, entry_from_row
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.states import Event, JobState

EVENTS = ISCP_LOG_EVENTS.c
_JOB = (EVENTS.tenant, EVENTS.db_name, EVENTS.table_name, EVENTS.job_name)


def history(
    connection: sa.Connection,
    tenant: str | None,
    name: JobID | None,
    since: datetime | None,
    most: int,
) -> list[Entry]:
    """The newest `most` entries that match, oldest first."""
    chosen = sa.select(ISCP_LOG_EVENTS).where(*equal(EVENTS.tenant, tenant), *_since(since))
    if name is not None:
        chosen = chosen.where(
            EVENTS.db_name == name.db, EVENTS.table_name == name.table, EVENTS.job_name == name.job
        )
    newest = chosen.order_by(EVENTS.number.desc()).limit(most)
    return [entry_from_row(row) for row in reversed(connection.execute(newest).all())]


def tenants_of_runs(connection: sa.Connection, names: Collection[str]) -> list[str]:
    """The tenants of the jobs whose iterations these runs began or ended."""
    chosen = sa.select(EVENTS.tenant).distinct().where(EVENTS.who.in_(names))
    return list(connection.scalars(chosen))


def touched(connection: sa.Connection, since: Bookmark | None) -> Touched:
    """The (table id, tenant) of jobs that something happened to since the bookmark.

    On PostgreSQL a place is the oldest open transaction: entries of older ones are visible, and
    those of later ones are at or after it, in whatever order they commit. On SQLite, which
    has one writer at a time, it is the number of an entry.
    """
    # The place first, so that entries written between the statements are read twice, not missed.
    upto = _bookmark(connection)
    if since is None:
        return Touched(upto=upto)
    ordered = EVENTS.transaction_id if _is_postgres(connection) else EVENTS.number
    chosen = sa.select(EVENTS.table_id, EVENTS.tenant).distinct().where(ordered >= since.place)
    tenants = frozenset(map(tuple, connection.execute(chosen)))
    whole = since.place <= upto.place and _sign(connection, since.number) == since.sign
    return Touched(upto=upto, tenants=tenants, whole=whole)


def _bookmark(connection: sa.Connection) -> Bookmark:
    place = None
    if _is_postgres(connection):
        oldest = sa.text("pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
        place = int(connection.execute(sa.select(oldest)).scalar_one())
    newest = connection.scalar(sa.select(sa.func.max(EVENTS.number))) or 0
    return Bookmark(newest + 1 if place is None else place, newest, _sign(connection, newest))


def _sign(connection: sa.Connection, number: int) -> str:
    """The sign of the entry with that number; empty if there is none."""
    chosen = sa.select(EVENTS.at, EVENTS.job_id).where(EVENTS.number == number)
    found = connection.execute(chosen).one_or_none()
    return "" if found is None else Bookmark.sign_of(found.at, found.job_id)


def _is_postgres(connection: sa.Connection) -> bool:
    return connection.dialect.name == "postgresql"


def usage(
    connection: sa.Connection, since: datetime | None, tenant: str | None, table: str | None
) -> list[Usage]:
    """What the ended iterations used, by tenant and job; only of `database.table`, if given."""
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
            sa.func.count().filter(ended, ~completed).label("failed"),
            sa.func.count().filter(cut).label("canceled"),
            *(
                sa.func.coalesce(sa.func.sum(column), 0).label(column.name)
                for column in (EVENTS.inserted, EVENTS.deleted, EVENTS.bytes, EVENTS.seconds)
            ),
        )
        .where(sa.or_(ended, cut), *_since(since), *equal(EVENTS.tenant, tenant))
        .where(*equal(EVENTS.db_name + "." + EVENTS.table_name, table))
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
        for row in connection.execute(summed)
    ]


def prune(connection: sa.Connection, before: datetime) -> int:
    """Delete entries from before that time, except the newest of all; returns how many."""
    newest = sa.select(sa.func.max(EVENTS.number)).scalar_subquery()
    old = sa.delete(ISCP_LOG_EVENTS).where(EVENTS.at < before, EVENTS.number < newest)
    return connection.execute(old).rowcount


def _since(since: datetime | None) -> tuple[sa.ColumnElement[bool], ...]:
    return () if since is None else (EVENTS.at >= since,)
