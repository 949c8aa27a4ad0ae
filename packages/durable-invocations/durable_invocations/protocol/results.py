"""Results of entries: nothing, a value or a failure; in entries and in completions alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from durable_invocations.protocol.failures import Failure, ProtocolError
from durable_invocations.protocol.frames import ONEOF, Frame, make_frame
from durable_invocations.protocol.kinds import Kind
from durable_invocations.protocol.pb import protocol_pb2 as pb


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """Bytes: of a GetStateKeys a StateKeys message, of a GetCallInvocationId UTF-8 text."""

    value: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Empty:
    """No value, which differs from a value of no bytes."""


Result = Value | Empty | Failure
EMPTY = Empty()


def get_result(message: Any) -> Result | None:
    """The result that a message has, None if it has none yet."""
    variant = message.WhichOneof(ONEOF)
    if variant is None:
        return None
    if variant == "failure":
        return Failure.read(message.failure)
    return EMPTY if variant == "empty" else Value(value=_to_bytes(message.value))


def _to_bytes(value: Any) -> bytes:
    if isinstance(value, pb.GetStateKeysEntryMessage.StateKeys):
        return bytes(value.SerializeToString())
    return value.encode() if isinstance(value, str) else bytes(value)


def set_result(message: Any, result: Result, kind: Kind) -> None:
    """Set the result of a message. Raises ProtocolError if its `kind` has no such result."""
    check(kind, result)
    if isinstance(result, Failure):
        message.failure.CopyFrom(result.written())
    elif isinstance(result, Empty):
        message.empty.SetInParent()
    elif kind.message is pb.GetStateKeysEntryMessage:
        message.value.SetInParent()
        message.value.MergeFrom(_parse_keys(result.value))
    else:
        message.value = _to_field_value(kind, result.value)


def check(kind: Kind, result: Result) -> None:
    """Raises ProtocolError if entries of this kind cannot have such a result."""
    variant = type(result).__name__.lower()
    if kind.message is None or variant not in list_variants(kind):
        raise ProtocolError(f"An entry {kind} has no result of the form {variant!r}.")


def list_variants(kind: Kind) -> frozenset[str]:
    """The forms that results of this kind have, of `empty`, `value` and `failure`."""
    if kind.message is None:
        return frozenset()
    oneof = kind.message.DESCRIPTOR.oneofs_by_name.get(ONEOF)
    return frozenset(field.name for field in oneof.fields) if oneof else frozenset()


def make_completion(index: int, result: Result) -> Frame:
    """The message that completes the entry at `index`."""
    message = pb.CompletionMessage(entry_index=index)
    if isinstance(result, Failure):
        message.failure.CopyFrom(result.written())
    elif isinstance(result, Empty):
        message.empty.SetInParent()
    else:
        message.value = result.value
    return make_frame(message)


def parse_state_keys(value: bytes) -> list[bytes]:
    """The keys in the value of a GetStateKeys. Raises ProtocolError if it is malformed."""
    return list(_parse_keys(value).keys)


def make_keys_value(keys: list[bytes]) -> Value:
    """The value of a GetStateKeys."""
    return Value(value=pb.GetStateKeysEntryMessage.StateKeys(keys=keys).SerializeToString())


def _parse_keys(value: bytes) -> pb.GetStateKeysEntryMessage.StateKeys:
    keys = pb.GetStateKeysEntryMessage.StateKeys()
    try:
        keys.ParseFromString(value)
    except DecodeError as error:
        raise ProtocolError(f"The value of a GetStateKeys cannot be parsed: {error}.") from error
    return keys


def _to_field_value(kind: Kind, value: bytes) -> bytes | str:
    if kind.message is not pb.GetCallInvocationIdEntryMessage:
        return value
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"The id in a {kind} is not UTF-8 text: {error}.") from error
