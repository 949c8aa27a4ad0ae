"""Frames: headers, flags, results, and streams that are split anywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp_dagster.invocations.protocol import awakeables, ids, kinds
from iscp_dagster.invocations.protocol.decoding import Decoder, Limits
from iscp_dagster.invocations.protocol.failures import (
    Failure,
    MessageTooLargeError,
    ProtocolError,
)
from iscp_dagster.invocations.protocol.frames import HEADER, Frame, encode, frame
from iscp_dagster.invocations.protocol.kinds import KINDS, kind_of
from iscp_dagster.invocations.protocol.pb import protocol_pb2 as pb
from iscp_dagster.invocations.protocol.results import (
    EMPTY,
    Value,
    completed,
    keys_value,
    result_of,
    state_keys,
    variants,
)

RESULTS = {
    "empty": EMPTY,
    "value": keys_value([b"k"]),
    "failure": Failure(code=404, message="none"),
}


@st.composite
def frames(draw):
    code = draw(st.sampled_from([*KINDS, 0xFC00, 0xFC02, 0xFFFF]))
    kind = kind_of(code)
    return Frame(
        code=code,
        body=draw(st.binary(max_size=40)),
        requires_ack=kind.entry and draw(st.booleans()),
        completed=kind.completable and draw(st.booleans()),
        reserved=draw(st.integers(0, 0x7FFF)) if kind.custom else 0,
    )


@given(st.lists(frames(), max_size=8), st.data())
def test_any_split_of_the_bytes_gives_the_frames(sent, data):
    stream = b"".join(map(encode, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    decoder, got = Decoder(), []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += decoder.feed(stream[begin:end])
    decoder.end()
    assert got == sent


@given(frames())
def test_a_header_is_read_as_it_was_written(sent):
    code, flags, length = HEADER.unpack_from(encode(sent))
    assert (code, flags, length) == (sent.code, sent.flags, len(sent.body))
    assert Frame.of(code, flags, sent.body) == sent


@given(st.integers(0, 0xFBFF).filter(lambda code: code not in KINDS), st.binary(max_size=4))
def test_an_unknown_type_is_refused_by_its_header(code, body):
    with pytest.raises(ProtocolError, match=f"0x{code:04X}"):
        Decoder().feed(HEADER.pack(code, 0, 1 << 30) + body)


@given(st.sampled_from(list(KINDS.values())), st.integers(0, 0xFFFF))
def test_flags_that_a_type_lacks_are_refused(kind, flags):
    allowed = 0x8000 * kind.entry | kind.completable
    header = HEADER.pack(kind.code, flags, 0)
    if flags & ~allowed:
        with pytest.raises(ProtocolError, match=kind.name):
            Decoder().feed(header)
    else:
        assert [each.flags for each in Decoder().feed(header)] == [flags]


def test_what_is_too_large_is_refused_by_its_header():
    limits = Limits(message_bytes=10, journal_entries=2, journal_bytes=15)
    for headers in ([11], [10, 6], [1, 1, 1]):
        decoder = Decoder(limits)
        for length in headers[:-1]:
            decoder.feed(HEADER.pack(0x0C05, 0, length) + bytes(length))
        with pytest.raises(MessageTooLargeError):
            decoder.feed(HEADER.pack(0x0C05, 0, headers[-1]))


def test_a_stream_that_ends_within_a_frame_is_told():
    for part in (b"\0", encode(frame(pb.EntryAckMessage(entry_index=7)))[:-1]):
        decoder = Decoder()
        assert decoder.feed(part) == []
        with pytest.raises(ProtocolError, match="within a message"):
            decoder.end()


@pytest.mark.parametrize("kind", [each for each in KINDS.values() if each.completable], ids=str)
def test_each_result_of_an_entry_is_put_in_and_read_again(kind):
    entry = frame(kind.message())
    assert not entry.completed
    for variant, result in RESULTS.items():
        if variant not in variants(kind):
            with pytest.raises(ProtocolError, match=kind.name):
                completed(entry, result)
        else:
            held = completed(entry, result)
            assert held.completed
            assert result_of(held.message()) == result
    assert state_keys(RESULTS["value"].value) == [b"k"]


def test_a_completed_flag_without_result_is_malformed_and_so_is_the_reverse():
    with pytest.raises(ProtocolError, match="COMPLETED"):
        Frame(code=kinds.SLEEP.code, body=b"", completed=True).message()
    held = completed(frame(pb.CallEntryMessage()), Value(value=b""))
    with pytest.raises(ProtocolError, match="COMPLETED"):
        Frame(code=held.code, body=held.body).message()


@given(st.binary(min_size=1, max_size=40), st.integers(0, 2**32 - 1))
def test_ids_are_read_as_they_were_written(invocation, index):
    text = awakeables.awakeable_id(invocation, index)
    assert awakeables.parsed(text) == (invocation, index)
    assert ids.parsed(ids.shown(ids.new_id()))


def test_the_example_of_an_awakeables_id():
    text = "prom_1NMyOAvDK2CcBjUH4Rmb7eGBp0DNNDnmsAAAAAQ"
    invocation, index = awakeables.parsed(text)
    assert (len(invocation), index) == (24, 1)
    assert awakeables.awakeable_id(invocation, index) == text
