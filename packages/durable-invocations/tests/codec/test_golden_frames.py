"""Frames that other implementations wrote are read as they were meant, and written alike."""

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
EVERY = pytest.mark.parametrize(("name", "flags", "text", "digits"), BLOCKS)


def parsed(name, text):
    message = CombinatorEntryMessage() if name == "Combinator" else BY_NAME[name].message()
    return text_format.Parse(text.removeprefix("{}"), message)


def held(digits):
    (got,) = Decoder().feed(bytes.fromhex(digits))
    return got


@EVERY
def test_a_frame_is_read(name, flags, text, digits):
    got = held(digits)
    assert got.kind.name == (name if name in BY_NAME else "Custom")
    assert got.requires_ack == ("REQUIRES_ACK" in flags)
    assert got.completed == ("COMPLETED" in flags)
    if name == "Combinator":
        assert got.code == kinds.COMBINATOR
        assert CombinatorEntryMessage.FromString(got.body) == parsed(name, text)
    elif name == "Custom":
        known = EndMessage.FromString(got.body)
        ((number, value),) = ((each.field_number, each.data) for each in UnknownFieldSet(known))
        assert f"{number}: {value!r}".replace("b'", '"').replace("'", '"') == text
    else:
        assert got.message() == parsed(name, text)


@EVERY
def test_a_frame_is_written(name, flags, text, digits):
    asks = "REQUIRES_ACK" in flags
    if name == "Combinator":
        made = frames.make_custom_frame(kinds.COMBINATOR, parsed(name, text), requires_ack=asks)
    elif name == "Custom":
        code, bits, _, body = digits.split()
        made = frames.Frame.of(int(code, 16), int(bits, 16), bytes.fromhex(body))
    else:
        made = frames.make_frame(parsed(name, text), requires_ack=asks)
    assert frames.encode(made).hex() == digits.replace(" ", "")


def test_every_message_and_every_flag_is_among_them():
    assert {name for name, *_ in BLOCKS} == {*BY_NAME, "Combinator", "Custom"}
    assert {flags.strip() for _, flags, *_ in BLOCKS} == {
        *("", "REQUIRES_ACK", "COMPLETED", "REQUIRES_ACK COMPLETED")
    }
    completed = {name for name, flags, *_ in BLOCKS if "COMPLETED" in flags}
    assert completed == {each.name for each in KINDS.values() if each.completable}
    assert (frames.REQUIRES_ACK, frames.COMPLETED) == (0x8000, 0x0001)


def test_the_names_of_entries_are_read_from_any_entry():
    named = {held(digits).name for _, _, text, digits in BLOCKS if 'name: "' in f" {text}"[1:]}
    assert {"charge", "nap"} <= named
    assert held("fc000000000000066204" + "6e6f7465").name == "note"
    # Another field with text, behind it.
    assert held("fc0000000000000a6204" + "6e6f7465" + "8a010178").name == "note"
    assert held("0005 0000 00000000").name == ""


def test_the_example_of_an_awakeables_id():
    text = "prom_1NMyOAvDK2CcBjUH4Rmb7eGBp0DNNDnmsAAAAAQ"
    invocation, index = awakeables.parse_awakeable_id(text)
    assert (len(invocation), index) == (24, 1)
    assert awakeables.make_awakeable_id(invocation, index) == text
    # The same invocation's entry 18, as Restate's state machine named it.
    at_18 = "prom_1NMyOAvDK2CcBjUH4Rmb7eGBp0DNNDnmsAAAAEg"
    assert awakeables.make_awakeable_id(invocation, 18) == at_18
    assert at_18 in TEXT
