"""The custom entry that records which of several operations a handler chose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.message import DecodeError

from durable_invocations.protocol.failures import JournalMismatchError, ProtocolError
from durable_invocations.protocol.frames import Frame, make_custom_frame
from durable_invocations.protocol.kinds import COMBINATOR
from durable_invocations.protocol.pb.custom_pb2 import CombinatorEntryMessage
from durable_invocations.serving.attempts.operations import Operation


def make_choice_entry(*indexes: int) -> Frame:
    """The entry with the index of the operation that was done first."""
    message = CombinatorEntryMessage(completed_entries_order=indexes, name="select")
    return make_custom_frame(COMBINATOR, message, requires_ack=True)


def find_chosen(
    entry: Frame, index: int, operations: Sequence[Operation[Any]], where: str
) -> Operation[Any]:
    """The operation that the entry at `index` records, of those selected from at `where`.

    Raises ProtocolError unless it is one of them, and done.
    """
    chosen_index = _parse_choice(entry)
    for operation in operations:
        if operation.index == chosen_index and operation.done:
            return operation
    raise JournalMismatchError(
        f"Entry {index} of the journal chooses entry {chosen_index}, which is not done, or not "
        f"one of the operations of select() at {where}. A handler must take the same steps in each "
        "attempt: restore the code that the invocation began with, or kill the invocation."
    )


def _parse_choice(entry: Frame) -> int:
    message = CombinatorEntryMessage()
    try:
        message.ParseFromString(entry.body)
    except DecodeError as error:
        raise ProtocolError(f"The journal's choice cannot be parsed: {error}.") from error
    if not message.completed_entries_order:
        raise ProtocolError("The journal's choice chooses nothing.")
    return int(message.completed_entries_order[0])
