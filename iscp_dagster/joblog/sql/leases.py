"""Statements on leases (joblog.leases); `now` is the database's time, except in tests."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import sqlalchemy as sa

from iscp_dagster.joblog.sql.statements import COLUMNS, IS_ACTIVE, LIVE, lock, split_for_statements
from iscp_dagster.joblog.sql.tables import ISCP_LEASES, Seconds
from iscp_dagster.model.jobs import Job
from sql_transactions.row_values import make_insert

LEASES = ISCP_LEASES.c
Now = sa.ColumnElement[float]
NOW: Now = Seconds()


def renew_leases(connection: sa.Connection, names: Iterable[str], seconds: float, now: Now) -> None:
    """Create or renew leases with these names, for `seconds` from now."""
    # Sorted, so that two callers cannot deadlock.
    rows = [{"name": name, "owner": ""} for name in sorted(set(names))]
    if rows:
        until = now + seconds
        insert = make_insert(connection.dialect, ISCP_LEASES).values(until=until)
        upsert = insert.on_conflict_do_update(index_elements=["name"], set_={"until": until})
        connection.execute(upsert, rows)


def take_leases(
    connection: sa.Connection, names: Iterable[str], owner: str, seconds: float, now: Now
) -> frozenset[str]:
    """Take or renew the leases for `owner`; returns the names that no other owner holds."""
    until = now + seconds
    free = sa.or_(LEASES.owner == owner, LEASES.until < now)
    taken: set[str] = set()
    # Sorted, so that two callers cannot deadlock.
    for portion in split_for_statements(sorted(set(names))):
        rows = [{"name": name, "owner": owner, "until": until} for name in portion]
        insert = make_insert(connection.dialect, ISCP_LEASES).values(rows)
        upsert = insert.on_conflict_do_update(
            index_elements=["name"], set_={"owner": owner, "until": until}, where=free
        )
        taken.update(connection.scalars(upsert.returning(LEASES.name)))
    return frozenset(taken)


def find_unleased_runs(connection: sa.Connection, now: Now) -> list[str]:
    """The runs and dispatches of active jobs whose lease has expired or is missing."""
    has_lease = sa.exists().where(LEASES.name == COLUMNS.run_id, LEASES.until >= now)
    query = sa.select(COLUMNS.run_id).distinct().where(LIVE, IS_ACTIVE, ~has_lease)
    return sorted(run for run in connection.scalars(query) if run is not None)


def lock_unleased_jobs(connection: sa.Connection, names: Collection[str], now: Now) -> list[Job]:
    """Lock the active jobs of these runs and dispatches that still have no valid lease."""
    rows = lock(connection, (COLUMNS.run_id.in_(names), IS_ACTIVE, LIVE))
    # Check again now that nobody can start them: a run that started meanwhile has a lease.
    query = sa.select(LEASES.name).where(LEASES.name.in_(names), LEASES.until >= now)
    leased = set(connection.scalars(query))
    return [job for job in rows.values() if job.run_id not in leased]


def read_lease_expiry(
    connection: sa.Connection, names: Collection[str], now: Now
) -> dict[str, bool]:
    """Whether the lease of each name has expired; a name without a lease has no entry."""
    expiry: dict[str, bool] = {}
    for portion in split_for_statements(sorted(set(names))):
        query = sa.select(LEASES.name, LEASES.until < now).where(LEASES.name.in_(portion))
        expiry |= {name: bool(expired) for name, expired in connection.execute(query)}
    return expiry


def delete_expired_leases(connection: sa.Connection, age: float, now: Now) -> int:
    """Delete leases that expired more than `age` seconds ago; returns how many."""
    return connection.execute(sa.delete(ISCP_LEASES).where(LEASES.until < now - age)).rowcount
