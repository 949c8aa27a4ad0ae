"""Awakeables: completed by their ids, even before their entries are committed."""

from __future__ import annotations

import sqlalchemy as sa

from durable_invocations.errors import ConfigError
from durable_invocations.protocol import awakeables, ids, kinds
from durable_invocations.protocol.results import Result
from durable_invocations.runtime.sql.lifecycle.completing import EntryId, complete
from durable_invocations.runtime.sql.packing import pack_result, unpack_result
from durable_invocations.runtime.sql.tables import EARLY, EARLY_RESULTS_TABLE, JOURNAL
from durable_invocations.runtime.sql.transaction import NOT_FOUND, UnitOfWork
from durable_invocations.runtime.store.operations import CompleteAwakeable
from durable_invocations.runtime.store.outcomes import ChangeOutcome, OperationRefusal
from durable_invocations.runtime.store.views import Status
from sql_transactions.row_values import make_insert

AHEAD = 1_000
"""How far beyond a journal's end an awakeable may be completed already, in entries."""


def complete_awakeable(
    work: UnitOfWork, operation: CompleteAwakeable
) -> ChangeOutcome | OperationRefusal:
    """See the operation."""
    try:
        raw, index = awakeables.parse_awakeable_id(operation.awakeable)
    except ConfigError as error:
        return OperationRefusal(code=NOT_FOUND, message=str(error))
    head = work.read_head(ids.format_id(raw))
    if head is None or index >= head.length + AHEAD:
        return _make_unknown(operation.awakeable)
    place = (head.number, index)
    if index < head.length:
        code = sa.select(JOURNAL.code).where(JOURNAL.invocation == head.number)
        if work.connection.scalar(code.where(JOURNAL.idx == index)) != kinds.AWAKEABLE.code:
            return _make_unknown(operation.awakeable)
        return ChangeOutcome(changed=bool(complete(work, {place: operation.result})))
    if head.status == Status.COMPLETED:
        return _make_unknown(operation.awakeable)
    return ChangeOutcome(changed=_keep_result(work, place, operation.result))


def take_early_result(work: UnitOfWork, place: EntryId) -> Result | None:
    """The result of an awakeable that was completed before its entry; returned once."""
    conditions = (EARLY.invocation == place[0], EARLY.idx == place[1])
    delete = sa.delete(EARLY_RESULTS_TABLE).where(*conditions).returning(EARLY.result)
    return unpack_result(work.connection.scalar(delete))


def _keep_result(work: UnitOfWork, place: EntryId, early_result: Result) -> bool:
    row = {"invocation": place[0], "idx": place[1], "result": pack_result(early_result)}
    insert = make_insert(work.connection.dialect, EARLY_RESULTS_TABLE).values(row)
    insert_once = insert.on_conflict_do_nothing().returning(EARLY.idx)
    return work.connection.scalar(insert_once) is not None


def _make_unknown(awakeable: str) -> OperationRefusal:
    return OperationRefusal(code=NOT_FOUND, message=f"There is no awakeable {awakeable!r}.")
