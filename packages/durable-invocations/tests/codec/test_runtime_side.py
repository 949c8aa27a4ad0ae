"""What a handler's stream may send, and what follows for the runtime."""

import pytest

from durable_invocations.journal import runtime_events as r
from durable_invocations.journal import runtime_side
from durable_invocations.protocol import kinds
from durable_invocations.protocol.failures import UNKNOWN, ErrorReport, Failure
from durable_invocations.protocol.frames import Frame, make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.protocol.results import EMPTY, Value, make_completion
from runtime_support.errors import assert_names
from runtime_support.journal_frames import END, INPUT, OUTPUT, SET, SLEEP, SLEPT, ack, suspension

RUN = make_frame(pb.RunEntryMessage(value=b"x"), requires_ack=True)
CUSTOM = Frame(code=0xFC07, body=b"\x62\x01n", requires_ack=True, reserved=5)
REPORT = ErrorReport(message="no", retry_after=5)


def run(*events, journal=(INPUT,), duplex=True, version=3, replayed=True):
    """Return all that follows from the events; a frame stands for EntrySent."""
    state, out = runtime_side.begin_attempt(journal, duplex=duplex, version=version), []
    for event in [*([r.Replayed()] if replayed else []), *events]:
        sent = r.HandlerFrameReceived(frame=event) if isinstance(event, Frame) else event
        state, more = runtime_side.step(state, sent)
        out += more
    return out


def violate(*events, **options):
    """The message of the violation with which these events end the stream."""
    *_, last = run(*events, **options)
    assert isinstance(last, r.Violation)
    assert last.report.code == 571
    return last.report.message


def test_entries_are_committed_in_order_and_acknowledged_once_stored():
    stored = [r.EntryCommitted(index=1), r.EntryCommitted(index=2)]
    commits = [r.StoreEntry(index=1, entry=RUN), r.StoreEntry(index=2, entry=SET)]
    assert run(RUN, SET, *stored) == [*commits, r.Notify(frame=ack(1))]
    assert run(RUN, SET, *stored, duplex=False) == commits


def test_a_custom_entry_is_treated_as_any_other():
    out = run(CUSTOM, r.EntryCommitted(index=1))
    assert out == [r.StoreEntry(index=1, entry=CUSTOM), r.Notify(frame=ack(1))]


def test_an_end_finishes_once_the_output_is_stored():
    commit = r.StoreEntry(index=1, entry=OUTPUT)
    assert run(OUTPUT, END) == [commit]
    assert run(OUTPUT, END, r.EntryCommitted(index=1), r.StreamClosed()) == [
        commit,
        r.FinishInvocation(index=1),
    ]
    assert run(END, journal=(INPUT, OUTPUT)) == [r.FinishInvocation(index=1)]


@pytest.mark.parametrize(
    "surplus",
    [SET, END, INPUT, suspension(9), make_frame(REPORT.written()), r.Broken(report=REPORT)],
    ids=lambda surplus: type(surplus).__name__,
)
def test_events_after_the_last_message_change_nothing(surplus):
    finish = [r.StoreEntry(index=1, entry=OUTPUT), r.FinishInvocation(index=1)]
    assert run(OUTPUT, END, surplus, r.EntryCommitted(index=1), surplus) == finish
    suspend = r.SuspendInvocation(indexes=(1,))
    assert run(SLEEP, suspension(1), surplus, r.EntryCommitted(index=1))[1:] == [suspend]


def test_an_invocation_is_suspended_once_the_entries_that_it_awaits_are_stored():
    assert run(SLEEP, suspension(1)) == [r.StoreEntry(index=1, entry=SLEEP)]
    suspend = r.SuspendInvocation(indexes=(1,))
    assert run(SLEEP, suspension(1), r.EntryCommitted(index=1))[1:] == [suspend]
    suspend = r.SuspendInvocation(indexes=(1, 2))
    assert run(suspension(2, 1), journal=(INPUT, SLEEP, SLEEP)) == [suspend]


def test_a_suspension_may_name_an_entry_that_asked_for_an_ack():
    for entry in (RUN, CUSTOM):
        out = run(entry, suspension(1), r.EntryCommitted(index=1), duplex=False)
        assert out[1:] == [r.SuspendInvocation(indexes=(1,))]


def test_a_suspension_may_cross_a_completion():
    ready = r.CompletionReady(index=1, result=EMPTY)
    notify = r.Notify(frame=make_completion(1, EMPTY))
    out = run(ready, suspension(1), journal=(INPUT, SLEEP))
    assert out == [notify, r.SuspendInvocation(indexes=(1,))]


def test_a_completion_is_sent_once_and_in_full_duplex_only():
    ready = r.CompletionReady(index=1, result=Failure(code=409, message="canceled"))
    notify = r.Notify(frame=make_completion(1, ready.result))
    assert run(ready, ready, journal=(INPUT, SLEEP)) == [notify]
    assert run(ready, journal=(INPUT, SLEEP), duplex=False) == []
    ready = r.CompletionReady(index=1, result=Value(value=b""))
    assert run(ready, journal=(INPUT, SLEPT)) == run(ready, journal=(INPUT, RUN)) == []


def test_an_error_makes_the_runtime_try_again_once_earlier_entries_are_stored():
    error, retry = make_frame(REPORT.written()), r.Retry(report=REPORT)
    assert run(error) == [retry]
    assert run(error, replayed=False) == [retry]
    assert run(SET, error) == [r.StoreEntry(index=1, entry=SET)]
    assert run(SET, error, r.EntryCommitted(index=1))[1:] == [retry]


def test_a_stream_that_just_ends_counts_as_an_unknown_failure():
    assert run(r.StreamClosed()) == [r.Retry(report=UNKNOWN)]
    assert run(OUTPUT, r.EntryCommitted(index=1), r.StreamClosed())[1:] == [r.Retry(report=UNKNOWN)]
    assert run(r.Broken(report=REPORT)) == [r.Retry(report=REPORT)]


def test_an_invalid_entry_is_not_stored_and_ends_the_stream():
    refused = r.EntryRefused(index=1, report=REPORT)
    out = run(SET, OUTPUT, refused, END, r.EntryCommitted(index=2))
    assert out[2:] == [r.Retry(report=REPORT)]


@pytest.mark.parametrize(
    ("frames", "options", "values"),
    [
        ([SET], {"replayed": False}, [kinds.SET_STATE, "replay"]),
        ([suspension(1)], {"replayed": False}, [kinds.SUSPENSION, "replay"]),
        ([END], {"replayed": False}, [kinds.END, "replay"]),
        ([INPUT], {}, ["Entry 1", "Input"]),
        ([OUTPUT, SET], {}, ["Entry 2", kinds.SET_STATE, "Output"]),
        ([SET], {"journal": (INPUT, OUTPUT)}, ["Entry 2", kinds.SET_STATE, "Output"]),
        ([END], {}, ["handler", "Output"]),
        ([OUTPUT, Frame(code=END.code, body=b"\xff")], {}, [kinds.END]),
        ([suspension()], {}, ["Suspension", "no entry"]),
        ([suspension(0)], {}, ["Suspension", "entry 0"]),
        ([suspension(1)], {}, ["Suspension", "entry 1"]),
        ([suspension(2**32 - 1)], {}, ["Suspension", "entry 4294967295"]),
        ([SLEEP, suspension(1, 2)], {}, ["Suspension", "entry 2"]),
        ([SLEPT, suspension(1)], {}, ["Suspension", "entry 1"]),
        ([SET, suspension(1)], {}, ["Suspension", "entry 1"]),
        ([suspension(1)], {"journal": (INPUT, SLEPT)}, ["Suspension", "entry 1"]),
        ([make_frame(pb.StartMessage())], {}, [kinds.START, "runtime"]),
        ([make_completion(1, EMPTY)], {"journal": (INPUT, SLEEP)}, [kinds.COMPLETION, "runtime"]),
        ([ack(0)], {}, [kinds.ENTRY_ACK, "runtime"]),
        ([Frame(code=SLEEP.code, body=b"\xff")], {}, [kinds.SLEEP]),
        ([Frame(code=SLEEP.code, body=b"", completed=True)], {}, ["COMPLETED", kinds.SLEEP, True]),
        ([Frame(code=SLEEP.code, body=SLEPT.body)], {}, ["COMPLETED", kinds.SLEEP, False]),
        ([Frame(code=0xFC00, body=b"\xff")], {}, ["custom", "protobuf"]),
        ([Frame(code=0xFC00, body=b"\x68\x01")], {}, ["custom", "field 13"]),
        ([Frame(code=0xFC00, body=b"\x72\x00")], {}, ["custom", "field 14"]),
        ([Frame(code=0xFC00, body=b"\x7a\x00")], {}, ["custom", "field 15"]),
    ],
    ids=str,
)
def test_a_frame_that_the_protocol_does_not_allow_ends_the_stream(frames, options, values):
    assert_names(violate(*frames, **options), *values)


@pytest.mark.parametrize(
    ("message", "part"),
    [
        (pb.OutputEntryMessage(), "result"),
        (pb.RunEntryMessage(), "result"),
        (pb.CompleteAwakeableEntryMessage(id="x"), "result"),
        (pb.CompletePromiseEntryMessage(key="x"), "completion"),
        (pb.CancelInvocationEntryMessage(), "target"),
        (pb.AttachInvocationEntryMessage(), "target"),
        (pb.GetInvocationOutputEntryMessage(), "target"),
        (pb.CallEntryMessage(idempotency_key=""), "idempotency key"),
        (pb.OneWayCallEntryMessage(idempotency_key=""), "idempotency key"),
    ],
)
def test_an_entry_without_a_part_that_it_needs_ends_the_stream(message, part):
    entry = make_frame(message)
    assert_names(violate(entry), "Entry 1", entry.kind, part)


@pytest.mark.parametrize(
    "message",
    [
        pb.CancelInvocationEntryMessage(invocation_id="x"),
        pb.GetCallInvocationIdEntryMessage(),
        pb.AttachInvocationEntryMessage(invocation_id="x"),
        pb.GetInvocationOutputEntryMessage(invocation_id="x"),
        pb.CallEntryMessage(idempotency_key="x"),
        pb.OneWayCallEntryMessage(idempotency_key="x"),
    ],
    ids=lambda message: message.DESCRIPTOR.name,
)
def test_an_entry_of_a_later_version_ends_the_stream(message):
    entry = make_frame(message)
    for version in (1, 2):
        names = ("Entry 1", entry.kind, "version 3", f"version {version}")
        assert_names(violate(entry, version=version), *names)
    assert run(entry, version=3) == [r.StoreEntry(index=1, entry=entry)]
