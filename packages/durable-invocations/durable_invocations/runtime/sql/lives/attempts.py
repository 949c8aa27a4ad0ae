"""Attempts that end: with an error, or with an output."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from durable_invocations.protocol import kinds
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.protocol.results import Result, Value, result_of
from durable_invocations.runtime.sql.lives.ending import end
from durable_invocations.runtime.sql.lives.stopping import change, end_canceled, failed
from durable_invocations.runtime.sql.packing import report
from durable_invocations.runtime.sql.tables import JOURNAL
from durable_invocations.runtime.sql.work import FENCED, VIOLATION, Work, fenced
from durable_invocations.runtime.store.operations import Fail, Finish
from durable_invocations.runtime.store.outcomes import Done, Refused
from durable_invocations.runtime.store.views import Status

_OUTPUTS = (
    sa.select(JOURNAL.invocation, JOURNAL.body)
    .where(JOURNAL.invocation.in_(sa.bindparam("numbers", expanding=True)))
    .where(JOURNAL.code == kinds.OUTPUT.code)
    .order_by(JOURNAL.invocation, JOURNAL.idx)
)


def fail(work: Work, asked: Fail) -> Done | Refused:
    """See the operation."""
    head = work.head(asked.id)
    if head is None or fenced(head, asked.fence):
        return FENCED
    if head.canceled:
        end_canceled(work, head)
        return Done()
    at_once = asked.next_at <= work.now
    change(
        work,
        head.number,
        status=int(Status.READY if at_once else Status.BACKING_OFF),
        owner=None,
        waits=None,
        next_at=None if at_once else asked.next_at,
        error=report(asked.error),
        error_at=work.now,
        **failed(head),
    )
    if at_once:
        work.ready = True
    else:
        work.due(asked.next_at)
    return Done()


def finish(work: Work, asked: Sequence[Finish]) -> list[Done | Refused]:
    """See the operation."""
    heads = work.heads(each.id for each in asked)
    mine = {each.id: heads[each.id] for each in asked if not fenced(heads.get(each.id), each.fence)}
    outputs = _outputs(work, [head.number for head in mine.values()])
    ends = [(head, outputs[head.number]) for head in mine.values() if head.number in outputs]
    end(work, ends)
    outcomes: dict[str, Done | Refused] = {
        id_: Refused(code=VIOLATION, message=f"{id_} ends without an Output entry.") for id_ in mine
    }
    outcomes |= {head.id: Done() for head, _ in ends}
    return [outcomes.get(each.id, FENCED) for each in asked]


def _outputs(work: Work, numbers: Collection[int]) -> dict[int, Result]:
    """The last Output entry's result, by invocation."""
    if not numbers:
        return {}
    rows = work.connection.execute(_OUTPUTS, {"numbers": list(numbers)})
    return {row.invocation: _output(row.body) for row in rows}


def _output(body: bytes) -> Result:
    # Without a variant it is a value of no bytes.
    return result_of(pb.OutputEntryMessage.FromString(body)) or Value(value=b"")
