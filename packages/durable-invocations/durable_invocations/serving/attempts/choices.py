"""The custom entry by which a handler's choice among several operations is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.message import DecodeError

from durable_invocations.protocol.failures import JournalMismatchError, ProtocolError
from durable_invocations.protocol.frames import Frame, custom
from durable_invocations.protocol.kinds import COMBINATOR
from durable_invocations.protocol.pb.custom_pb2 import CombinatorEntryMessage
from durable_invocations.serving.attempts.operations import Operation


def written(*chosen: int) -> Frame:
    """The entry that keeps the index of the operation that was done first."""
    message = CombinatorEntryMessage(completed_entries_order=chosen, name="select")
    return custom(COMBINATOR, message, requires_ack=True)


def chosen(
    entry: Frame, index: int, operations: Sequence[Operation[Any]], where: str
) -> Operation[Any]:
    """The operation that the entry at `index` keeps, of those offered at `where`.

    Raises ProtocolError for an entry that keeps none of them, done.
    """
    kept = _kept(entry)
    for each in operations:
        if each.index == kept and each.done:
            return each
    raise JournalMismatchError(
        f"Entry {index} of the journal chooses entry {kept}, which is not done, or is none of "
        f"the operations of select() at {where}. A handler must take the same steps in each "
        "attempt: restore the code that the invocation began with, or kill the invocation."
    )


def _kept(entry: Frame) -> int:
    message = CombinatorEntryMessage()
    try:
        message.ParseFromString(entry.body)
    except DecodeError as error:
        raise ProtocolError(f"The journal's choice cannot be parsed: {error}.") from error
    if not message.completed_entries_order:
        raise ProtocolError("The journal's choice chooses nothing.")
    return int(message.completed_entries_order[0])
