"""Ends invocations: wakes those that wait for them, and begins the next of their keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from durable_invocations.protocol.results import Result
from durable_invocations.runtime.sql.lifecycle import inbox
from durable_invocations.runtime.sql.lifecycle.completing import complete_waiting
from durable_invocations.runtime.sql.packing import pack_result
from durable_invocations.runtime.sql.tables import (
    EARLY,
    EARLY_RESULTS_TABLE,
    INVOCATIONS,
    INVOCATIONS_TABLE,
    TIMERS,
    TIMERS_TABLE,
    Role,
)
from durable_invocations.runtime.sql.transaction import UnitOfWork
from durable_invocations.runtime.store.views import Status

_END = (
    sa.update(INVOCATIONS_TABLE)
    .where(INVOCATIONS.number == sa.bindparam("ending"))
    .values(
        status=int(Status.COMPLETED),
        result=sa.bindparam("the_result"),
        ended=sa.bindparam("now"),
        changed=sa.bindparam("now"),
        keep_until=sa.bindparam("until"),
        owner=None,
        waits=None,
        next_at=None,
        canceled=False,
    )
)
_NUMBERS: sa.BindParameter[Any] = sa.bindparam("numbers", expanding=True)
_TIMERS = sa.delete(TIMERS_TABLE).where(TIMERS.invocation.in_(_NUMBERS))
_EARLY = sa.delete(EARLY_RESULTS_TABLE).where(EARLY.invocation.in_(_NUMBERS))


def end(work: UnitOfWork, ends: Sequence[tuple[sa.Row[Any], Result]]) -> None:
    """End invocations with their results; each must be open, and occur once."""
    if not ends:
        return
    times = {"now": work.now, "until": work.now + work.retention}
    rows = [
        {"ending": head.number, "the_result": pack_result(result)} | times for head, result in ends
    ]
    work.connection.execute(_END, rows)
    numbers = {"numbers": [head.number for head, _ in ends]}
    work.connection.execute(_TIMERS, numbers)
    work.connection.execute(_EARLY, numbers)
    exclusive = [head for head, _ in ends if head.role == Role.EXCLUSIVE]
    inbox.leave(work, [(head.number, (head.service, head.key)) for head in exclusive])
    results = {head.id: result for head, result in ends}
    work.ended |= results
    complete_waiting(work, results)
