"""What is told of invocations, entries and deployments, as JSON; for HTTP and for commands."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

from google.protobuf.message import Message

from durable_invocations.errors import ConfigError
from durable_invocations.protocol import ids, kinds
from durable_invocations.protocol.awakeables import awakeable_id
from durable_invocations.protocol.failures import ErrorReport, Failure
from durable_invocations.protocol.frames import ONEOF
from durable_invocations.protocol.results import Result, Value, result_of, state_keys
from durable_invocations.protocol.wire import RESULT
from durable_invocations.runtime.store.deployments import Deployment, Service
from durable_invocations.runtime.store.views import Chosen, Invocation, JournalEntry, Status, target

FAILED = "failed"
"""What people call the status of a completed one that ended with a failure."""
STATUSES = f"{', '.join(each.label for each in Status)} or {FAILED}"
SHOWN = 2_000
"""Characters of a value; more are left out."""
_LAST = 253_402_300_799_000
"""Milliseconds of the last second that a date has; handlers may sleep for longer."""
_TIMES = {"wake_up_time", "invoke_time"}
_NOT_TOLD = {"name", "headers"}
_FAILURES = {kinds.RUN.code, kinds.OUTPUT.code}


def invocation(each: Invocation) -> dict[str, Any]:
    """An invocation without its journal; times are UTC, in ISO 8601."""
    return {
        "id": each.id,
        "number": each.number,
        "target": target(each.service, each.key, each.handler),
        "service": each.service,
        "handler": each.handler,
        "key": each.key or None,
        "status": each.status.label,
        "created": time(each.created),
        "changed": time(each.changed),
        "ended": time(each.ended),
        "next_at": time(each.next_at),
        "attempts": each.attempts,
        "entries": each.entries,
        "waits_for": list(each.waits),
        "idempotency_key": each.idempotency_key,
        "deployment": each.deployment or None,
        "called_by": each.parent or None,
        "canceled": each.canceled,
        "driven_by": each.owner or None,
        "error": _error(each.error, each.error_at),
        "result": result(each.result),
    }


def whole(each: Invocation, journal: Iterable[JournalEntry]) -> dict[str, Any]:
    """An invocation with its journal, and all that was said of its last failure."""
    told = invocation(each)
    if each.error is not None and each.error.description:
        told["error"]["description"] = each.error.description
    return told | {"journal": [entry(each.id, its) for its in journal]}


def entry(invocation_id: str, each: JournalEntry) -> dict[str, Any]:
    """An entry of a journal: its kind, its state, what it says and what it came to."""
    kind = each.frame.kind
    message = None if kind.message is None else each.frame.message()
    found = _result(kind, message)
    detail = {} if message is None else _detail(message)
    if kind is kinds.AWAKEABLE:
        detail["id"] = awakeable_id(ids.parsed(invocation_id), each.index)
    if each.child:
        detail["invocation"] = each.child
    return {
        "index": each.index,
        "type": kind.name,
        "code": f"0x{kind.code:04X}",
        "name": each.name or None,
        "state": _state(kind, found),
        "stored": time(each.created),
        "completed": time(each.completed_at),
        "detail": detail,
        "result": _keys(found) if kind is kinds.GET_STATE_KEYS else result(found),
    }


def result(found: Result | None) -> dict[str, Any] | None:
    """A value, a failure or emptiness; None: not there yet."""
    if found is None:
        return None
    if isinstance(found, Failure):
        return {"failure": {"code": found.code, "message": found.message}}
    if isinstance(found, Value):
        return {"value": text(found.value), "bytes": len(found.value)}
    return {"empty": True}


def deployment(each: Deployment, services: Iterable[Service]) -> dict[str, Any]:
    """A registered address, and the services whose new invocations go to it."""
    return {
        "id": each.id,
        "uri": each.url,
        "mode": each.mode.value,
        "versions": list(each.versions),
        "registered": time(each.registered),
        "services": [service(its, each.url) for its in services if its.deployment == each.id],
    }


def service(each: Service, uri: str | None) -> dict[str, Any]:
    """A service with its handlers, and the address that new invocations of it go to."""
    return {
        "name": each.name,
        "ty": each.kind.value,
        "deployment": each.deployment,
        "uri": uri,
        "handlers": [{"name": its.name, "ty": its.kind.value} for its in each.handlers],
    }


def named(label: str) -> Chosen:
    """The invocations of the status that people call so. Raises ConfigError if there is none."""
    wanted = label.replace("_", " ").lower()
    if wanted == FAILED:
        return Chosen(failed=True)
    found = [each for each in Status if each.label == wanted]
    if not found:
        raise ConfigError(f"The status {label!r} is unknown; use one of {STATUSES}.")
    return Chosen(statuses=found)


def time(at: int | None) -> str | None:
    """Milliseconds since 1970 as ISO 8601 in UTC; later ones than 9999 are its last second."""
    if at is None:
        return None
    told = datetime.fromtimestamp(min(at, _LAST) / 1_000, timezone.utc)
    return told.isoformat(timespec="milliseconds")


def text(value: bytes) -> str:
    """Bytes as text, their beginning if they are long; others than UTF-8 in hexadecimal digits."""
    try:
        told = value.decode()
    except UnicodeDecodeError:
        told = f"0x{value[: SHOWN // 2].hex()}"
    return told if len(told) <= SHOWN else f"{told[:SHOWN]}…"


def _error(found: ErrorReport | None, at: int | None) -> dict[str, Any] | None:
    if found is None:
        return None
    of_entry = {"index": found.index, "type": _type(found.kind), "name": found.name}
    told = {"code": found.code, "message": found.message, "at": time(at)}
    return {**told, **{name: value for name, value in of_entry.items() if value is not None}}


def _type(code: int | None) -> str | None:
    """The type of the entry that an error names; handlers may name others than there are."""
    if code is None:
        return None
    return kinds.KINDS[code].name if code in kinds.KINDS else f"0x{code:04X}"


def _result(kind: kinds.Kind, message: Any) -> Result | None:
    if kind is kinds.INPUT:
        return Value(value=message.value)
    held = message is not None and ONEOF in message.DESCRIPTOR.oneofs_by_name
    return result_of(message) if held else None


def _state(kind: kinds.Kind, found: Result | None) -> str:
    if isinstance(found, Failure) and (kind.completable or kind.code in _FAILURES):
        return "failed"
    if kind.completable:
        return "waiting" if found is None else "completed"
    return "stored"


def _keys(found: Result | None) -> dict[str, Any] | None:
    if isinstance(found, Value):
        return {"keys": [text(each) for each in state_keys(found.value)]}
    return result(found)


def _detail(message: Message) -> dict[str, Any]:
    """What identifies the entry: its fields but name, headers and result."""
    return {
        field.name: _told(field.name, value)
        for field, value in message.ListFields()
        if field.name not in _NOT_TOLD and field.number not in RESULT
    }


def _told(name: str, value: Any) -> Any:
    if isinstance(value, Message):
        return {field.name: _told(field.name, its) for field, its in value.ListFields()}
    if isinstance(value, bytes):
        return text(value)
    return time(value) if name in _TIMES else value
