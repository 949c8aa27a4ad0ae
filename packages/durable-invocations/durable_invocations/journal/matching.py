"""Does an entry that a handler issues in a replay match the one that the journal records?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from durable_invocations.protocol import kinds
from durable_invocations.protocol.failures import JournalMismatchError
from durable_invocations.protocol.frames import Frame

_BESIDES: Mapping[int, tuple[str, ...]] = {
    kinds.INPUT.code: ("headers", "value", "name"),
    # The output that is recorded stands.
    kinds.OUTPUT.code: ("result", "name"),
    kinds.RUN.code: ("result",),
    # Times are of the first attempt, and headers may tell of the attempt.
    kinds.SLEEP.code: ("result", "name", "wake_up_time"),
    kinds.CALL.code: ("result", "name", "headers"),
    kinds.ONE_WAY_CALL.code: ("name", "headers", "invoke_time"),
}
"""Parts that may differ: the name identifies a Run alone."""
_SHOWN = (
    *("name", "key", "service_name", "handler_name", "id", "invocation_id", "call_entry_index"),
    *("idempotency_key",),
)


def check(index: int, issued: Frame | None, recorded: Frame, where: str = "") -> None:
    """Raise JournalMismatchError unless the entries are the same but for results and times.

    `issued` is None if the handler ended instead; `where` tells the handler's line.
    """
    if issued is not None and matches(issued, recorded):
        return
    at = f" at {where}" if where else ""
    found = "ends" if issued is None else f"issues {described(issued)}{_beside(issued, recorded)}"
    raise JournalMismatchError(
        f"Entry {index} of the journal is {described(recorded)}, but the handler {found}{at}. A "
        "handler must take the same steps in each attempt: restore the code that the invocation "
        "began with, or kill the invocation.",
        kind=recorded.code,
        name=recorded.name,
    )


def matches(issued: Frame, recorded: Frame) -> bool:
    """Raises ProtocolError for a malformed entry."""
    if issued.code != recorded.code:
        return False
    return issued.kind.custom or _identity(issued) == _identity(recorded)


def described(entry: Frame) -> str:
    """The entry for people: its type and what identifies it, as in `Call service_name='A'`."""
    if entry.kind.custom:
        return f"{entry.kind.name} 0x{entry.code:04X}"
    held = {each.name: value for each, value in entry.message().ListFields()}
    shown = [f"{name}={_short(held[name])}" for name in _SHOWN if held.get(name)]
    return " ".join((entry.kind.name, *shown))


def _beside(issued: Frame, recorded: Frame) -> str:
    """What differs where both are described alike; the values may be users' secrets."""
    if described(issued) != described(recorded):
        return ""
    one, other = (
        {part.name: value for part, value in _identity(each).ListFields()}
        for each in (issued, recorded)
    )
    names = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    return f" with another {' and '.join(names)}"


def _identity(entry: Frame) -> Any:
    message, kind = entry.message(), entry.kind
    for part in _BESIDES.get(kind.code, ("result", "name") if kind.completable else ("name",)):
        message.ClearField(part)
    return message


def _short(value: Any) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    return repr(text[:80] if isinstance(text, str) else text)
