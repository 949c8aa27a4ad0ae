"""Custom entries: reads fields without knowing the message."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from durable_invocations.protocol.failures import ProtocolError
from durable_invocations.protocol.pb.protocol_pb2 import EndMessage

NAME = 12
RESULT = frozenset({13, 14, 15})
"""The fields of completable entries, which custom entries must not use."""


def parse_name(body: bytes) -> str:
    """A custom entry's name, "" if it has none.

    Raises ProtocolError for a body that is not a protobuf message, or uses the fields of results.
    """
    fields = _parse_fields(body)
    if used := RESULT.intersection(number for number, _ in fields):
        raise ProtocolError(
            f"A custom entry uses the field {min(used)}; 13, 14 and 15 are for completable entries."
        )
    names = [value for number, value in fields if number == NAME and isinstance(value, bytes)]
    return names[-1].decode(errors="replace") if names else ""


def _parse_fields(body: bytes) -> list[tuple[int, Any]]:
    message = EndMessage()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise ProtocolError(f"A custom entry is not a protobuf message: {error}.") from error
    return [(field.field_number, field.data) for field in UnknownFieldSet(message)]
