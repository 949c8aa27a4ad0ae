"""Handles what is due: sleeps, delayed invocations, retries."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from durable_invocations.protocol.results import EMPTY
from durable_invocations.runtime.sql.lifecycle import inbox
from durable_invocations.runtime.sql.lifecycle.completing import complete
from durable_invocations.runtime.sql.tables import (
    INVOCATIONS,
    INVOCATIONS_TABLE,
    TIMERS,
    TIMERS_TABLE,
    Role,
)
from durable_invocations.runtime.sql.transaction import UnitOfWork
from durable_invocations.runtime.store.operations import Fire
from durable_invocations.runtime.store.outcomes import Fired
from durable_invocations.runtime.store.views import Status

_SLEEPS = (
    sa.select(TIMERS.invocation, TIMERS.idx)
    .where(TIMERS.at <= sa.bindparam("now"))
    .order_by(TIMERS.at)
    .limit(sa.bindparam("most"))
)
_SLEPT = sa.delete(TIMERS_TABLE).where(
    TIMERS.invocation == sa.bindparam("number"), TIMERS.idx == sa.bindparam("index")
)
_DUE = (
    sa.select(*(INVOCATIONS[name] for name in ("number", "status", "service", "key", "role")))
    .where(INVOCATIONS.next_at <= sa.bindparam("now"))
    .order_by(INVOCATIONS.next_at, INVOCATIONS.number)
    .limit(sa.bindparam("most"))
)
_BEGIN = (
    sa.update(INVOCATIONS_TABLE)
    .where(INVOCATIONS.number == sa.bindparam("due"))
    .values(status=sa.bindparam("becomes"), next_at=None, changed=sa.bindparam("now"))
)
_NEXT = (
    sa.select(sa.func.min(TIMERS.at)),
    sa.select(sa.func.min(INVOCATIONS.next_at)).where(INVOCATIONS.next_at.is_not(None)),
)


def fire(work: UnitOfWork, operation: Fire) -> Fired:
    """See the operation."""
    count = _complete_sleeps(work, operation) + _begin_due(work, operation)
    return Fired(count=count, next_at=find_next_due(work.connection))


def find_next_due(connection: sa.Connection) -> int | None:
    """When the earliest sleep, delay or retry is due."""
    times = [connection.scalar(query) for query in _NEXT]
    return min((moment for moment in times if moment is not None), default=None)


def _complete_sleeps(work: UnitOfWork, operation: Fire) -> int:
    rows = work.connection.execute(_SLEEPS, {"now": operation.now, "most": operation.most}).all()
    if rows:
        parameters = [{"number": row.invocation, "index": row.idx} for row in rows]
        work.connection.execute(_SLEPT, parameters)
        complete(work, {(row.invocation, row.idx): EMPTY for row in rows})
    return len(rows)


def _begin_due(work: UnitOfWork, operation: Fire) -> int:
    rows = work.connection.execute(_DUE, {"now": operation.now, "most": operation.most}).all()
    arriving = [row for row in rows if row.status == Status.SCHEDULED and _is_exclusive(row)]
    occupied = inbox.find_taken(work, [(row.service, row.key) for row in arriving])
    changes = []
    for row in rows:
        status = Status.READY
        if row.status == Status.SCHEDULED and _is_exclusive(row):
            status = Status.INBOX if (row.service, row.key) in occupied else Status.READY
            occupied.add((row.service, row.key))
        changes.append({"due": row.number, "becomes": int(status), "now": work.now})
    if changes:
        work.connection.execute(_BEGIN, changes)
        inbox.add_arrivals(work, [(row.number, (row.service, row.key)) for row in arriving])
        work.ready = True
    return len(rows)


def _is_exclusive(row: sa.Row[Any]) -> bool:
    return bool(row.role == Role.EXCLUSIVE)
