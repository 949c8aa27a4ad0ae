"""Entries on the state of a keyed service."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from durable_invocations.protocol.results import EMPTY, Value, keys_value
from durable_invocations.runtime.sql.entries.driven import ACTED, Acted, Action, Driven, violation
from durable_invocations.runtime.sql.tables import SERVICE_STATE_TABLE, STATE
from durable_invocations.runtime.sql.work import LONGEST, Work
from durable_invocations.runtime.store.outcomes import Refused
from sql_transactions.given import insert_into

_OF = (STATE.service == sa.bindparam("of"), STATE.key == sa.bindparam("at"))
_NAMED = STATE.name == sa.bindparam("named")
_VALUE = sa.select(STATE.value).where(*_OF, _NAMED)
_NAMES = sa.select(STATE.name).where(*_OF).order_by(STATE.name)
_CLEAR = sa.delete(SERVICE_STATE_TABLE).where(*_OF, _NAMED)
_CLEAR_ALL = sa.delete(SERVICE_STATE_TABLE).where(*_OF)


def keyed(action: Action) -> Action:
    """The action, refused for a service without keys, which has no state."""

    def act(work: Work, driven: Driven, message: Any) -> Acted | Refused:
        if not driven.key:
            return violation(driven, "it was invoked without a key, hence it has no state.")
        if len(getattr(message, "key", b"")) > LONGEST:
            return violation(driven, f"the name of a state is longer than {LONGEST:,} bytes.")
        return action(work, driven, message)

    return act


def get(work: Work, driven: Driven, message: Any) -> Acted:
    """Complete a GetState at once."""
    value = work.connection.scalar(_VALUE, _of(driven) | {"named": message.key})
    return Acted(result=EMPTY if value is None else Value(value=value))


def get_keys(work: Work, driven: Driven, _message: Any) -> Acted:
    """Complete a GetStateKeys at once; in the order of their bytes."""
    names = work.connection.scalars(_NAMES, _of(driven))
    return Acted(result=keys_value([bytes(each) for each in names]))


def put(work: Work, driven: Driven, message: Any) -> Acted:
    """Do a SetState."""
    row = {"service": driven.service, "key": driven.key, "name": message.key}
    insert = insert_into(work.connection.dialect, SERVICE_STATE_TABLE)
    whole = insert.on_conflict_do_update(
        index_elements=[STATE.service, STATE.key, STATE.name], set_={"value": insert.excluded.value}
    )
    work.connection.execute(whole, row | {"value": message.value})
    return ACTED


def clear(work: Work, driven: Driven, message: Any) -> Acted:
    """Do a ClearState."""
    work.connection.execute(_CLEAR, _of(driven) | {"named": message.key})
    return ACTED


def clear_all(work: Work, driven: Driven, _message: Any) -> Acted:
    """Do a ClearAllState."""
    work.connection.execute(_CLEAR_ALL, _of(driven))
    return ACTED


def _of(driven: Driven) -> dict[str, Any]:
    return {"of": driven.service, "at": driven.key}
