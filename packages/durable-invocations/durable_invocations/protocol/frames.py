"""A message with its header: 16 bits of type, 16 of flags, 32 of length, then the body."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError, Message

from durable_invocations.protocol.failures import ProtocolError
from durable_invocations.protocol.kinds import CUSTOM, OF_MESSAGE, Kind, get_kind
from durable_invocations.protocol.wire import parse_name

HEADER = struct.Struct(">HHI")
REQUIRES_ACK = 0x8000
COMPLETED = 0x0001
ALL = 0xFFFF
ONEOF = "result"


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """One message. `reserved` are the low 15 flags of a custom entry, kept as sent.

    Raises ProtocolError for an unknown type, and for flags that the type does not have.
    """

    code: int
    body: bytes
    requires_ack: bool = False
    completed: bool = False
    reserved: int = 0

    def __post_init__(self) -> None:
        kind = get_kind(self.code)
        if kind.custom and self.completed:
            raise ProtocolError(f"A message {kind} is completed, which custom entries never are.")
        check_flags(kind, self.flags)

    @property
    def kind(self) -> Kind:
        return get_kind(self.code)

    @property
    def flags(self) -> int:
        """The second 16 bits of the header."""
        return self.requires_ack * REQUIRES_ACK | self.completed * COMPLETED | self.reserved

    @classmethod
    def of(cls, code: int, flags: int, body: bytes) -> Frame:
        """The frame with these flags. Raises ProtocolError as the class does."""
        custom = code >= CUSTOM
        return cls(
            code=code,
            body=body,
            requires_ack=bool(flags & REQUIRES_ACK),
            completed=not custom and bool(flags & COMPLETED),
            reserved=flags & ~(REQUIRES_ACK if custom else REQUIRES_ACK | COMPLETED),
        )

    def message(self) -> Any:
        """The parsed message. Raises ProtocolError if it is malformed.

        Also if COMPLETED contradicts its result, or if it is a custom entry.
        """
        kind = self.kind
        if kind.message is None:
            raise ProtocolError(f"{kind} has no known message; read its body.")
        message = kind.message()
        try:
            message.ParseFromString(self.body)
        except DecodeError as error:
            raise ProtocolError(f"A message {kind} cannot be parsed: {error}.") from error
        if kind.completable and (message.WhichOneof(ONEOF) is not None) != self.completed:
            raise ProtocolError(
                f"The flag COMPLETED of {kind} is {self.completed}, and its result says otherwise;"
                " set both or neither."
            )
        return message

    @property
    def name(self) -> str:
        """The entry's name, "" if it has none. Raises ProtocolError for a malformed body."""
        if self.code >= CUSTOM:
            return parse_name(self.body)
        return str(getattr(self.message(), "name", ""))


def make_frame(
    message: Message, *, requires_ack: bool = False, completed: bool | None = None
) -> Frame:
    """The frame of a protocol message; `completed` follows from its result if not given."""
    kind = OF_MESSAGE[message.DESCRIPTOR.full_name]
    if completed is None:
        completed = kind.completable and message.WhichOneof(ONEOF) is not None
    body = message.SerializeToString(deterministic=True)
    return Frame(code=kind.code, body=body, requires_ack=requires_ack, completed=completed)


def make_custom_frame(code: int, message: Message, *, requires_ack: bool = False) -> Frame:
    """The frame of a custom entry."""
    body = message.SerializeToString(deterministic=True)
    return Frame(code=code, body=body, requires_ack=requires_ack)


def encode(sent: Frame) -> bytes:
    """The frame's bytes on the wire."""
    return HEADER.pack(sent.code, sent.flags, len(sent.body)) + sent.body


def check_flags(kind: Kind, flags: int) -> None:
    """Raise ProtocolError for flags that the type does not have; custom types may have any."""
    allowed = REQUIRES_ACK * kind.entry | COMPLETED * kind.completable
    if flags & ~(ALL if kind.custom else allowed):
        raise ProtocolError(
            f"A message {kind} has the flags 0x{flags:04X}, some of which its type does not have; "
            "entries have 0x8000 (REQUIRES_ACK), completable ones also 0x0001 (COMPLETED)."
        )
