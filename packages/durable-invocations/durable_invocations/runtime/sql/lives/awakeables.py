"""Awakeables: completed by their ids, also before their entries are committed."""

from __future__ import annotations

import sqlalchemy as sa

from durable_invocations.errors import ConfigError
from durable_invocations.protocol import awakeables, ids, kinds
from durable_invocations.protocol.results import Result
from durable_invocations.runtime.sql.lives.completing import Place, complete
from durable_invocations.runtime.sql.packing import fields, result
from durable_invocations.runtime.sql.tables import EARLY, EARLY_RESULTS_TABLE, JOURNAL
from durable_invocations.runtime.sql.work import NOT_FOUND, Work
from durable_invocations.runtime.store.operations import CompleteAwakeable
from durable_invocations.runtime.store.outcomes import Done, Refused
from durable_invocations.runtime.store.views import Status
from sql_transactions.given import insert_into

AHEAD = 1_000
"""How many entries behind a journal's end an awakeable may be that is completed already."""


def complete_awakeable(work: Work, asked: CompleteAwakeable) -> Done | Refused:
    """See the operation."""
    try:
        raw, index = awakeables.parsed(asked.awakeable)
    except ConfigError as error:
        return Refused(code=NOT_FOUND, message=str(error))
    head = work.head(ids.shown(raw))
    if head is None or index >= head.length + AHEAD:
        return _unknown(asked.awakeable)
    place = (head.number, index)
    if index < head.length:
        code = sa.select(JOURNAL.code).where(JOURNAL.invocation == head.number)
        if work.connection.scalar(code.where(JOURNAL.idx == index)) != kinds.AWAKEABLE.code:
            return _unknown(asked.awakeable)
        return Done(changed=bool(complete(work, {place: asked.result})))
    if head.status == Status.COMPLETED:
        return _unknown(asked.awakeable)
    return Done(changed=_keep(work, place, asked.result))


def early(work: Work, place: Place) -> Result | None:
    """The result of an awakeable that was completed before its entry; it is given once."""
    mine = (EARLY.invocation == place[0], EARLY.idx == place[1])
    gone = sa.delete(EARLY_RESULTS_TABLE).where(*mine).returning(EARLY.result)
    return result(work.connection.scalar(gone))


def _keep(work: Work, place: Place, given: Result) -> bool:
    row = {"invocation": place[0], "idx": place[1], "result": fields(given)}
    insert = insert_into(work.connection.dialect, EARLY_RESULTS_TABLE).values(row)
    kept = insert.on_conflict_do_nothing().returning(EARLY.idx)
    return work.connection.scalar(kept) is not None


def _unknown(awakeable: str) -> Refused:
    return Refused(code=NOT_FOUND, message=f"There is no awakeable {awakeable!r}.")
