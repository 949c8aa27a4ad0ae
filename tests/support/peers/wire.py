"""Packs and unpacks the protocol's messages, knowing only its text: a header, then protobuf."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from support.peers.proto_text import Field, Shape, code_of, coded, shapes

HEADER = struct.Struct(">HHI")
ACK, COMPLETED, CUSTOM, ENTRY = 0x8000, 0x0001, 0xFC00, 0x0400
_VARINTS = {"uint32", "uint64", "bool"}
_RESULTS = {"empty": 13, "value": 14, "failure": 15}
Result = tuple[str, Any]
"""What completes an entry: ("empty", {}), ("value", bytes) or ("failure", {"code", "message"})."""


@dataclass(frozen=True)
class Packet:
    """One message as it is sent."""

    code: int
    flags: int
    body: bytes

    @property
    def name(self) -> str:
        shape = coded().get(self.code)
        return f"Custom {self.code:#06x}" if shape is None else shape.name

    @property
    def message(self) -> dict[str, Any]:
        return read(coded()[self.code], self.body)

    @property
    def completed(self) -> bool:
        return bool(self.flags & COMPLETED)

    def bytes(self) -> bytes:
        return HEADER.pack(self.code, self.flags, len(self.body)) + self.body

    def with_result(self, result: Result) -> Packet:
        """Fill the entry's result field and set its flag, as the runtime does for a replay."""
        return replace(self, flags=self.flags | COMPLETED, body=self.body + write_result(result))


def packet(kind: str, flags: int = 0, /, **fields: Any) -> Packet:
    """Make a message, named without its ending, from its fields."""
    code = code_of(kind)
    return Packet(code, flags, write(coded()[code], fields))


def unpack(data: bytes) -> tuple[list[Packet], bytes]:
    """Return the whole messages at the start of the bytes, and what is left over."""
    packets, at = [], 0
    while len(data) - at >= HEADER.size:
        code, flags, length = HEADER.unpack_from(data, at)
        if len(data) - at - HEADER.size < length:
            break
        at += HEADER.size + length
        packets.append(Packet(code, flags, data[at - length : at]))
    return packets, data[at:]


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _sized(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def _one(field: Field, value: Any) -> bytes:
    if field.type in _VARINTS:
        return varint(field.number << 3) + varint(int(value))
    if isinstance(value, dict):
        return _sized(field.number, write(shapes()[field.type], value))
    return _sized(field.number, value.encode() if isinstance(value, str) else value)


def write(shape: Shape, values: dict[str, Any]) -> bytes:
    """Encode the fields; those with their default only where that is written, too."""
    out = b""
    for field in shape.fields:
        value = values.get(field.name)
        if field.repeated:
            out += b"".join(_one(field, each) for each in value or ())
        elif value is not None and (field.explicit or value or isinstance(value, dict)):
            out += _one(field, value)
    unknown = values.keys() - {field.name for field in shape.fields}
    assert not unknown, f"{shape.name} has no {unknown}"
    return out


def write_result(result: Result) -> bytes:
    """Encode a result as it stands in an entry and in a completion alike."""
    kind, value = result
    if kind == "failure":
        value = write(shapes()["Failure"], value)
    return _sized(_RESULTS[kind], b"" if kind == "empty" else value)


def completion(index: int, result: Result) -> Packet:
    message = packet("Completion", entry_index=index)
    return replace(message, body=message.body + write_result(result))


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at that place, and the place behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def _raw(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        assert tag & 7 in {0, 2}, f"the wire type {tag & 7} is in no message"
        value: int | bytes
        value, at = _read_varint(data, at)
        if tag & 7 == 2:
            at += value
            assert at <= len(data), "a field ends behind its message"
            value = data[at - value : at]
        yield tag >> 3, value


def _read_one(field: Field, value: int | bytes) -> Any:
    if field.type in _VARINTS:
        return bool(value) if field.type == "bool" else value
    if field.type == "bytes":
        return value
    return value.decode() if field.type == "string" else read(shapes()[field.type], value)


def _default(field: Field) -> Any:
    if field.repeated:
        return []
    return {"bytes": b"", "string": "", "bool": False}.get(field.type, 0)


def read(shape: Shape, data: bytes) -> dict[str, Any]:
    """Decode a message: an optional field may be missing, others have their default.

    Unknown fields are skipped, as protobuf demands.
    """
    known = {field.number: field for field in shape.fields}
    plain = (each for each in shape.fields if not each.explicit)
    values = {each.name: _default(each) for each in plain}
    for number, value in _raw(data):
        field = known.get(number)
        if field is None:
            continue
        if not field.repeated:
            values[field.name] = _read_one(field, value)
        elif field.type in _VARINTS and isinstance(value, bytes):
            values[field.name] += _numbers(value)
        else:
            values[field.name].append(_read_one(field, value))
    return values


def _numbers(data: bytes) -> list[int]:
    numbers, at = [], 0
    while at < len(data):
        number, at = _read_varint(data, at)
        numbers.append(number)
    return numbers


def result_of(entry: Packet) -> Result | None:
    """Return the result that a completed entry carries, as bytes where it is a value."""
    kinds = {number: kind for kind, number in _RESULTS.items()}
    for number, value in _raw(entry.body):
        if number == _RESULTS["failure"]:
            return "failure", read(shapes()["Failure"], value)
        if number in kinds:
            return kinds[number], {} if kinds[number] == "empty" else value
    return None
