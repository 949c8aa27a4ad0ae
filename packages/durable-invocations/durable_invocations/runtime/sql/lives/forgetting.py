"""Forgetting invocations that have ended, and what belongs to them alone."""

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
from durable_invocations.runtime.sql.work import CONFLICT, Work
from durable_invocations.runtime.store.operations import Prune, Purge
from durable_invocations.runtime.store.outcomes import Done, Refused
from durable_invocations.runtime.store.views import Status

_KEPT = (INVOCATIONS.number, INVOCATIONS.service, INVOCATIONS.key, INVOCATIONS.role)
_OVER = (
    sa.select(*_KEPT)
    .where(INVOCATIONS.keep_until <= sa.bindparam("now"))
    .order_by(INVOCATIONS.keep_until)
    .limit(sa.bindparam("most"))
)


def purge(work: Work, asked: Purge) -> Done | Refused:
    """See the operation."""
    head = work.head(asked.id)
    if head is None:
        return Done(changed=False)
    if head.status != Status.COMPLETED:
        return Refused(
            code=CONFLICT, message=f"Invocation {asked.id} has not ended; cancel or kill it first."
        )
    _forget(work, [head])
    return Done()


def prune(work: Work, asked: Prune) -> int:
    """See the operation."""
    rows = work.connection.execute(_OVER, {"now": asked.now, "most": asked.most}).all()
    _forget(work, rows)
    return len(rows)


def _forget(work: Work, rows: Sequence[Any]) -> None:
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
            of = sa.tuple_(columns.service, columns.key).in_(runs)
            work.connection.execute(sa.delete(table).where(of))
    others = {(row.service, row.key) for row in rows if row.role == Role.SHARED and row.key}
    if others:
        _forget_unclaimed(work, sorted(others))


def _forget_unclaimed(work: Work, keys: Sequence[tuple[str, str]]) -> None:
    """Forget the promises of keys that no invocation is left of: no run came to read them."""
    left = sa.exists().where(INVOCATIONS.service == PROMISES.service)
    of = sa.tuple_(PROMISES.service, PROMISES.key).in_(keys)
    unclaimed = sa.delete(PROMISES_TABLE).where(of, ~left.where(INVOCATIONS.key == PROMISES.key))
    work.connection.execute(unclaimed)
