"""Commits entries, each with its action; those without one in a single statement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from durable_invocations.protocol import kinds
from durable_invocations.protocol.failures import ProtocolError
from durable_invocations.protocol.frames import Frame
from durable_invocations.runtime.sql.entries import calls, promises, states, waiting
from durable_invocations.runtime.sql.entries.invocation import (
    WITHOUT_RESULT,
    CommittingInvocation,
    EntryAction,
    EntryOutcome,
    make_violation,
)
from durable_invocations.runtime.sql.lifecycle.stopping import CANCEL, update_invocation
from durable_invocations.runtime.sql.packing import pack_result, unpack_result
from durable_invocations.runtime.sql.tables import JOURNAL, JOURNAL_TABLE
from durable_invocations.runtime.sql.transaction import FENCED, UnitOfWork, is_fenced
from durable_invocations.runtime.store.operations import CommitEntry
from durable_invocations.runtime.store.outcomes import CommittedEntry, OperationRefusal
from sql_transactions.row_values import escape_nul

ACTIONS: Mapping[int, EntryAction] = {
    kinds.GET_STATE.code: states.require_key(states.get_value),
    kinds.GET_STATE_KEYS.code: states.require_key(states.get_keys),
    kinds.SET_STATE.code: states.require_key(states.set_value),
    kinds.CLEAR_STATE.code: states.require_key(states.clear),
    kinds.CLEAR_ALL_STATE.code: states.require_key(states.clear_all),
    kinds.GET_PROMISE.code: promises.require_workflow(promises.get),
    kinds.PEEK_PROMISE.code: promises.require_workflow(promises.peek),
    kinds.COMPLETE_PROMISE.code: promises.require_workflow(promises.complete),
    kinds.SLEEP.code: waiting.sleep,
    kinds.AWAKEABLE.code: waiting.awakeable,
    kinds.COMPLETE_AWAKEABLE.code: waiting.complete_awakeable,
    kinds.CALL.code: calls.call,
    kinds.ONE_WAY_CALL.code: calls.call_one_way,
    kinds.CANCEL_INVOCATION.code: calls.cancel,
    kinds.GET_CALL_INVOCATION_ID.code: calls.get_id,
    kinds.ATTACH_INVOCATION.code: calls.attach,
    kinds.GET_INVOCATION_OUTPUT.code: calls.output,
}
"""The actions of entries, by type; others are only stored."""

WAITING = frozenset(
    kind.code
    for kind in (
        *(kinds.SLEEP, kinds.CALL, kinds.AWAKEABLE),
        *(kinds.GET_PROMISE, kinds.ATTACH_INVOCATION),
    )
)
"""The types that wait: a cancellation reaches the handler through them."""

_STORED = sa.select(JOURNAL.code, JOURNAL.flags, JOURNAL.body, JOURNAL.result).where(
    JOURNAL.invocation == sa.bindparam("the_number"), JOURNAL.idx == sa.bindparam("index")
)


def commit(
    work: UnitOfWork, operations: Sequence[CommitEntry]
) -> list[CommittedEntry | OperationRefusal]:
    """See the operation; outcomes in their order."""
    return _EntryCommitter(work, operations).outcomes()


class _EntryCommitter:
    def __init__(self, work: UnitOfWork, operations: Sequence[CommitEntry]) -> None:
        self._work = work
        self._operations = operations
        self._heads = work.read_heads(operation.id for operation in operations)
        self._driven = {
            head.id: CommittingInvocation(
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

    def outcomes(self) -> list[CommittedEntry | OperationRefusal]:
        outcomes = [self._commit_entry(operation) for operation in self._operations]
        self._write_rows()
        return outcomes

    def _commit_entry(self, operation: CommitEntry) -> CommittedEntry | OperationRefusal:
        if is_fenced(self._heads.get(operation.id), operation.fence):
            return FENCED
        invocation = self._driven[operation.id]
        if operation.index < invocation.length:
            self._write_rows()
            return self._read_committed(invocation, operation)
        if operation.index > invocation.length:
            return make_violation(invocation, f"entry {operation.index} was sent instead.")
        try:
            acted = self._do_action(invocation, operation.frame)
            name = operation.frame.name
        except ProtocolError as error:
            return make_violation(invocation, str(error))
        if isinstance(acted, OperationRefusal):
            return acted
        self._rows.append(self._build_row(invocation, operation.frame, name, acted))
        invocation.length += 1
        return CommittedEntry(index=operation.index, result=acted.result)

    def _do_action(
        self, invocation: CommittingInvocation, frame: Frame
    ) -> EntryOutcome | OperationRefusal:
        kind = frame.kind
        if not kind.entry or kind is kinds.INPUT:
            return make_violation(invocation, f"{kind} is not an entry that a handler makes.")
        action = ACTIONS.get(frame.code)
        if action is None or frame.completed:
            return WITHOUT_RESULT
        message = frame.message()
        # Actions read the journal, and may complete its entries.
        self._write_rows()
        if invocation.canceled and frame.code in WAITING:
            update_invocation(self._work, invocation.number, canceled=False)
            invocation.canceled = False
            return EntryOutcome(result=CANCEL)
        acted = action(self._work, invocation, message)
        if frame.code == kinds.CANCEL_INVOCATION.code:
            self._refresh_canceled()
        return acted

    def _refresh_canceled(self) -> None:
        """A cancellation may concern other invocations of this transaction."""
        for head in self._work.read_heads(self._driven).values():
            self._driven[head.id].canceled = head.canceled

    def _read_committed(
        self, invocation: CommittingInvocation, operation: CommitEntry
    ) -> CommittedEntry | OperationRefusal:
        """The outcome of an entry that is already committed."""
        parameters = {"the_number": invocation.number, "index": operation.index}
        row = self._work.connection.execute(_STORED, parameters).one()
        frame = operation.frame
        if (row.code, row.flags, bytes(row.body)) != (frame.code, frame.flags, frame.body):
            return make_violation(invocation, f"another entry is committed at {operation.index}.")
        return CommittedEntry(index=operation.index, result=unpack_result(row.result))

    def _build_row(
        self, invocation: CommittingInvocation, frame: Frame, name: str, acted: EntryOutcome
    ) -> dict[str, Any]:
        now, completed = self._work.now, frame.completed or acted.result is not None
        return {
            "invocation": invocation.number,
            "idx": invocation.length,
            "code": frame.code,
            "flags": frame.flags,
            "name": escape_nul(name),
            "body": frame.body,
            "open": frame.kind.completable and not completed,
            "result": None if acted.result is None else pack_result(acted.result),
            "created": now,
            "completed_at": now if completed else None,
            "child": acted.child,
        }

    def _write_rows(self) -> None:
        """Write the entries that are stored together."""
        if self._rows:
            self._work.connection.execute(sa.insert(JOURNAL_TABLE), self._rows)
            self._rows = []
