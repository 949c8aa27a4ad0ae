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
from runtime_support.errors import raises_naming
from runtime_support.two_sides import complete_entry

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
    with raises_naming(ProtocolError, f"0x{code:04X}"):
        Decoder().feed(HEADER.pack(code, 0, 1 << 30) + body)


@pytest.mark.parametrize("kind", list(KINDS.values()), ids=str)
def test_flags_that_a_type_lacks_are_refused(kind):
    allowed = 0x8000 * kind.entry | kind.completable
    bits = [1 << bit for bit in range(16)]
    for flags in (0, *bits, allowed, *(allowed | bit for bit in bits)):
        header = HEADER.pack(kind.code, flags, 0)
        if flags & ~allowed:
            with raises_naming(ProtocolError, kind, f"0x{flags:04X}"):
                Decoder().feed(header)
        else:
            assert [frame.flags for frame in Decoder().feed(header)] == [flags]


def test_a_message_beyond_a_limit_is_refused_by_its_header():
    limits = Limits(message_bytes=10, journal_entries=2, journal_bytes=15)
    for headers in ([11], [10, 6], [1, 1, 1]):
        decoder = Decoder(limits)
        for length in headers[:-1]:
            decoder.feed(HEADER.pack(0x0C05, 0, length) + bytes(length))
        with pytest.raises(MessageTooLargeError):
            decoder.feed(HEADER.pack(0x0C05, 0, headers[-1]))


def test_a_stream_must_not_end_within_a_frame():
    for part in (b"\0", encode(make_frame(pb.EntryAckMessage(entry_index=7)))[:-1]):
        decoder = Decoder()
        assert decoder.feed(part) == []
        with raises_naming(ProtocolError, f"{len(part)} bytes"):
            decoder.end()


@pytest.mark.parametrize("kind", [kind for kind in KINDS.values() if kind.completable], ids=str)
def test_a_result_is_read_as_it_was_written_in_an_entry_and_in_a_completion(kind):
    entry = make_frame(kind.message())
    assert not entry.completed
    for variant, result in RESULTS.items():
        if variant not in results.list_variants(kind):
            with raises_naming(ProtocolError, kind, f"'{variant}'"):
                complete_entry(entry, result)
            continue
        completed = complete_entry(entry, result)
        assert completed.completed
        assert results.get_result(completed.message()) == result
        message = results.make_completion(300, result).message()
        assert (message.entry_index, results.get_result(message)) == (300, result)
    assert results.parse_state_keys(RESULTS["value"].value) == [b"k"]


def test_the_flag_completed_must_agree_with_the_result():
    with raises_naming(ProtocolError, "COMPLETED", kinds.SLEEP, True):
        Frame(code=kinds.SLEEP.code, body=b"", completed=True).message()
    entry = complete_entry(make_frame(pb.CallEntryMessage()), results.Value(value=b""))
    with raises_naming(ProtocolError, "COMPLETED", kinds.CALL, False):
        Frame(code=entry.code, body=entry.body).message()


@given(st.binary(min_size=1, max_size=40), st.integers(0, 2**32 - 1))
def test_ids_are_read_as_they_were_written(invocation, index):
    text = awakeables.make_awakeable_id(invocation, index)
    assert awakeables.parse_awakeable_id(text) == (invocation, index)
    assert ids.parse_id(ids.format_id(ids.make_id()))


def test_ids_are_safe_in_a_url():
    assert awakeables.make_awakeable_id(b"\xfb\xef\xff", 2**32 - 1) == "prom_1--_______w"
    assert ids.format_id(b"\xfb" * 15 + b"\xff") == "inv_1-_v7-_v7-_v7-_v7-_v7_w"


AWAKEABLES = ["", "prom_1", "prom_1AAAA", "prom_2AAAAAAAAAA", "prom_1é", "prom_1AAAAAAB="]
INVOCATIONS = ["", "inv_1", "inv_1AAAA", "prom_1" + "A" * 22, "inv_1" + "A" * 21 + "B"]


@pytest.mark.parametrize(
    ("parse", "text", "prefix"),
    [
        *((awakeables.parse_awakeable_id, text, "prom_1") for text in AWAKEABLES),
        (awakeables.parse_awakeable_id, "prom_1++///////w", "prom_1"),
        *((ids.parse_id, text, "inv_1") for text in INVOCATIONS),
    ],
)
def test_an_invalid_id_is_refused(parse, text, prefix):
    with raises_naming(ConfigError, repr(text), prefix):
        parse(text)


def test_two_invocations_have_different_ids():
    assert len({ids.make_id() for _ in range(100)}) == 100
    assert ids.parse_id(ids.format_id(bytes(16))) == bytes(16)
    assert ids.format_id(bytes(16)) == "inv_1" + "A" * 22


@settings(max_examples=200)
@given(st.binary(max_size=60), st.data())
def test_garbage_is_read_as_frames_or_raises_a_protocol_error(garbage, data):
    decoder = Decoder(Limits(message_bytes=50))
    cut, status = data.draw(st.integers(0, len(garbage))), None
    try:
        frames = decoder.feed(garbage[:cut]) + decoder.feed(garbage[cut:])
        decoder.end()
        assert b"".join(map(encode, frames)) == garbage
        for frame in frames:
            _ = frame.name
    except ProtocolError as error:
        status = error.status
    assert status in {None, 413, 571}


def test_after_a_fault_each_call_raises_the_same_error():
    decoder = Decoder()
    with raises_naming(ProtocolError, "0x0006") as first:
        decoder.feed(HEADER.pack(0x0006, 0, 0))
    for call in (lambda: decoder.feed(encode(make_frame(pb.EndMessage()))), decoder.end):
        with pytest.raises(ProtocolError) as later:
            call()
        assert later.value is first.value


def test_entries_before_the_stream_count_against_the_limits():
    limits = Limits(journal_entries=3, journal_bytes=10)
    run = HEADER.pack(0x0C05, 0, 0)
    assert len(Decoder(limits, entries=2).feed(run)) == 1
    assert len(Decoder(limits, entry_bytes=9).feed(encode(Frame(code=0x0C05, body=b"x")))) == 1
    with raises_naming(MessageTooLargeError, "4 entries", 3):
        Decoder(limits, entries=3).feed(run)
    with raises_naming(MessageTooLargeError, "11 bytes", 10):
        Decoder(limits, entry_bytes=10).feed(HEADER.pack(0x0C05, 0, 1))
    # Messages that are no entries are not part of the journal.
    assert Decoder(limits, entries=3).feed(encode(results.make_completion(1, results.EMPTY)))


def test_a_large_message_may_come_byte_by_byte():
    body, decoder = bytes(200_000), Decoder()
    stream = HEADER.pack(0x0C05, 0, len(body)) + body
    assert [decoder.feed(stream[at : at + 1]) for at in range(len(stream))][-1] != []


def test_a_result_that_its_entry_cannot_hold_is_refused():
    malformed = results.Value(value=b"\xff")
    with raises_naming(ProtocolError, "GetCallInvocationId", "UTF-8"):
        complete_entry(make_frame(pb.GetCallInvocationIdEntryMessage()), malformed)
    with raises_naming(ProtocolError, "GetStateKeys"):
        complete_entry(make_frame(pb.GetStateKeysEntryMessage()), malformed)
    with raises_naming(ProtocolError, "GetStateKeys"):
        results.parse_state_keys(b"\xff")
    with raises_naming(ProtocolError, kinds.RUN, "'empty'"):
        results.check(kinds.RUN, results.EMPTY)
    with raises_naming(ProtocolError, "0xFC00", "body"):
        Frame(code=0xFC00, body=b"").message()
    with raises_naming(ProtocolError, "0xFC00", "custom"):
        Frame(code=0xFC00, body=b"", completed=True)


def test_completing_keeps_name_and_flags():
    entry = make_frame(pb.AwakeableEntryMessage(name="paid"), requires_ack=True)
    completed = complete_entry(entry, results.Value(value=b"x"))
    assert (completed.name, completed.requires_ack, completed.completed) == ("paid", True, True)


def test_a_report_of_an_error_is_read_as_it_was_written():
    plain = ErrorReport(message="no")
    full = ErrorReport(
        code=429, message="later", description="why", index=0, name="", kind=0, retry_after=0
    )
    assert [ErrorReport.read(report.written()) for report in (plain, full)] == [plain, full]
    assert ErrorReport.read(full.written(version=1)) == replace(full, retry_after=None)
    breach = MessageTooLargeError("too large")
    assert ErrorReport.of(breach, 3) == ErrorReport(code=413, message="too large", index=3)
