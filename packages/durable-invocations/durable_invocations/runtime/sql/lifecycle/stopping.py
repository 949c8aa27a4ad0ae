"""Cancels, kills, pauses and resumes invocations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from durable_invocations.protocol import kinds
from durable_invocations.protocol.failures import CANCELED, Failure
from durable_invocations.runtime.sql.lifecycle.completing import complete, notify_taken_away
from durable_invocations.runtime.sql.lifecycle.ending import end
from durable_invocations.runtime.sql.packing import pack_report
from durable_invocations.runtime.sql.tables import (
    INVOCATIONS,
    INVOCATIONS_TABLE,
    JOURNAL,
    JOURNAL_TABLE,
)
from durable_invocations.runtime.sql.transaction import (
    CONFLICT,
    FENCED,
    UnitOfWork,
    is_fenced,
    make_unknown,
)
from durable_invocations.runtime.store.operations import Cancel, Kill, Pause, Resume
from durable_invocations.runtime.store.outcomes import ChangeOutcome, OperationRefusal
from durable_invocations.runtime.store.views import Status

CANCEL = Failure(code=CANCELED, message="canceled")
KILL = Failure(code=CANCELED, message="killed")

AT_ONCE = 1_000
"""The most invocations in a statement."""

_OPEN = sa.select(JOURNAL.idx).where(JOURNAL.invocation == sa.bindparam("the_number"), JOURNAL.open)
_NOT_BEGUN = frozenset({Status.SCHEDULED, Status.INBOX})


def cancel(work: UnitOfWork, operation: Cancel) -> ChangeOutcome | OperationRefusal:
    """See the operation."""
    head = work.read_head(operation.id)
    if head is None:
        return make_unknown(operation.id)
    changed, calls = _cancel_one(work, head)
    _cancel_all(work, calls)
    return ChangeOutcome(changed=changed)


def end_canceled(work: UnitOfWork, head: sa.Row[Any]) -> None:
    """End a canceled invocation that waits for nothing, and cancel its open calls."""
    _cancel_all(work, _end_one(work, head))


def deliver_cancellation(work: UnitOfWork, head: sa.Row[Any]) -> None:
    """Fail what a canceled invocation now waits for."""
    update_invocation(work, head.number, canceled=False)
    _cancel_all(work, _fail_entries(work, head))


def kill(work: UnitOfWork, operation: Kill) -> ChangeOutcome | OperationRefusal:
    """See the operation."""
    head = work.read_head(operation.id)
    return (
        make_unknown(operation.id)
        if head is None
        else ChangeOutcome(changed=kill_all(work, [operation.id]) > 0)
    )


def kill_all(work: UnitOfWork, ids: Iterable[str]) -> int:
    """Kill the invocations and, recursively, those of their open calls; how many."""
    count = 0
    rest = list(ids)
    while rest:
        batch, rest = rest[:AT_ONCE], rest[AT_ONCE:]
        heads = [
            head for head in work.read_heads(batch).values() if head.status != Status.COMPLETED
        ]
        rest += [child for head in heads for child in _list_open_calls(work, head)]
        for head in heads:
            notify_taken_away(work, head)
        end(work, [(head, KILL) for head in heads])
        count += len(heads)
    return count


def pause(work: UnitOfWork, operation: Pause) -> ChangeOutcome | OperationRefusal:
    """See the operation."""
    head = work.read_head(operation.id)
    if operation.fence is not None and is_fenced(head, operation.fence):
        return FENCED
    if head is None:
        return make_unknown(operation.id)
    if head.status == Status.PAUSED:
        return ChangeOutcome(changed=False)
    if head.status == Status.COMPLETED or head.status in _NOT_BEGUN:
        reason = "has ended" if head.status == Status.COMPLETED else "has not begun; cancel it"
        return OperationRefusal(code=CONFLICT, message=f"Invocation {operation.id} {reason}.")
    if head.canceled and operation.error is not None:
        end_canceled(work, head)
        return ChangeOutcome()
    if operation.fence is None:
        notify_taken_away(work, head)
    values: dict[str, Any] = {"status": int(Status.PAUSED), "owner": None, "waits": None}
    if operation.error is not None:
        values |= {"error": pack_report(operation.error), "error_at": work.now}
        values |= build_failure_columns(head)
    update_invocation(work, head.number, **values, next_at=None)
    return ChangeOutcome()


def resume(work: UnitOfWork, operation: Resume) -> ChangeOutcome | OperationRefusal:
    """See the operation."""
    head = work.read_head(operation.id)
    if head is None:
        return make_unknown(operation.id)
    if head.status not in {Status.PAUSED, Status.BACKING_OFF}:
        return ChangeOutcome(changed=False)
    update_invocation(work, head.number, status=int(Status.READY), next_at=None, retries=0)
    work.ready = True
    return ChangeOutcome()


def update_invocation(work: UnitOfWork, number: int, **values: Any) -> None:
    """Set columns of an invocation."""
    update = sa.update(INVOCATIONS_TABLE).where(INVOCATIONS.number == number)
    work.connection.execute(update.values(**values, changed=work.now))


def build_failure_columns(head: sa.Row[Any]) -> dict[str, int]:
    """The columns that count failed attempts since an entry was stored, with this one."""
    progressed: bool = head.length > head.known
    return {"retries": 1 if progressed else int(head.retries) + 1, "known": head.length}


def _cancel_all(work: UnitOfWork, ids: list[str]) -> None:
    while ids:
        heads = work.read_heads(ids[:AT_ONCE]).values()
        ids = ids[AT_ONCE:] + [call for head in heads for call in _cancel_one(work, head)[1]]


def _cancel_one(work: UnitOfWork, head: sa.Row[Any]) -> tuple[bool, list[str]]:
    """Cancel one invocation; whether that changed it, and the calls to cancel too."""
    if head.status == Status.COMPLETED:
        return False, []
    if head.fence == 0 or head.status == Status.PAUSED:
        return True, _end_one(work, head)
    # An invocation that backs off may never reach what it waits for.
    if head.status == Status.BACKING_OFF or not _list_open_entries(work, head):
        update_invocation(work, head.number, canceled=True)
        return not head.canceled, []
    return True, _fail_entries(work, head)


def _end_one(work: UnitOfWork, head: sa.Row[Any]) -> list[str]:
    """End the invocation as canceled; returns its open calls."""
    calls = _list_open_calls(work, head)
    end(work, [(head, CANCEL)])
    return calls


def _fail_entries(work: UnitOfWork, head: sa.Row[Any]) -> list[str]:
    """Fail the entries that the invocation waits for; returns the calls among them."""
    calls = _list_open_calls(work, head)
    complete(work, {(head.number, index): CANCEL for index in _list_open_entries(work, head)})
    return calls


def _list_open_entries(work: UnitOfWork, head: sa.Row[Any]) -> list[int]:
    return list(work.connection.scalars(_OPEN, {"the_number": head.number}))


def _list_open_calls(work: UnitOfWork, head: sa.Row[Any]) -> list[str]:
    """The invocations that this one's open calls began, and no other caller."""
    child = INVOCATIONS_TABLE.alias("made")
    calls = (
        sa.select(child.c.id)
        .join(JOURNAL_TABLE, JOURNAL.child == child.c.id)
        .where(JOURNAL.invocation == head.number, JOURNAL.open, JOURNAL.code == kinds.CALL.code)
        .where(child.c.parent == head.id)
    )
    return list(work.connection.scalars(calls.order_by(JOURNAL.idx)))
