"""Frames: headers, flags, results, and streams that are split anywhere."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_invocations.errors import ConfigError
from durable_invocations.protocol import awakeables, ids, kinds, results
from durable_invocations.protocol.decoding import Decoder, Limits
from durable_invocations.protocol.failures import (
    ErrorReport,
    Failure,
    MessageTooLargeError,
    ProtocolError,
)
from durable_invocations.protocol.frames import HEADER, Frame, encode, make_frame
from durable_invocations.protocol.kinds import KINDS, get_kind
from durable_invocations.protocol.pb import protocol_pb2 as pb
from runtime_support.two_sides import completed

RESULTS = {
    "empty": results.EMPTY,
    "value": results.make_keys_value([b"k"]),
    "failure": Failure(code=404, message="none"),
}


@st.composite
def frames(draw):
    code = draw(st.sampled_from([*KINDS, 0xFC00, 0xFC02, 0xFFFF]))
    kind = get_kind(code)
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


@pytest.mark.parametrize("kind", list(KINDS.values()), ids=str)
def test_flags_that_a_type_lacks_are_refused(kind):
    allowed = 0x8000 * kind.entry | kind.completable
    each_bit = [1 << bit for bit in range(16)]
    for flags in (0, *each_bit, allowed, *(allowed | each for each in each_bit)):
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
    for part in (b"\0", encode(make_frame(pb.EntryAckMessage(entry_index=7)))[:-1]):
        decoder = Decoder()
        assert decoder.feed(part) == []
        with pytest.raises(ProtocolError, match="within a message"):
            decoder.end()


@pytest.mark.parametrize("kind", [each for each in KINDS.values() if each.completable], ids=str)
def test_each_result_of_an_entry_is_put_in_and_read_again(kind):
    entry = make_frame(kind.message())
    assert not entry.completed
    for variant, result in RESULTS.items():
        if variant not in results.list_variants(kind):
            with pytest.raises(ProtocolError, match=kind.name):
                completed(entry, result)
        else:
            held = completed(entry, result)
            assert held.completed
            assert results.get_result(held.message()) == result
    assert results.parse_state_keys(RESULTS["value"].value) == [b"k"]


def test_a_completed_flag_without_result_is_malformed_and_so_is_the_reverse():
    with pytest.raises(ProtocolError, match="COMPLETED"):
        Frame(code=kinds.SLEEP.code, body=b"", completed=True).message()
    held = completed(make_frame(pb.CallEntryMessage()), results.Value(value=b""))
    with pytest.raises(ProtocolError, match="COMPLETED"):
        Frame(code=held.code, body=held.body).message()


@given(st.binary(min_size=1, max_size=40), st.integers(0, 2**32 - 1))
def test_ids_are_read_as_they_were_written(invocation, index):
    text = awakeables.make_awakeable_id(invocation, index)
    assert awakeables.parse_awakeable_id(text) == (invocation, index)
    assert ids.parse_id(ids.format_id(ids.make_id()))


def test_ids_are_safe_in_a_url():
    assert awakeables.make_awakeable_id(b"\xfb\xef\xff", 2**32 - 1) == "prom_1--_______w"
    assert ids.format_id(b"\xfb" * 15 + b"\xff") == "inv_1-_v7-_v7-_v7-_v7-_v7_w"


@pytest.mark.parametrize(
    "text",
    [
        *("", "prom_1", "prom_1AAAA", "prom_2AAAAAAAAAA", "prom_1é", "prom_1AAAAAAB="),
        "prom_1++///////w",
    ],
)
def test_what_is_no_awakeables_id_is_refused(text):
    with pytest.raises(ConfigError, match="not the id of an awakeable"):
        awakeables.parse_awakeable_id(text)


@pytest.mark.parametrize(
    "text", ["", "inv_1", "inv_1AAAA", "prom_1AAAAAAAAAAAAAAAAAAAAAA", "inv_1" + "A" * 21 + "B"]
)
def test_what_is_no_invocations_id_is_refused(text):
    with pytest.raises(
        ConfigError, match="not the id of an invocation, which is inv_1 and 22 characters"
    ):
        ids.parse_id(text)


def test_two_invocations_have_different_ids():
    assert len({ids.make_id() for _ in range(100)}) == 100
    assert ids.parse_id(ids.format_id(bytes(16))) == bytes(16)
    assert ids.format_id(bytes(16)) == "inv_1" + "A" * 22


@settings(max_examples=200)
@given(st.binary(max_size=60), st.data())
def test_garbage_is_frames_or_a_breach_and_nothing_else(garbage, data):
    decoder = Decoder(Limits(message_bytes=50))
    cut, status = data.draw(st.integers(0, len(garbage))), None
    try:
        frames = decoder.feed(garbage[:cut]) + decoder.feed(garbage[cut:])
        decoder.end()
        assert b"".join(map(encode, frames)) == garbage
        for each in frames:
            _ = each.name
    except ProtocolError as error:
        status = error.status
    assert status in {None, 413, 571}


def test_after_a_fault_the_stream_is_over():
    decoder = Decoder()
    with pytest.raises(ProtocolError) as first:
        decoder.feed(HEADER.pack(0x0006, 0, 0))
    for again in (lambda: decoder.feed(encode(make_frame(pb.EndMessage()))), decoder.end):
        with pytest.raises(ProtocolError) as later:
            again()
        assert later.value is first.value


def test_a_journal_that_is_there_before_the_stream_counts():
    limits = Limits(journal_entries=3, journal_bytes=10)
    run = HEADER.pack(0x0C05, 0, 0)
    assert len(Decoder(limits, entries=2).feed(run)) == 1
    assert len(Decoder(limits, entry_bytes=9).feed(encode(Frame(code=0x0C05, body=b"x")))) == 1
    with pytest.raises(MessageTooLargeError, match="4 entries, and 3 are allowed"):
        Decoder(limits, entries=3).feed(run)
    with pytest.raises(MessageTooLargeError, match="11 bytes, and 10 are allowed"):
        Decoder(limits, entry_bytes=10).feed(HEADER.pack(0x0C05, 0, 1))
    # Messages that are no entries are not of the journal.
    assert Decoder(limits, entries=3).feed(encode(results.make_completion(1, results.EMPTY)))


def test_a_large_message_that_comes_byte_by_byte_is_held_once():
    body, decoder = bytes(200_000), Decoder()
    stream = HEADER.pack(0x0C05, 0, len(body)) + body
    assert [decoder.feed(stream[at : at + 1]) for at in range(len(stream))][-1] != []


@pytest.mark.parametrize("kind", [each for each in KINDS.values() if each.completable], ids=str)
def test_a_completion_has_the_result_of_its_entry(kind):
    for variant in results.list_variants(kind):
        result = RESULTS[variant]
        message = results.make_completion(300, result).message()
        assert (message.entry_index, results.get_result(message)) == (300, result)


def test_a_result_that_its_entry_cannot_hold_is_refused():
    not_text, not_keys = results.Value(value=b"\xff"), results.Value(value=b"\xff")
    with pytest.raises(ProtocolError, match="not UTF-8"):
        completed(make_frame(pb.GetCallInvocationIdEntryMessage()), not_text)
    with pytest.raises(ProtocolError, match="GetStateKeys cannot be parsed"):
        completed(make_frame(pb.GetStateKeysEntryMessage()), not_keys)
    with pytest.raises(ProtocolError, match="GetStateKeys cannot be parsed"):
        results.parse_state_keys(b"\xff")
    with pytest.raises(ProtocolError, match="no result of the form 'empty'"):
        results.check(kinds.RUN, results.EMPTY)
    with pytest.raises(ProtocolError, match="no known message"):
        Frame(code=0xFC00, body=b"").message()
    with pytest.raises(ProtocolError, match="never are"):
        Frame(code=0xFC00, body=b"", completed=True)


def test_completing_keeps_name_and_flags():
    entry = make_frame(pb.AwakeableEntryMessage(name="paid"), requires_ack=True)
    held = completed(entry, results.Value(value=b"x"))
    assert (held.name, held.requires_ack, held.completed) == ("paid", True, True)


def test_a_report_of_an_error_is_read_as_it_was_written():
    plain = ErrorReport(message="no")
    full = ErrorReport(
        code=429, message="later", description="why", index=0, name="", kind=0, retry_after=0
    )
    assert [ErrorReport.read(each.written()) for each in (plain, full)] == [plain, full]
    assert ErrorReport.read(full.written(version=1)) == replace(full, retry_after=None)
    breach = MessageTooLargeError("too large")
    assert ErrorReport.of(breach, 3) == ErrorReport(code=413, message="too large", index=3)
