"""Checks that an entry issued in a replay matches the recorded one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from durable_invocations.protocol import kinds
from durable_invocations.protocol.failures import JournalMismatchError
from durable_invocations.protocol.frames import Frame

_BESIDES: Mapping[int, tuple[str, ...]] = {
    kinds.INPUT.code: ("headers", "value", "name"),
    # The recorded output stands.
    kinds.OUTPUT.code: ("result", "name"),
    kinds.RUN.code: ("result",),
    # Times are those of the first attempt, and headers may depend on the attempt.
    kinds.SLEEP.code: ("result", "name", "wake_up_time"),
    kinds.CALL.code: ("result", "name", "headers"),
    kinds.ONE_WAY_CALL.code: ("name", "headers", "invoke_time"),
}
"""Parts that may differ: only a Run is identified by its name."""
_SHOWN = (
    *("name", "key", "service_name", "handler_name", "id", "invocation_id", "call_entry_index"),
    *("idempotency_key",),
)


def check(index: int, issued: Frame | None, recorded: Frame, where: str = "") -> None:
    """Raise JournalMismatchError unless the entries are equal except for results and times.

    `issued` is None if the handler ended instead; `where` is the handler's line.
    """
    if issued is not None and matches(issued, recorded):
        return
    at = f" at {where}" if where else ""
    action = (
        "ends"
        if issued is None
        else f"issues {describe_entry(issued)}{_describe_difference(issued, recorded)}"
    )
    raise JournalMismatchError(
        f"Entry {index} of the journal is {describe_entry(recorded)}, but the handler "
        f"{action}{at}. A handler must take the same steps in each attempt: restore the code that "
        "the invocation began with, or kill the invocation.",
        kind=recorded.code,
        name=recorded.name,
    )


def matches(issued: Frame, recorded: Frame) -> bool:
    """Raises ProtocolError for a malformed entry."""
    if issued.code != recorded.code:
        return False
    return issued.kind.custom or _get_identity(issued) == _get_identity(recorded)


def describe_entry(entry: Frame) -> str:
    """The entry for people: its type and what identifies it, as in `Call service_name='A'`."""
    if entry.kind.custom:
        return f"{entry.kind.name} 0x{entry.code:04X}"
    fields = {field.name: value for field, value in entry.message().ListFields()}
    described = [f"{name}={_format_value(fields[name])}" for name in _SHOWN if fields.get(name)]
    return " ".join((entry.kind.name, *described))


def _describe_difference(issued: Frame, recorded: Frame) -> str:
    """The fields that differ if both descriptions are equal; values may be secrets."""
    if describe_entry(issued) != describe_entry(recorded):
        return ""
    issued_fields, recorded_fields = (
        {field.name: value for field, value in _get_identity(entry).ListFields()}
        for entry in (issued, recorded)
    )
    names = sorted(
        name
        for name in issued_fields.keys() | recorded_fields.keys()
        if issued_fields.get(name) != recorded_fields.get(name)
    )
    return f" with another {' and '.join(names)}"


def _get_identity(entry: Frame) -> Any:
    message, kind = entry.message(), entry.kind
    for part in _BESIDES.get(kind.code, ("result", "name") if kind.completable else ("name",)):
        message.ClearField(part)
    return message


def _format_value(value: Any) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    return repr(text[:80] if isinstance(text, str) else text)
