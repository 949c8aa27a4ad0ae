"""Checks which entries a runtime may commit, from the entry itself."""

from __future__ import annotations

from collections.abc import Mapping

from durable_invocations.protocol import kinds
from durable_invocations.protocol.failures import ProtocolError
from durable_invocations.protocol.frames import Frame
from durable_invocations.protocol.versions import get_needed_version

_FILLED: Mapping[int, str] = {
    kinds.OUTPUT.code: "result",
    kinds.RUN.code: "result",
    kinds.COMPLETE_AWAKEABLE.code: "result",
    kinds.COMPLETE_PROMISE.code: "completion",
    kinds.CANCEL_INVOCATION.code: "target",
    kinds.ATTACH_INVOCATION.code: "target",
    kinds.GET_INVOCATION_OUTPUT.code: "target",
}
"""The part that each of these entries must have."""


def check(index: int, entry: Frame, version: int) -> None:
    """Raise ProtocolError unless a handler may send this entry in this version."""
    if entry.code == kinds.INPUT.code:
        raise ProtocolError(f"Entry {index} is an Input, which only the runtime makes.")
    if entry.kind.custom:
        _ = entry.name
        return
    message = entry.message()
    part = _FILLED.get(entry.code)
    if part is not None and message.WhichOneof(part) is None:
        raise ProtocolError(f"Entry {index}, {entry.kind}, has no {part}.")
    keyed = entry.code in kinds.CALLS
    if keyed and message.HasField("idempotency_key") > bool(message.idempotency_key):
        raise ProtocolError(f"Entry {index}, {entry.kind}, has an empty idempotency key.")
    if get_needed_version(entry) > version:
        raise ProtocolError(
            f"Entry {index}, {entry.kind}, needs version {get_needed_version(entry)} of the "
            f"protocol, and the stream has version {version}."
        )
