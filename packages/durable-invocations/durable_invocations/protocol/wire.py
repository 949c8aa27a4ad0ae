"""Custom entries: bytes whose fields are looked at without knowing their message."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from durable_invocations.protocol.failures import ProtocolError
from durable_invocations.protocol.pb.protocol_pb2 import EndMessage

NAME = 12
RESULT = frozenset({13, 14, 15})
"""The fields of completable entries, which custom entries must not use."""


def named(body: bytes) -> str:
    """A custom entry's name, "" if it has none.

    Raises ProtocolError for a body that is no protobuf message, or uses the fields of results.
    """
    fields = _fields(body)
    if used := RESULT.intersection(number for number, _ in fields):
        raise ProtocolError(
            f"A custom entry uses the field {min(used)}; 13, 14 and 15 are for completable entries."
        )
    names = [value for number, value in fields if number == NAME and isinstance(value, bytes)]
    return names[-1].decode(errors="replace") if names else ""


def _fields(body: bytes) -> list[tuple[int, Any]]:
    message = EndMessage()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise ProtocolError(f"A custom entry is no protobuf message: {error}.") from error
    return [(each.field_number, each.data) for each in UnknownFieldSet(message)]
