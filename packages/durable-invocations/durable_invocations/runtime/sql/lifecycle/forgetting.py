"""Forgets ended invocations, and what belongs only to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from durable_invocations.runtime.sql.tables import (
    INVOCATIONS,
    INVOCATIONS_TABLE,
    JOURNAL,
    JOURNAL_TABLE,
    PROMISES,
    PROMISES_TABLE,
    SERVICE_STATE_TABLE,
    STATE,
    WAITS,
    WAITS_TABLE,
    Role,
)
from durable_invocations.runtime.sql.transaction import CONFLICT, UnitOfWork
from durable_invocations.runtime.store.operations import Prune, Purge
from durable_invocations.runtime.store.outcomes import ChangeOutcome, OperationRefusal
from durable_invocations.runtime.store.views import Status

_KEPT = (INVOCATIONS.number, INVOCATIONS.service, INVOCATIONS.key, INVOCATIONS.role)
_OVER = (
    sa.select(*_KEPT)
    .where(INVOCATIONS.keep_until <= sa.bindparam("now"))
    .order_by(INVOCATIONS.keep_until)
    .limit(sa.bindparam("most"))
)


def purge(work: UnitOfWork, operation: Purge) -> ChangeOutcome | OperationRefusal:
    """See the operation."""
    head = work.read_head(operation.id)
    if head is None:
        return ChangeOutcome(changed=False)
    if head.status != Status.COMPLETED:
        return OperationRefusal(
            code=CONFLICT,
            message=f"Invocation {operation.id} has not ended; cancel or kill it first.",
        )
    _delete_invocations(work, [head])
    return ChangeOutcome()


def prune(work: UnitOfWork, operation: Prune) -> int:
    """See the operation."""
    rows = work.connection.execute(_OVER, {"now": operation.now, "most": operation.most}).all()
    _delete_invocations(work, rows)
    return len(rows)


def _delete_invocations(work: UnitOfWork, rows: Sequence[Any]) -> None:
    if not rows:
        return
    numbers = [row.number for row in rows]
    for table, number in (
        (JOURNAL_TABLE, JOURNAL.invocation),
        (WAITS_TABLE, WAITS.invocation),
        (INVOCATIONS_TABLE, INVOCATIONS.number),
    ):
        work.connection.execute(sa.delete(table).where(number.in_(numbers)))
    runs = [(row.service, row.key) for row in rows if row.role == Role.RUN]
    if runs:
        for table, columns in ((SERVICE_STATE_TABLE, STATE), (PROMISES_TABLE, PROMISES)):
            matching = sa.tuple_(columns.service, columns.key).in_(runs)
            work.connection.execute(sa.delete(table).where(matching))
    others = {(row.service, row.key) for row in rows if row.role == Role.SHARED and row.key}
    if others:
        _delete_promises(work, sorted(others))


def _delete_promises(work: UnitOfWork, keys: Sequence[tuple[str, str]]) -> None:
    """Forget the promises of keys without invocations: no run read them."""
    remaining = sa.exists().where(INVOCATIONS.service == PROMISES.service)
    matching = sa.tuple_(PROMISES.service, PROMISES.key).in_(keys)
    delete = sa.delete(PROMISES_TABLE).where(
        matching, ~remaining.where(INVOCATIONS.key == PROMISES.key)
    )
    work.connection.execute(delete)
