"""Which entries a runtime may commit, as far as an entry itself tells."""

from __future__ import annotations

from collections.abc import Mapping

from durable_invocations.protocol import kinds
from durable_invocations.protocol.failures import ProtocolError
from durable_invocations.protocol.frames import Frame
from durable_invocations.protocol.versions import needed

_FILLED: Mapping[int, str] = {
    kinds.OUTPUT.code: "result",
    kinds.RUN.code: "result",
    kinds.COMPLETE_AWAKEABLE.code: "result",
    kinds.COMPLETE_PROMISE.code: "completion",
    kinds.CANCEL_INVOCATION.code: "target",
    kinds.ATTACH_INVOCATION.code: "target",
    kinds.GET_INVOCATION_OUTPUT.code: "target",
}
"""Parts without which an entry says nothing."""


def check(index: int, entry: Frame, version: int) -> None:
    """Raise ProtocolError unless a handler may send this entry in this version."""
    if entry.code == kinds.INPUT.code:
        raise ProtocolError(f"Entry {index} is an Input, which the runtime alone makes.")
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
    if needed(entry) > version:
        raise ProtocolError(
            f"Entry {index}, {entry.kind}, is of version {needed(entry)} of the protocol, and the "
            f"stream of version {version}."
        )
