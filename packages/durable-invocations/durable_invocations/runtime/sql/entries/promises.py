"""Entries on the promises of a workflow's key."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from durable_invocations.protocol.failures import Failure
from durable_invocations.protocol.results import EMPTY, Result, Value
from durable_invocations.protocol.services import ServiceKind
from durable_invocations.runtime.sql.entries.driven import Acted, Action, Driven, violation
from durable_invocations.runtime.sql.lives.completing import complete_waiting, wait
from durable_invocations.runtime.sql.packing import fields, promise, result
from durable_invocations.runtime.sql.services import learn
from durable_invocations.runtime.sql.tables import PROMISES, PROMISES_TABLE
from durable_invocations.runtime.sql.work import CONFLICT, LONGEST, Work
from durable_invocations.runtime.store.outcomes import Refused
from sql_transactions.given import insert_into

_RESULT = sa.select(PROMISES.result).where(
    PROMISES.service == sa.bindparam("of"),
    PROMISES.key == sa.bindparam("at"),
    PROMISES.name == sa.bindparam("named"),
)


def of_workflow(action: Action) -> Action:
    """The action, refused for a service that is no workflow, which has no promises."""

    def act(work: Work, driven: Driven, message: Any) -> Acted | Refused:
        learn(work, [driven.service])
        held = work.services[driven.service]
        if not driven.key or (held is not None and held.kind is not ServiceKind.WORKFLOW):
            return violation(driven, f"{driven.service!r} is no workflow, hence has no promises.")
        if "\0" in message.key or len(message.key.encode()) > LONGEST:
            what = f"a promise's name has a NUL in it, or is longer than {LONGEST:,} bytes."
            return violation(driven, what)
        return action(work, driven, message)

    return act


def get(work: Work, driven: Driven, message: Any) -> Acted:
    """Complete a GetPromise, now or when the promise is completed."""
    held = _held(work, driven, message.key)
    if held is None:
        wait(work, _target(driven, message.key), (driven.number, driven.length))
    return Acted(result=held)


def peek(work: Work, driven: Driven, message: Any) -> Acted:
    """Complete a PeekPromise now."""
    return Acted(result=_held(work, driven, message.key) or EMPTY)


def complete(work: Work, driven: Driven, message: Any) -> Acted | Refused:
    """Do a CompletePromise: it is empty the first time, else a failure."""
    given = _given(message)
    if given is None:
        return violation(driven, "it completes a promise with neither a value nor a failure.")
    row = {"service": driven.service, "key": driven.key, "name": message.key}
    insert = insert_into(work.connection.dialect, PROMISES_TABLE)
    first = insert.on_conflict_do_nothing().returning(PROMISES.name)
    if work.connection.scalar(first.values(row | {"result": fields(given)})) is None:
        text = f"The promise {message.key!r} was completed already."
        return Acted(result=Failure(code=CONFLICT, message=text))
    complete_waiting(work, {_target(driven, message.key): given})
    return Acted(result=EMPTY)


def _given(message: Any) -> Result | None:
    variant = message.WhichOneof("completion")
    if variant == "completion_value":
        return Value(value=message.completion_value)
    return Failure.read(message.completion_failure) if variant else None


def _held(work: Work, driven: Driven, name: str) -> Result | None:
    of = {"of": driven.service, "at": driven.key, "named": name}
    return result(work.connection.scalar(_RESULT, of))


def _target(driven: Driven, name: str) -> str:
    return promise(driven.service, driven.key, name)
