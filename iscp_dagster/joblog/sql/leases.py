"""The statements on leases (joblog.leases); `now` is the database's time, except in tests."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import sqlalchemy as sa

from iscp_dagster.joblog.sql.statements import COLUMNS, IS_ACTIVE, LIVE, lock, portions
from iscp_dagster.joblog.sql.tables import ISCP_LEASES, Seconds
from iscp_dagster.model.jobs import Job
from sql_transactions.given import insert_into

LEASES = ISCP_LEASES.c
Now = sa.ColumnElement[float]
NOW: Now = Seconds()


def keep(connection: sa.Connection, names: Iterable[str], seconds: float, now: Now) -> None:
    """Make or renew the leases of these names, for `seconds` from now."""
    # In order, so that two callers never wait for each other.
    rows = [{"name": name, "owner": ""} for name in sorted(set(names))]
    if rows:
        until = now + seconds
        insert = insert_into(connection.dialect, ISCP_LEASES).values(until=until)
        again = insert.on_conflict_do_update(index_elements=["name"], set_={"until": until})
        connection.execute(again, rows)


def take(
    connection: sa.Connection, names: Iterable[str], owner: str, seconds: float, now: Now
) -> frozenset[str]:
    """Take or renew the leases for `owner`; returns those that no other owner holds."""
    until = now + seconds
    free = sa.or_(LEASES.owner == owner, LEASES.until < now)
    taken: set[str] = set()
    # In order, so that two callers never wait for each other.
    for some in portions(sorted(set(names))):
        rows = [{"name": name, "owner": owner, "until": until} for name in some]
        insert = insert_into(connection.dialect, ISCP_LEASES).values(rows)
        mine = insert.on_conflict_do_update(
            index_elements=["name"], set_={"owner": owner, "until": until}, where=free
        )
        taken.update(connection.scalars(mine.returning(LEASES.name)))
    return frozenset(taken)


def unheld(connection: sa.Connection, now: Now) -> list[str]:
    """The runs and dispatches of active jobs whose lease has run out, or that have none."""
    held = sa.exists().where(LEASES.name == COLUMNS.run_id, LEASES.until >= now)
    chosen = sa.select(COLUMNS.run_id).distinct().where(LIVE, IS_ACTIVE, ~held)
    return sorted(run for run in connection.scalars(chosen) if run is not None)


def left_behind(connection: sa.Connection, names: Collection[str], now: Now) -> list[Job]:
    """The active jobs of these runs and dispatches, locked, that still have no valid lease."""
    rows = lock(connection, (COLUMNS.run_id.in_(names), IS_ACTIVE, LIVE))
    # Ask again now that nobody can begin them: a run that began meanwhile has a lease.
    kept = sa.select(LEASES.name).where(LEASES.name.in_(names), LEASES.until >= now)
    alive = set(connection.scalars(kept))
    return [job for job in rows.values() if job.run_id not in alive]


def lapsed(connection: sa.Connection, names: Collection[str], now: Now) -> dict[str, bool]:
    """Whether the lease of each name has run out; no entry for a name without one."""
    found: dict[str, bool] = {}
    for some in portions(sorted(set(names))):
        chosen = sa.select(LEASES.name, LEASES.until < now).where(LEASES.name.in_(some))
        found |= {name: bool(over) for name, over in connection.execute(chosen)}
    return found


def forget(connection: sa.Connection, older: float, now: Now) -> int:
    """Delete leases that ran out more than `older` seconds ago; returns how many."""
    return connection.execute(sa.delete(ISCP_LEASES).where(LEASES.until < now - older)).rowcount
