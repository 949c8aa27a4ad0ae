"""Entries about the state of a keyed service."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from durable_invocations.protocol.results import EMPTY, Value, make_keys_value
from durable_invocations.runtime.sql.entries.invocation import (
    WITHOUT_RESULT,
    CommittingInvocation,
    EntryAction,
    EntryOutcome,
    make_violation,
)
from durable_invocations.runtime.sql.tables import SERVICE_STATE_TABLE, STATE
from durable_invocations.runtime.sql.transaction import LONGEST, UnitOfWork
from durable_invocations.runtime.store.outcomes import OperationRefusal
from sql_transactions.row_values import make_insert

_OF = (STATE.service == sa.bindparam("of"), STATE.key == sa.bindparam("at"))
_NAMED = STATE.name == sa.bindparam("named")
_VALUE = sa.select(STATE.value).where(*_OF, _NAMED)
_NAMES = sa.select(STATE.name).where(*_OF).order_by(STATE.name)
_CLEAR = sa.delete(SERVICE_STATE_TABLE).where(*_OF, _NAMED)
_CLEAR_ALL = sa.delete(SERVICE_STATE_TABLE).where(*_OF)


def require_key(action: EntryAction) -> EntryAction:
    """The action, refused for services without keys, which have no state."""

    def do_action(
        work: UnitOfWork, invocation: CommittingInvocation, message: Any
    ) -> EntryOutcome | OperationRefusal:
        if not invocation.key:
            return make_violation(invocation, "it was invoked without a key, so it has no state.")
        if len(getattr(message, "key", b"")) > LONGEST:
            return make_violation(invocation, f"a state's name is longer than {LONGEST:,} bytes.")
        return action(work, invocation, message)

    return do_action


def get_value(work: UnitOfWork, invocation: CommittingInvocation, message: Any) -> EntryOutcome:
    """Complete a GetState at once."""
    value = work.connection.scalar(_VALUE, _bind_key(invocation) | {"named": message.key})
    return EntryOutcome(result=EMPTY if value is None else Value(value=value))


def get_keys(work: UnitOfWork, invocation: CommittingInvocation, _message: Any) -> EntryOutcome:
    """Complete a GetStateKeys at once; keys in byte order."""
    names = work.connection.scalars(_NAMES, _bind_key(invocation))
    return EntryOutcome(result=make_keys_value([bytes(name) for name in names]))


def set_value(work: UnitOfWork, invocation: CommittingInvocation, message: Any) -> EntryOutcome:
    """Do a SetState."""
    row = {"service": invocation.service, "key": invocation.key, "name": message.key}
    insert = make_insert(work.connection.dialect, SERVICE_STATE_TABLE)
    upsert = insert.on_conflict_do_update(
        index_elements=[STATE.service, STATE.key, STATE.name], set_={"value": insert.excluded.value}
    )
    work.connection.execute(upsert, row | {"value": message.value})
    return WITHOUT_RESULT


def clear(work: UnitOfWork, invocation: CommittingInvocation, message: Any) -> EntryOutcome:
    """Do a ClearState."""
    work.connection.execute(_CLEAR, _bind_key(invocation) | {"named": message.key})
    return WITHOUT_RESULT


def clear_all(work: UnitOfWork, invocation: CommittingInvocation, _message: Any) -> EntryOutcome:
    """Do a ClearAllState."""
    work.connection.execute(_CLEAR_ALL, _bind_key(invocation))
    return WITHOUT_RESULT


def _bind_key(invocation: CommittingInvocation) -> dict[str, Any]:
    return {"of": invocation.service, "at": invocation.key}
