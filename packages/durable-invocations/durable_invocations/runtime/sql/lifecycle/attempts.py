"""Ends attempts, with an error or an output."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from durable_invocations.protocol import kinds
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.protocol.results import Result, Value, get_result
from durable_invocations.runtime.sql.lifecycle.ending import end
from durable_invocations.runtime.sql.lifecycle.stopping import (
    build_failure_columns,
    end_canceled,
    update_invocation,
)
from durable_invocations.runtime.sql.packing import pack_report
from durable_invocations.runtime.sql.tables import JOURNAL
from durable_invocations.runtime.sql.transaction import (
    FENCED,
    VIOLATION,
    UnitOfWork,
    is_fenced,
)
from durable_invocations.runtime.store.operations import Fail, Finish
from durable_invocations.runtime.store.outcomes import ChangeOutcome, OperationRefusal
from durable_invocations.runtime.store.views import Status

_OUTPUTS = (
    sa.select(JOURNAL.invocation, JOURNAL.body)
    .where(JOURNAL.invocation.in_(sa.bindparam("numbers", expanding=True)))
    .where(JOURNAL.code == kinds.OUTPUT.code)
    .order_by(JOURNAL.invocation, JOURNAL.idx)
)


def fail_attempt(work: UnitOfWork, operation: Fail) -> ChangeOutcome | OperationRefusal:
    """See the operation."""
    head = work.read_head(operation.id)
    if head is None or is_fenced(head, operation.fence):
        return FENCED
    if head.canceled:
        end_canceled(work, head)
        return ChangeOutcome()
    at_once = operation.next_at <= work.now
    update_invocation(
        work,
        head.number,
        status=int(Status.READY if at_once else Status.BACKING_OFF),
        owner=None,
        waits=None,
        next_at=None if at_once else operation.next_at,
        error=pack_report(operation.error),
        error_at=work.now,
        **build_failure_columns(head),
    )
    if at_once:
        work.ready = True
    else:
        work.note_due(operation.next_at)
    return ChangeOutcome()


def finish_invocations(
    work: UnitOfWork, operations: Sequence[Finish]
) -> list[ChangeOutcome | OperationRefusal]:
    """See the operation."""
    heads = work.read_heads(operation.id for operation in operations)
    owned = {
        operation.id: heads[operation.id]
        for operation in operations
        if not is_fenced(heads.get(operation.id), operation.fence)
    }
    outputs = _read_outputs(work, [head.number for head in owned.values()])
    ends = [(head, outputs[head.number]) for head in owned.values() if head.number in outputs]
    end(work, ends)
    outcomes: dict[str, ChangeOutcome | OperationRefusal] = {
        id_: OperationRefusal(code=VIOLATION, message=f"{id_} ends without an Output entry.")
        for id_ in owned
    }
    outcomes |= {head.id: ChangeOutcome() for head, _ in ends}
    return [outcomes.get(operation.id, FENCED) for operation in operations]


def _read_outputs(work: UnitOfWork, numbers: Collection[int]) -> dict[int, Result]:
    """The last Output entry's result, by invocation."""
    if not numbers:
        return {}
    rows = work.connection.execute(_OUTPUTS, {"numbers": list(numbers)})
    return {row.invocation: _parse_output(row.body) for row in rows}


def _parse_output(body: bytes) -> Result:
    # Without a variant it is an empty value.
    return get_result(pb.OutputEntryMessage.FromString(body)) or Value(value=b"")
