"""Entries are committed, each with what it does; those that do nothing in one statement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from durable_invocations.protocol import kinds
from durable_invocations.protocol.failures import ProtocolError
from durable_invocations.protocol.frames import Frame
from durable_invocations.runtime.sql.entries import calls, promises, states, waiting
from durable_invocations.runtime.sql.entries.driven import ACTED, Acted, Action, Driven, violation
from durable_invocations.runtime.sql.lives.stopping import CANCEL, change
from durable_invocations.runtime.sql.packing import fields, result
from durable_invocations.runtime.sql.tables import JOURNAL, JOURNAL_TABLE
from durable_invocations.runtime.sql.work import FENCED, Work, fenced
from durable_invocations.runtime.store.operations import Commit
from durable_invocations.runtime.store.outcomes import Committed, Refused
from sql_transactions.given import without_nul

ACTIONS: Mapping[int, Action] = {
    kinds.GET_STATE.code: states.keyed(states.get),
    kinds.GET_STATE_KEYS.code: states.keyed(states.get_keys),
    kinds.SET_STATE.code: states.keyed(states.put),
    kinds.CLEAR_STATE.code: states.keyed(states.clear),
    kinds.CLEAR_ALL_STATE.code: states.keyed(states.clear_all),
    kinds.GET_PROMISE.code: promises.of_workflow(promises.get),
    kinds.PEEK_PROMISE.code: promises.of_workflow(promises.peek),
    kinds.COMPLETE_PROMISE.code: promises.of_workflow(promises.complete),
    kinds.SLEEP.code: waiting.sleep,
    kinds.AWAKEABLE.code: waiting.awakeable,
    kinds.COMPLETE_AWAKEABLE.code: waiting.complete_awakeable,
    kinds.CALL.code: calls.call,
    kinds.ONE_WAY_CALL.code: calls.one_way_call,
    kinds.CANCEL_INVOCATION.code: calls.cancel,
    kinds.GET_CALL_INVOCATION_ID.code: calls.get_id,
    kinds.ATTACH_INVOCATION.code: calls.attach,
    kinds.GET_INVOCATION_OUTPUT.code: calls.output,
}
"""What entries do, by type; others are only stored."""

WAITING = frozenset(
    each.code
    for each in (
        *(kinds.SLEEP, kinds.CALL, kinds.AWAKEABLE),
        *(kinds.GET_PROMISE, kinds.ATTACH_INVOCATION),
    )
)
"""The types that wait for something, so that a cancellation reaches a handler through them."""

_STORED = sa.select(JOURNAL.code, JOURNAL.flags, JOURNAL.body, JOURNAL.result).where(
    JOURNAL.invocation == sa.bindparam("the_number"), JOURNAL.idx == sa.bindparam("index")
)


def commit(work: Work, asked: Sequence[Commit]) -> list[Committed | Refused]:
    """See the operation; in their order."""
    return _Committing(work, asked).outcomes()


class _Committing:
    def __init__(self, work: Work, asked: Sequence[Commit]) -> None:
        self._work = work
        self._asked = asked
        self._heads = work.heads(each.id for each in asked)
        self._driven = {
            head.id: Driven(
                number=head.number,
                id=head.id,
                service=head.service,
                key=head.key,
                length=head.length,
                canceled=head.canceled,
            )
            for head in self._heads.values()
        }
        self._rows: list[dict[str, Any]] = []

    def outcomes(self) -> list[Committed | Refused]:
        outcomes = [self._commit(each) for each in self._asked]
        self._flush()
        return outcomes

    def _commit(self, asked: Commit) -> Committed | Refused:
        if fenced(self._heads.get(asked.id), asked.fence):
            return FENCED
        driven = self._driven[asked.id]
        if asked.index < driven.length:
            self._flush()
            return self._again(driven, asked)
        if asked.index > driven.length:
            return violation(driven, f"entry {asked.index} came instead of it.")
        try:
            acted = self._act(driven, asked.frame)
            name = asked.frame.name
        except ProtocolError as error:
            return violation(driven, str(error))
        if isinstance(acted, Refused):
            return acted
        self._rows.append(self._row(driven, asked.frame, name, acted))
        driven.length += 1
        return Committed(index=asked.index, result=acted.result)

    def _act(self, driven: Driven, frame: Frame) -> Acted | Refused:
        kind = frame.kind
        if not kind.entry or kind is kinds.INPUT:
            return violation(driven, f"{kind} is no entry that a handler makes.")
        action = ACTIONS.get(frame.code)
        if action is None or frame.completed:
            return ACTED
        message = frame.message()
        # Actions look at the journal, and may complete entries of it.
        self._flush()
        if driven.canceled and frame.code in WAITING:
            change(self._work, driven.number, canceled=False)
            driven.canceled = False
            return Acted(result=CANCEL)
        acted = action(self._work, driven, message)
        if frame.code == kinds.CANCEL_INVOCATION.code:
            self._look_again()
        return acted

    def _look_again(self) -> None:
        """A cancellation may be of others whose entries are committed here."""
        for head in self._work.heads(self._driven).values():
            self._driven[head.id].canceled = head.canceled

    def _again(self, driven: Driven, asked: Commit) -> Committed | Refused:
        """The outcome of an entry that is committed already."""
        given = {"the_number": driven.number, "index": asked.index}
        row = self._work.connection.execute(_STORED, given).one()
        frame = asked.frame
        if (row.code, row.flags, bytes(row.body)) != (frame.code, frame.flags, frame.body):
            return violation(driven, f"another entry is committed at {asked.index}.")
        return Committed(index=asked.index, result=result(row.result))

    def _row(self, driven: Driven, frame: Frame, name: str, acted: Acted) -> dict[str, Any]:
        now, completed = self._work.now, frame.completed or acted.result is not None
        return {
            "invocation": driven.number,
            "idx": driven.length,
            "code": frame.code,
            "flags": frame.flags,
            "name": without_nul(name),
            "body": frame.body,
            "open": frame.kind.completable and not completed,
            "result": None if acted.result is None else fields(acted.result),
            "created": now,
            "completed_at": now if completed else None,
            "child": acted.child,
        }

    def _flush(self) -> None:
        """Write the entries that are stored together."""
        if self._rows:
            self._work.connection.execute(sa.insert(JOURNAL_TABLE), self._rows)
            self._rows = []
