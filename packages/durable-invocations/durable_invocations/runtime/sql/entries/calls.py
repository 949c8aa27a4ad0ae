"""Entries that make, attach to, look at and cancel other invocations."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from durable_invocations.errors import ConfigError
from durable_invocations.protocol import ids, kinds
from durable_invocations.protocol.failures import Failure
from durable_invocations.protocol.results import EMPTY, Result, Value
from durable_invocations.runtime.sql.entries.driven import ACTED, Acted, Driven, violation
from durable_invocations.runtime.sql.finding import found, result_of_id
from durable_invocations.runtime.sql.lives.completing import wait
from durable_invocations.runtime.sql.lives.stopping import cancel as stop
from durable_invocations.runtime.sql.lives.submitting import submit
from durable_invocations.runtime.sql.packing import result
from durable_invocations.runtime.sql.tables import JOURNAL
from durable_invocations.runtime.sql.work import NOT_FOUND, Work
from durable_invocations.runtime.store.operations import Cancel, Submit
from durable_invocations.runtime.store.outcomes import Refused, Submitted


def call(work: Work, driven: Driven, message: Any) -> Acted | Refused:
    """Invoke a handler; the entry is completed when that invocation ends."""
    made = _made(work, driven, message, at=0)
    if isinstance(made, Refused):
        return made
    if made.result is None:
        wait(work, made.id, (driven.number, driven.length))
    return Acted(child=made.id, result=made.result)


def one_way_call(work: Work, driven: Driven, message: Any) -> Acted | Refused:
    """Invoke a handler, now or at a time, and go on."""
    made = _made(work, driven, message, at=message.invoke_time)
    return made if isinstance(made, Refused) else Acted(child=made.id)


def get_id(work: Work, driven: Driven, message: Any) -> Acted | Refused:
    """Complete a GetCallInvocationId at once."""
    called = _called(work, driven, message.call_entry_index)
    if isinstance(called, str):
        return Acted(result=Value(value=called.encode()))
    return called if isinstance(called, Refused) else Acted(result=called)


def cancel(work: Work, driven: Driven, message: Any) -> Acted | Refused:
    """Cancel an invocation; one that is unknown, or has ended, needs none."""
    target = _target(work, driven, message)
    if isinstance(target, Refused):
        return target
    if isinstance(target, str):
        stop(work, Cancel(id=target))
    return ACTED


def attach(work: Work, driven: Driven, message: Any) -> Acted | Refused:
    """Complete an AttachInvocation when its target ends; with a failure if there is none."""
    target = _target(work, driven, message)
    if not isinstance(target, str):
        return _without(target, message)
    known, held = result_of_id(work.connection, target)
    if known and held is None:
        wait(work, target, (driven.number, driven.length))
        return ACTED
    return Acted(result=held or _no_target(message))


def output(work: Work, driven: Driven, message: Any) -> Acted | Refused:
    """Complete a GetInvocationOutput at once: empty if the target has not ended."""
    target = _target(work, driven, message)
    if not isinstance(target, str):
        return _without(target, message)
    known, held = result_of_id(work.connection, target)
    return Acted(result=(held or EMPTY) if known else _no_target(message))


def _made(work: Work, driven: Driven, message: Any, *, at: int) -> Submitted | Refused:
    asked = Submit(
        id=ids.shown(ids.new_id()),
        service=message.service_name,
        handler=message.handler_name,
        key=message.key,
        argument=message.parameter,
        headers=tuple((each.key, each.value) for each in message.headers),
        idempotency_key=message.idempotency_key if message.HasField("idempotency_key") else None,
        at=at,
    )
    (outcome,) = submit(work, [asked], parent=driven.id)
    return outcome


def _target(work: Work, driven: Driven, message: Any) -> str | Failure | Refused | None:
    """The id of the invocation that an entry means; None: there is none. Else as `_called`."""
    which = message.WhichOneof("target")
    if which == "invocation_id":
        try:
            ids.parsed(message.invocation_id)
        except ConfigError as error:
            return violation(driven, str(error))
        return str(message.invocation_id)
    if which == "call_entry_index":
        return _called(work, driven, message.call_entry_index)
    if which == "idempotent_request_target":
        at = message.idempotent_request_target
        key = (at.service_key, at.handler_name)
        return found(work.connection, at.service_name, *key, at.idempotency_key)
    if which == "workflow_target":
        at = message.workflow_target
        return found(work.connection, at.workflow_name, at.workflow_key, "", None)
    return violation(driven, "it names no target.")


def _called(work: Work, driven: Driven, index: int) -> str | Failure | Refused:
    """The id of the invocation that a call made; the failure of one that a cancellation met."""
    at = (JOURNAL.invocation == driven.number, JOURNAL.idx == min(index, driven.length))
    chosen = sa.select(JOURNAL.child, JOURNAL.result).where(*at, JOURNAL.code.in_(kinds.CALLS))
    row = work.connection.execute(chosen).one_or_none()
    if row is not None and row.child is not None:
        return str(row.child)
    held = None if row is None else result(row.result)
    if isinstance(held, Failure):
        return held
    return violation(driven, f"entry {index} is no call that made an invocation.")


def _without(found: Failure | Refused | None, message: Any) -> Acted | Refused:
    """What becomes of an entry that means no invocation."""
    return found if isinstance(found, Refused) else Acted(result=found or _no_target(message))


def _no_target(message: Any) -> Result:
    """Named as in the paths that ask for it by HTTP."""
    named = getattr(message, message.WhichOneof("target"))
    fields = [named] if isinstance(named, str) else [value for _, value in named.ListFields()]
    asked = "/".join(map(str, fields))
    return Failure(
        code=NOT_FOUND, message=f"There is no invocation {asked}, or its retention is over."
    )
