"""The types of messages. docs/invocation-protocol.md shows this table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from google.protobuf.message import Message

from durable_invocations.protocol.failures import ProtocolError
from durable_invocations.protocol.pb import protocol_pb2 as pb

CUSTOM = 0xFC00
"""The lowest type of custom entries."""
HIGHEST = 0xFFFF
COMBINATOR = 0xFC02
"""The custom entry of this package: which results came first (pb/custom.proto)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A type of message. `message` is its class; None for custom entries, which stay bytes.

    `completable` entries get a result from the runtime, `fallible` ones may be refused by it.
    `since` is the first protocol version that has the type.
    """

    code: int
    name: str
    message: type[Message] | None
    entry: bool = True
    completable: bool = False
    fallible: bool = False
    since: int = 1

    @property
    def custom(self) -> bool:
        return self.code >= CUSTOM

    def __str__(self) -> str:
        return f"{self.name} (0x{self.code:04X})"


def _make_core(code: int, message: type[Message]) -> Kind:
    name = message.DESCRIPTOR.name.removesuffix("Message")
    return Kind(code=code, name=name, message=message, entry=False)


def _make_entry(
    code: int,
    message: type[Message],
    *,
    completable: bool = False,
    fallible: bool = False,
    since: int = 1,
) -> Kind:
    return Kind(
        code=code,
        name=message.DESCRIPTOR.name.removesuffix("EntryMessage"),
        message=message,
        completable=completable,
        fallible=fallible,
        since=since,
    )


START = _make_core(0x0000, pb.StartMessage)
COMPLETION = _make_core(0x0001, pb.CompletionMessage)
SUSPENSION = _make_core(0x0002, pb.SuspensionMessage)
ERROR = _make_core(0x0003, pb.ErrorMessage)
ENTRY_ACK = _make_core(0x0004, pb.EntryAckMessage)
END = _make_core(0x0005, pb.EndMessage)

INPUT = _make_entry(0x0400, pb.InputEntryMessage)
OUTPUT = _make_entry(0x0401, pb.OutputEntryMessage)

GET_STATE = _make_entry(0x0800, pb.GetStateEntryMessage, completable=True)
SET_STATE = _make_entry(0x0801, pb.SetStateEntryMessage)
CLEAR_STATE = _make_entry(0x0802, pb.ClearStateEntryMessage)
CLEAR_ALL_STATE = _make_entry(0x0803, pb.ClearAllStateEntryMessage)
GET_STATE_KEYS = _make_entry(0x0804, pb.GetStateKeysEntryMessage, completable=True)
GET_PROMISE = _make_entry(0x0808, pb.GetPromiseEntryMessage, completable=True)
PEEK_PROMISE = _make_entry(0x0809, pb.PeekPromiseEntryMessage, completable=True)
COMPLETE_PROMISE = _make_entry(0x080A, pb.CompletePromiseEntryMessage, completable=True)

SLEEP = _make_entry(0x0C00, pb.SleepEntryMessage, completable=True)
CALL = _make_entry(0x0C01, pb.CallEntryMessage, completable=True, fallible=True)
ONE_WAY_CALL = _make_entry(0x0C02, pb.OneWayCallEntryMessage, fallible=True)
AWAKEABLE = _make_entry(0x0C03, pb.AwakeableEntryMessage, completable=True)
COMPLETE_AWAKEABLE = _make_entry(0x0C04, pb.CompleteAwakeableEntryMessage, fallible=True)
RUN = _make_entry(0x0C05, pb.RunEntryMessage)
CANCEL_INVOCATION = _make_entry(0x0C06, pb.CancelInvocationEntryMessage, fallible=True, since=3)
GET_CALL_INVOCATION_ID = _make_entry(
    0x0C07, pb.GetCallInvocationIdEntryMessage, completable=True, fallible=True, since=3
)
ATTACH_INVOCATION = _make_entry(
    0x0C08, pb.AttachInvocationEntryMessage, completable=True, fallible=True, since=3
)
GET_INVOCATION_OUTPUT = _make_entry(
    0x0C09, pb.GetInvocationOutputEntryMessage, completable=True, fallible=True, since=3
)

CALLS = frozenset({CALL.code, ONE_WAY_CALL.code})
"""The types that invoke a handler."""

KINDS: Mapping[int, Kind] = MappingProxyType(
    {
        kind.code: kind
        for kind in (
            *(START, COMPLETION, SUSPENSION, ERROR, ENTRY_ACK, END, INPUT, OUTPUT),
            *(GET_STATE, SET_STATE, CLEAR_STATE, CLEAR_ALL_STATE, GET_STATE_KEYS),
            *(GET_PROMISE, PEEK_PROMISE, COMPLETE_PROMISE, SLEEP, CALL, ONE_WAY_CALL),
            *(AWAKEABLE, COMPLETE_AWAKEABLE, RUN, CANCEL_INVOCATION, GET_CALL_INVOCATION_ID),
            *(ATTACH_INVOCATION, GET_INVOCATION_OUTPUT),
        )
    }
)
"""All types except the custom ones, by code."""
OF_MESSAGE: Mapping[str, Kind] = MappingProxyType(
    {kind.message.DESCRIPTOR.full_name: kind for kind in KINDS.values() if kind.message}
)
"""The types by the full names of their messages."""


def get_kind(code: int) -> Kind:
    """The type with this code, a custom one from 0xFC00 on. Raises ProtocolError if unknown."""
    kind = KINDS.get(code)
    if kind is not None:
        return kind
    if CUSTOM <= code <= HIGHEST:
        return Kind(code=code, name="Custom", message=None)
    raise ProtocolError(
        f"The message type 0x{code:04X} is unknown to protocol versions 1 to 3, and below 0xFC00, "
        "where custom entries begin; speak one of these versions."
    )
