"""Entries that wait for a time, or for an awakeable to be completed."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from durable_invocations.protocol.results import EMPTY, get_result
from durable_invocations.runtime.sql.entries.invocation import (
    WITHOUT_RESULT,
    CommittingInvocation,
    EntryOutcome,
    make_violation,
)
from durable_invocations.runtime.sql.lifecycle import awakeables
from durable_invocations.runtime.sql.tables import TIMERS_TABLE
from durable_invocations.runtime.sql.transaction import UnitOfWork
from durable_invocations.runtime.store.operations import CompleteAwakeable
from durable_invocations.runtime.store.outcomes import OperationRefusal


def sleep(work: UnitOfWork, invocation: CommittingInvocation, message: Any) -> EntryOutcome:
    """Complete a Sleep at its time; at once if that has passed."""
    at = work.to_store_time(message.wake_up_time)
    if at <= work.now:
        return EntryOutcome(result=EMPTY)
    row = {"invocation": invocation.number, "idx": invocation.length, "at": at}
    work.connection.execute(sa.insert(TIMERS_TABLE), row)
    work.note_due(at)
    return WITHOUT_RESULT


def awakeable(work: UnitOfWork, invocation: CommittingInvocation, _message: Any) -> EntryOutcome:
    """Complete an Awakeable now if it was completed before its entry."""
    return EntryOutcome(
        result=awakeables.take_early_result(work, (invocation.number, invocation.length))
    )


def complete_awakeable(
    work: UnitOfWork, invocation: CommittingInvocation, message: Any
) -> EntryOutcome | OperationRefusal:
    """Complete an awakeable; no change if it is completed already."""
    completion = get_result(message)
    if completion is None:
        return make_violation(
            invocation, "it completes an awakeable with neither a value nor a failure."
        )
    operation = CompleteAwakeable(awakeable=message.id, result=completion)
    outcome = awakeables.complete_awakeable(work, operation)
    return outcome if isinstance(outcome, OperationRefusal) else WITHOUT_RESULT
