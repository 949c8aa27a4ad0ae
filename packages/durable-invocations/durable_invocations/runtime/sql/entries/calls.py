"""Entries that begin, attach to, read and cancel other invocations."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from durable_invocations.errors import ConfigError
from durable_invocations.protocol import ids, kinds
from durable_invocations.protocol.failures import Failure
from durable_invocations.protocol.results import EMPTY, Result, Value
from durable_invocations.runtime.sql.entries.invocation import (
    WITHOUT_RESULT,
    CommittingInvocation,
    EntryOutcome,
    make_violation,
)
from durable_invocations.runtime.sql.lifecycle.completing import register_wait
from durable_invocations.runtime.sql.lifecycle.stopping import cancel as stop
from durable_invocations.runtime.sql.lifecycle.submitting import submit
from durable_invocations.runtime.sql.lookup import find_invocation, find_result
from durable_invocations.runtime.sql.packing import unpack_result
from durable_invocations.runtime.sql.tables import JOURNAL
from durable_invocations.runtime.sql.transaction import NOT_FOUND, UnitOfWork
from durable_invocations.runtime.store.operations import Cancel, Submit
from durable_invocations.runtime.store.outcomes import OperationRefusal, Submitted


def call(
    work: UnitOfWork, invocation: CommittingInvocation, message: Any
) -> EntryOutcome | OperationRefusal:
    """Invoke a handler; the entry is completed when that invocation ends."""
    submitted = _submit_call(work, invocation, message, at=0)
    if isinstance(submitted, OperationRefusal):
        return submitted
    if submitted.result is None:
        register_wait(work, submitted.id, (invocation.number, invocation.length))
    return EntryOutcome(child=submitted.id, result=submitted.result)


def call_one_way(
    work: UnitOfWork, invocation: CommittingInvocation, message: Any
) -> EntryOutcome | OperationRefusal:
    """Invoke a handler, now or at a time, without waiting."""
    submitted = _submit_call(work, invocation, message, at=message.invoke_time)
    return (
        submitted if isinstance(submitted, OperationRefusal) else EntryOutcome(child=submitted.id)
    )


def get_id(
    work: UnitOfWork, invocation: CommittingInvocation, message: Any
) -> EntryOutcome | OperationRefusal:
    """Complete a GetCallInvocationId at once."""
    target = _find_called(work, invocation, message.call_entry_index)
    if isinstance(target, str):
        return EntryOutcome(result=Value(value=target.encode()))
    return target if isinstance(target, OperationRefusal) else EntryOutcome(result=target)


def cancel(
    work: UnitOfWork, invocation: CommittingInvocation, message: Any
) -> EntryOutcome | OperationRefusal:
    """Cancel an invocation; does nothing if it is unknown or has ended."""
    target = _find_target(work, invocation, message)
    if isinstance(target, OperationRefusal):
        return target
    if isinstance(target, str):
        stop(work, Cancel(id=target))
    return WITHOUT_RESULT


def attach(
    work: UnitOfWork, invocation: CommittingInvocation, message: Any
) -> EntryOutcome | OperationRefusal:
    """Complete an AttachInvocation when its target ends; with a failure if it is unknown."""
    target = _find_target(work, invocation, message)
    if not isinstance(target, str):
        return _answer_untargeted(target, message)
    exists, outcome = find_result(work.connection, target)
    if exists and outcome is None:
        register_wait(work, target, (invocation.number, invocation.length))
        return WITHOUT_RESULT
    return EntryOutcome(result=outcome or _make_no_target(message))


def output(
    work: UnitOfWork, invocation: CommittingInvocation, message: Any
) -> EntryOutcome | OperationRefusal:
    """Complete a GetInvocationOutput at once: empty if the target has not ended."""
    target = _find_target(work, invocation, message)
    if not isinstance(target, str):
        return _answer_untargeted(target, message)
    exists, outcome = find_result(work.connection, target)
    return EntryOutcome(result=(outcome or EMPTY) if exists else _make_no_target(message))


def _submit_call(
    work: UnitOfWork, invocation: CommittingInvocation, message: Any, *, at: int
) -> Submitted | OperationRefusal:
    submission = Submit(
        id=ids.format_id(ids.make_id()),
        service=message.service_name,
        handler=message.handler_name,
        key=message.key,
        argument=message.parameter,
        headers=tuple((header.key, header.value) for header in message.headers),
        idempotency_key=message.idempotency_key if message.HasField("idempotency_key") else None,
        at=at,
    )
    (outcome,) = submit(work, [submission], parent=invocation.id)
    return outcome


def _find_target(
    work: UnitOfWork, invocation: CommittingInvocation, message: Any
) -> str | Failure | OperationRefusal | None:
    """The id of the entry's target; None if it is unknown. Else as `_find_called`."""
    which = message.WhichOneof("target")
    if which == "invocation_id":
        try:
            ids.parse_id(message.invocation_id)
        except ConfigError as error:
            return make_violation(invocation, str(error))
        return str(message.invocation_id)
    if which == "call_entry_index":
        return _find_called(work, invocation, message.call_entry_index)
    if which == "idempotent_request_target":
        target = message.idempotent_request_target
        key = (target.service_key, target.handler_name)
        return find_invocation(work.connection, target.service_name, *key, target.idempotency_key)
    if which == "workflow_target":
        target = message.workflow_target
        return find_invocation(work.connection, target.workflow_name, target.workflow_key, "", None)
    return make_violation(invocation, "it names no target.")


def _find_called(
    work: UnitOfWork, invocation: CommittingInvocation, index: int
) -> str | Failure | OperationRefusal:
    """The id of the invocation that a call began; the failure of a canceled call."""
    conditions = (
        JOURNAL.invocation == invocation.number,
        JOURNAL.idx == min(index, invocation.length),
    )
    query = sa.select(JOURNAL.child, JOURNAL.result).where(
        *conditions, JOURNAL.code.in_(kinds.CALLS)
    )
    row = work.connection.execute(query).one_or_none()
    if row is not None and row.child is not None:
        return str(row.child)
    outcome = None if row is None else unpack_result(row.result)
    if isinstance(outcome, Failure):
        return outcome
    return make_violation(invocation, f"entry {index} is not a call that began an invocation.")


def _answer_untargeted(
    target: Failure | OperationRefusal | None, message: Any
) -> EntryOutcome | OperationRefusal:
    """The outcome of an entry without a target invocation."""
    return (
        target
        if isinstance(target, OperationRefusal)
        else EntryOutcome(result=target or _make_no_target(message))
    )


def _make_no_target(message: Any) -> Result:
    """The failure, which names the target as HTTP paths do."""
    target = getattr(message, message.WhichOneof("target"))
    fields = [target] if isinstance(target, str) else [value for _, value in target.ListFields()]
    name = "/".join(map(str, fields))
    return Failure(
        code=NOT_FOUND, message=f"There is no invocation {name}, or its retention is over."
    )
