"""Invocations, entries and deployments as JSON, for HTTP and for commands."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

from google.protobuf.message import Message

from durable_invocations.errors import ConfigError
from durable_invocations.protocol import ids, kinds
from durable_invocations.protocol.awakeables import make_awakeable_id
from durable_invocations.protocol.failures import ErrorReport, Failure
from durable_invocations.protocol.frames import ONEOF
from durable_invocations.protocol.results import Result, Value, get_result, parse_state_keys
from durable_invocations.protocol.wire import RESULT
from durable_invocations.runtime.store.deployments import Deployment, RegisteredService
from durable_invocations.runtime.store.views import (
    Invocation,
    InvocationFilter,
    JournalEntry,
    Status,
    format_target,
)

FAILED = "failed"
"""The status, for people, of a completed invocation that ended with a failure."""
STATUSES = f"{', '.join(status.label for status in Status)} or {FAILED}"
SHOWN = 2_000
"""Characters of a value; the rest is cut."""
_LAST = 253_402_300_799_000
"""The last second of the year 9999, in milliseconds; handlers may sleep for longer."""
_TIMES = {"wake_up_time", "invoke_time"}
_NOT_TOLD = {"name", "headers"}
_FAILURES = {kinds.RUN.code, kinds.OUTPUT.code}


def describe_invocation(record: Invocation) -> dict[str, Any]:
    """An invocation without its journal; times are UTC, in ISO 8601."""
    return {
        "id": record.id,
        "number": record.number,
        "target": format_target(record.service, record.key, record.handler),
        "service": record.service,
        "handler": record.handler,
        "key": record.key or None,
        "status": record.status.label,
        "created": format_time(record.created),
        "changed": format_time(record.changed),
        "ended": format_time(record.ended),
        "next_at": format_time(record.next_at),
        "attempts": record.attempts,
        "entries": record.entries,
        "waits_for": list(record.waits),
        "idempotency_key": record.idempotency_key,
        "deployment": record.deployment or None,
        "called_by": record.parent or None,
        "canceled": record.canceled,
        "driven_by": record.owner or None,
        "error": _describe_error(record.error, record.error_at),
        "result": describe_result(record.result),
    }


def describe_with_journal(record: Invocation, journal: Iterable[JournalEntry]) -> dict[str, Any]:
    """An invocation with its journal and the full description of its last failure."""
    described = describe_invocation(record)
    if record.error is not None and record.error.description:
        described["error"]["description"] = record.error.description
    return described | {"journal": [describe_entry(record.id, entry) for entry in journal]}


def describe_entry(invocation_id: str, entry: JournalEntry) -> dict[str, Any]:
    """An entry of a journal: its kind, state, detail and result."""
    kind = entry.frame.kind
    message = None if kind.message is None else entry.frame.message()
    outcome = _get_result(kind, message)
    detail = {} if message is None else _describe_detail(message)
    if kind is kinds.AWAKEABLE:
        detail["id"] = make_awakeable_id(ids.parse_id(invocation_id), entry.index)
    if entry.child:
        detail["invocation"] = entry.child
    return {
        "index": entry.index,
        "type": kind.name,
        "code": f"0x{kind.code:04X}",
        "name": entry.name or None,
        "state": _get_state(kind, outcome),
        "stored": format_time(entry.created),
        "completed": format_time(entry.completed_at),
        "detail": detail,
        "result": _describe_keys(outcome)
        if kind is kinds.GET_STATE_KEYS
        else describe_result(outcome),
    }


def describe_result(outcome: Result | None) -> dict[str, Any] | None:
    """A value, a failure or emptiness; None if there is no result yet."""
    if outcome is None:
        return None
    if isinstance(outcome, Failure):
        return {"failure": {"code": outcome.code, "message": outcome.message}}
    if isinstance(outcome, Value):
        return {"value": format_bytes(outcome.value), "bytes": len(outcome.value)}
    return {"empty": True}


def describe_deployment(
    record: Deployment, services: Iterable[RegisteredService]
) -> dict[str, Any]:
    """A registered address and the services whose new invocations go to it."""
    return {
        "id": record.id,
        "uri": record.url,
        "mode": record.mode.value,
        "versions": list(record.versions),
        "registered": format_time(record.registered),
        "services": [
            describe_service(service, record.url)
            for service in services
            if service.deployment == record.id
        ],
    }


def describe_service(service: RegisteredService, uri: str | None) -> dict[str, Any]:
    """A service with its handlers, and the address that its new invocations go to."""
    return {
        "name": service.name,
        "ty": service.kind.value,
        "deployment": service.deployment,
        "uri": uri,
        "handlers": [
            {"name": handler.name, "ty": handler.kind.value} for handler in service.handlers
        ],
    }


def parse_status(label: str) -> InvocationFilter:
    """The filter for a status by its label. Raises ConfigError for an unknown one."""
    name = label.replace("_", " ").lower()
    if name == FAILED:
        return InvocationFilter(failed=True)
    statuses = [status for status in Status if status.label == name]
    if not statuses:
        raise ConfigError(f"The status {label!r} is unknown; use one of {STATUSES}.")
    return InvocationFilter(statuses=statuses)


def format_time(at: int | None) -> str | None:
    """Milliseconds since 1970 as ISO 8601 in UTC; capped at the end of 9999."""
    if at is None:
        return None
    moment = datetime.fromtimestamp(min(at, _LAST) / 1_000, timezone.utc)
    return moment.isoformat(timespec="milliseconds")


def format_bytes(value: bytes) -> str:
    """Bytes as text, cut if they are long; as hexadecimal digits if they are not UTF-8."""
    try:
        rendered = value.decode()
    except UnicodeDecodeError:
        rendered = f"0x{value[: SHOWN // 2].hex()}"
    return rendered if len(rendered) <= SHOWN else f"{rendered[:SHOWN]}…"


def _describe_error(error: ErrorReport | None, at: int | None) -> dict[str, Any] | None:
    if error is None:
        return None
    of_entry = {"index": error.index, "type": _format_type(error.kind), "name": error.name}
    fields = {"code": error.code, "message": error.message, "at": format_time(at)}
    return {**fields, **{name: value for name, value in of_entry.items() if value is not None}}


def _format_type(code: int | None) -> str | None:
    """The type of the entry that an error names; handlers may name unknown types."""
    if code is None:
        return None
    return kinds.KINDS[code].name if code in kinds.KINDS else f"0x{code:04X}"


def _get_result(kind: kinds.Kind, message: Any) -> Result | None:
    if kind is kinds.INPUT:
        return Value(value=message.value)
    has_result = message is not None and ONEOF in message.DESCRIPTOR.oneofs_by_name
    return get_result(message) if has_result else None


def _get_state(kind: kinds.Kind, outcome: Result | None) -> str:
    if isinstance(outcome, Failure) and (kind.completable or kind.code in _FAILURES):
        return "failed"
    if kind.completable:
        return "waiting" if outcome is None else "completed"
    return "stored"


def _describe_keys(outcome: Result | None) -> dict[str, Any] | None:
    if isinstance(outcome, Value):
        return {"keys": [format_bytes(key) for key in parse_state_keys(outcome.value)]}
    return describe_result(outcome)


def _describe_detail(message: Message) -> dict[str, Any]:
    """What identifies the entry: its fields except name, headers and result."""
    return {
        field.name: _describe_value(field.name, value)
        for field, value in message.ListFields()
        if field.name not in _NOT_TOLD and field.number not in RESULT
    }


def _describe_value(name: str, value: Any) -> Any:
    if isinstance(value, Message):
        return {
            field.name: _describe_value(field.name, field_value)
            for field, field_value in value.ListFields()
        }
    if isinstance(value, bytes):
        return format_bytes(value)
    return format_time(value) if name in _TIMES else value
