"""Entries about the promises of a workflow's key."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from durable_invocations.protocol.failures import Failure
from durable_invocations.protocol.results import EMPTY, Result, Value
from durable_invocations.protocol.services import ServiceKind
from durable_invocations.runtime.sql.entries.invocation import (
    CommittingInvocation,
    EntryAction,
    EntryOutcome,
    make_violation,
)
from durable_invocations.runtime.sql.lifecycle.completing import complete_waiting, register_wait
from durable_invocations.runtime.sql.packing import make_promise_id, pack_result, unpack_result
from durable_invocations.runtime.sql.services import load_services
from durable_invocations.runtime.sql.tables import PROMISES, PROMISES_TABLE
from durable_invocations.runtime.sql.transaction import CONFLICT, LONGEST, UnitOfWork
from durable_invocations.runtime.store.outcomes import OperationRefusal
from sql_transactions.row_values import make_insert

_RESULT = sa.select(PROMISES.result).where(
    PROMISES.service == sa.bindparam("of"),
    PROMISES.key == sa.bindparam("at"),
    PROMISES.name == sa.bindparam("named"),
)


def require_workflow(action: EntryAction) -> EntryAction:
    """The action, refused for services that are not workflows and so have no promises."""

    def do_action(
        work: UnitOfWork, invocation: CommittingInvocation, message: Any
    ) -> EntryOutcome | OperationRefusal:
        load_services(work, [invocation.service])
        service = work.services[invocation.service]
        if not invocation.key or (service is not None and service.kind is not ServiceKind.WORKFLOW):
            return make_violation(
                invocation, f"{invocation.service!r} is not a workflow, so it has no promises."
            )
        if "\0" in message.key or len(message.key.encode()) > LONGEST:
            problem = f"a promise's name contains a NUL, or is longer than {LONGEST:,} bytes."
            return make_violation(invocation, problem)
        return action(work, invocation, message)

    return do_action


def get(work: UnitOfWork, invocation: CommittingInvocation, message: Any) -> EntryOutcome:
    """Complete a GetPromise, now or when the promise is completed."""
    outcome = _read_result(work, invocation, message.key)
    if outcome is None:
        register_wait(
            work, _make_target(invocation, message.key), (invocation.number, invocation.length)
        )
    return EntryOutcome(result=outcome)


def peek(work: UnitOfWork, invocation: CommittingInvocation, message: Any) -> EntryOutcome:
    """Complete a PeekPromise now."""
    return EntryOutcome(result=_read_result(work, invocation, message.key) or EMPTY)


def complete(
    work: UnitOfWork, invocation: CommittingInvocation, message: Any
) -> EntryOutcome | OperationRefusal:
    """Do a CompletePromise: it is empty the first time, else a failure."""
    completion = _parse_completion(message)
    if completion is None:
        return make_violation(
            invocation, "it completes a promise with neither a value nor a failure."
        )
    row = {"service": invocation.service, "key": invocation.key, "name": message.key}
    insert = make_insert(work.connection.dialect, PROMISES_TABLE)
    insert_once = insert.on_conflict_do_nothing().returning(PROMISES.name)
    if (
        work.connection.scalar(insert_once.values(row | {"result": pack_result(completion)}))
        is None
    ):
        text = f"The promise {message.key!r} was completed already."
        return EntryOutcome(result=Failure(code=CONFLICT, message=text))
    complete_waiting(work, {_make_target(invocation, message.key): completion})
    return EntryOutcome(result=EMPTY)


def _parse_completion(message: Any) -> Result | None:
    variant = message.WhichOneof("completion")
    if variant == "completion_value":
        return Value(value=message.completion_value)
    return Failure.read(message.completion_failure) if variant else None


def _read_result(work: UnitOfWork, invocation: CommittingInvocation, name: str) -> Result | None:
    parameters = {"of": invocation.service, "at": invocation.key, "named": name}
    return unpack_result(work.connection.scalar(_RESULT, parameters))


def _make_target(invocation: CommittingInvocation, name: str) -> str:
    return make_promise_id(invocation.service, invocation.key, name)
