"""Frames of other implementations are read as they were meant, and written with the same bytes."""

import re
from pathlib import Path

import pytest
from google.protobuf import text_format
from google.protobuf.unknown_fields import UnknownFieldSet

from durable_invocations.protocol import awakeables, frames, kinds
from durable_invocations.protocol.decoding import Decoder
from durable_invocations.protocol.kinds import KINDS
from durable_invocations.protocol.pb.custom_pb2 import CombinatorEntryMessage
from durable_invocations.protocol.pb.protocol_pb2 import EndMessage

TEXT = (Path(__file__).parents[1] / "golden" / "frames.txt").read_text()
BLOCKS = re.findall(r"^(\w+)(.*)\n    (.*)\n    ([0-9a-f ]+)$", TEXT, re.MULTILINE)
BY_NAME = {each.name: each for each in KINDS.values()}
each_frame = pytest.mark.parametrize(("name", "flags", "text", "digits"), BLOCKS)


def parse_text(name, text):
    message = CombinatorEntryMessage() if name == "Combinator" else BY_NAME[name].message()
    return text_format.Parse(text.removeprefix("{}"), message)


def decode(digits):
    (frame,) = Decoder().feed(bytes.fromhex(digits))
    return frame


@each_frame
def test_a_frame_is_read(name, flags, text, digits):
    frame = decode(digits)
    assert frame.kind.name == (name if name in BY_NAME else "Custom")
    assert frame.requires_ack == ("REQUIRES_ACK" in flags)
    assert frame.completed == ("COMPLETED" in flags)
    if name == "Combinator":
        assert frame.code == kinds.COMBINATOR
        assert CombinatorEntryMessage.FromString(frame.body) == parse_text(name, text)
    elif name == "Custom":
        (field,) = UnknownFieldSet(EndMessage.FromString(frame.body))
        shown = f"{field.field_number}: {field.data!r}"
        assert shown.replace("b'", '"').replace("'", '"') == text
    else:
        assert frame.message() == parse_text(name, text)


@each_frame
def test_a_frame_is_written(name, flags, text, digits):
    ack = {"requires_ack": "REQUIRES_ACK" in flags}
    if name == "Combinator":
        frame = frames.make_custom_frame(kinds.COMBINATOR, parse_text(name, text), **ack)
    elif name == "Custom":
        code, bits, _, body = digits.split()
        frame = frames.Frame.of(int(code, 16), int(bits, 16), bytes.fromhex(body))
    else:
        frame = frames.make_frame(parse_text(name, text), **ack)
    assert frames.encode(frame).hex() == digits.replace(" ", "")


def test_the_file_has_every_message_and_every_flag():
    assert {name for name, *_ in BLOCKS} == {*BY_NAME, "Combinator", "Custom"}
    assert {flags.strip() for _, flags, *_ in BLOCKS} == {
        *("", "REQUIRES_ACK", "COMPLETED", "REQUIRES_ACK COMPLETED")
    }
    completed = {name for name, flags, *_ in BLOCKS if "COMPLETED" in flags}
    assert completed == {kind.name for kind in KINDS.values() if kind.completable}
    assert (frames.REQUIRES_ACK, frames.COMPLETED) == (0x8000, 0x0001)


def test_the_names_of_entries_are_read_from_any_entry():
    names = {decode(digits).name for _, _, text, digits in BLOCKS if 'name: "' in text}
    assert {"charge", "nap"} <= names
    assert decode("fc000000000000066204" + "6e6f7465").name == "note"
    # Another field with text, behind it.
    assert decode("fc0000000000000a6204" + "6e6f7465" + "8a010178").name == "note"
    assert decode("0005 0000 00000000").name == ""


def test_the_example_of_an_awakeables_id():
    text = "prom_1NMyOAvDK2CcBjUH4Rmb7eGBp0DNNDnmsAAAAAQ"
    invocation, index = awakeables.parse_awakeable_id(text)
    assert (len(invocation), index) == (24, 1)
    assert awakeables.make_awakeable_id(invocation, index) == text
    # The same invocation's entry 18, as Restate's state machine named it.
    at_18 = "prom_1NMyOAvDK2CcBjUH4Rmb7eGBp0DNNDnmsAAAAEg"
    assert awakeables.make_awakeable_id(invocation, 18) == at_18
    assert at_18 in TEXT
