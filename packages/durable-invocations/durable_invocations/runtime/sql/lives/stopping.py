"""Canceling, killing, pausing and resuming invocations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from durable_invocations.protocol import kinds
from durable_invocations.protocol.failures import CANCELED, Failure
from durable_invocations.runtime.sql.lives.completing import complete, take_away
from durable_invocations.runtime.sql.lives.ending import end
from durable_invocations.runtime.sql.packing import report
from durable_invocations.runtime.sql.tables import (
    INVOCATIONS,
    INVOCATIONS_TABLE,
    JOURNAL,
    JOURNAL_TABLE,
)
from durable_invocations.runtime.sql.work import CONFLICT, FENCED, Work, fenced, unknown
from durable_invocations.runtime.store.operations import Cancel, Kill, Pause, Resume
from durable_invocations.runtime.store.outcomes import Done, Refused
from durable_invocations.runtime.store.views import Status

CANCEL = Failure(code=CANCELED, message="canceled")
KILL = Failure(code=CANCELED, message="killed")

AT_ONCE = 1_000
"""Invocations for a statement."""

_OPEN = sa.select(JOURNAL.idx).where(JOURNAL.invocation == sa.bindparam("the_number"), JOURNAL.open)
_NOT_BEGUN = frozenset({Status.SCHEDULED, Status.INBOX})


def cancel(work: Work, asked: Cancel) -> Done | Refused:
    """See the operation."""
    head = work.head(asked.id)
    if head is None:
        return unknown(asked.id)
    changed, calls = _cancel(work, head)
    _cancel_all(work, calls)
    return Done(changed=changed)


def end_canceled(work: Work, head: sa.Row[Any]) -> None:
    """End an invocation whose cancellation met nothing that waits, and cancel its open calls."""
    _cancel_all(work, _end(work, head))


def deliver(work: Work, head: sa.Row[Any]) -> None:
    """Have the cancellation of an invocation that waits now meet what it waits for."""
    change(work, head.number, canceled=False)
    _cancel_all(work, _fail_entries(work, head))


def kill(work: Work, asked: Kill) -> Done | Refused:
    """See the operation."""
    head = work.head(asked.id)
    return unknown(asked.id) if head is None else Done(changed=kill_all(work, [asked.id]) > 0)


def kill_all(work: Work, ids: Iterable[str]) -> int:
    """Kill the invocations and, in turn, those that their open calls made; how many."""
    count = 0
    rest = list(ids)
    while rest:
        some, rest = rest[:AT_ONCE], rest[AT_ONCE:]
        heads = [head for head in work.heads(some).values() if head.status != Status.COMPLETED]
        rest += [child for head in heads for child in _open_calls(work, head)]
        for head in heads:
            take_away(work, head)
        end(work, [(head, KILL) for head in heads])
        count += len(heads)
    return count


def pause(work: Work, asked: Pause) -> Done | Refused:
    """See the operation."""
    head = work.head(asked.id)
    if asked.fence is not None and fenced(head, asked.fence):
        return FENCED
    if head is None:
        return unknown(asked.id)
    if head.status == Status.PAUSED:
        return Done(changed=False)
    if head.status == Status.COMPLETED or head.status in _NOT_BEGUN:
        what = "has ended" if head.status == Status.COMPLETED else "has not begun; cancel it"
        return Refused(code=CONFLICT, message=f"Invocation {asked.id} {what}.")
    if head.canceled and asked.error is not None:
        end_canceled(work, head)
        return Done()
    if asked.fence is None:
        take_away(work, head)
    values: dict[str, Any] = {"status": int(Status.PAUSED), "owner": None, "waits": None}
    if asked.error is not None:
        values |= {"error": report(asked.error), "error_at": work.now}
        values |= failed(head)
    change(work, head.number, **values, next_at=None)
    return Done()


def resume(work: Work, asked: Resume) -> Done | Refused:
    """See the operation."""
    head = work.head(asked.id)
    if head is None:
        return unknown(asked.id)
    if head.status not in {Status.PAUSED, Status.BACKING_OFF}:
        return Done(changed=False)
    change(work, head.number, status=int(Status.READY), next_at=None, retries=0)
    work.ready = True
    return Done()


def change(work: Work, number: int, **values: Any) -> None:
    """Set columns of an invocation."""
    changed = sa.update(INVOCATIONS_TABLE).where(INVOCATIONS.number == number)
    work.connection.execute(changed.values(**values, changed=work.now))


def failed(head: sa.Row[Any]) -> dict[str, int]:
    """The columns that count attempts which failed since an entry was stored, with this one."""
    progressed: bool = head.length > head.known
    return {"retries": 1 if progressed else int(head.retries) + 1, "known": head.length}


def _cancel_all(work: Work, ids: list[str]) -> None:
    while ids:
        heads = work.heads(ids[:AT_ONCE]).values()
        ids = ids[AT_ONCE:] + [call for each in heads for call in _cancel(work, each)[1]]


def _cancel(work: Work, head: sa.Row[Any]) -> tuple[bool, list[str]]:
    """Cancel one invocation; whether that changed it, and which calls are to be canceled too."""
    if head.status == Status.COMPLETED:
        return False, []
    if head.fence == 0 or head.status == Status.PAUSED:
        return True, _end(work, head)
    # One that fails may never come to what it waits for.
    if head.status == Status.BACKING_OFF or not _open_entries(work, head):
        change(work, head.number, canceled=True)
        return not head.canceled, []
    return True, _fail_entries(work, head)


def _end(work: Work, head: sa.Row[Any]) -> list[str]:
    """End the invocation as canceled; returns its open calls."""
    calls = _open_calls(work, head)
    end(work, [(head, CANCEL)])
    return calls


def _fail_entries(work: Work, head: sa.Row[Any]) -> list[str]:
    """Fail what the invocation waits for; returns the calls among it."""
    calls = _open_calls(work, head)
    complete(work, {(head.number, index): CANCEL for index in _open_entries(work, head)})
    return calls


def _open_entries(work: Work, head: sa.Row[Any]) -> list[int]:
    return list(work.connection.scalars(_OPEN, {"the_number": head.number}))


def _open_calls(work: Work, head: sa.Row[Any]) -> list[str]:
    """The invocations that open calls of this one made, and not another caller."""
    made = INVOCATIONS_TABLE.alias("made")
    calls = (
        sa.select(made.c.id)
        .join(JOURNAL_TABLE, JOURNAL.child == made.c.id)
        .where(JOURNAL.invocation == head.number, JOURNAL.open, JOURNAL.code == kinds.CALL.code)
        .where(made.c.parent == head.id)
    )
    return list(work.connection.scalars(calls.order_by(JOURNAL.idx)))
