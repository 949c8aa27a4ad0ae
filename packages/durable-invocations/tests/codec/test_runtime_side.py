"""What a handler's stream may send, and what follows for the runtime."""

import pytest

from durable_invocations.journal import runtime_events as r
from durable_invocations.journal import runtime_side
from durable_invocations.protocol.failures import UNKNOWN, ErrorReport, Failure
from durable_invocations.protocol.frames import Frame, make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.protocol.results import EMPTY, Value, make_completion

INPUT = make_frame(pb.InputEntryMessage(value=b"in"))
OUTPUT = make_frame(pb.OutputEntryMessage(value=b"out"))
SLEEP = make_frame(pb.SleepEntryMessage(wake_up_time=7))
SLEPT = make_frame(pb.SleepEntryMessage(wake_up_time=7, empty=pb.Empty()))
RUN = make_frame(pb.RunEntryMessage(value=b"x"), requires_ack=True)
SET = make_frame(pb.SetStateEntryMessage(key=b"k", value=b"v"))
END = make_frame(pb.EndMessage())
CUSTOM = Frame(code=0xFC07, body=b"\x62\x01n", requires_ack=True, reserved=5)
REPORT = ErrorReport(message="no", retry_after=5)


def suspension(*indexes):
    return make_frame(pb.SuspensionMessage(entry_indexes=indexes))


def ack(index):
    return make_frame(pb.EntryAckMessage(entry_index=index))


def run(*events, journal=(INPUT,), duplex=True, version=3, replayed=True):
    """Return all that follows from the events; a frame stands for Received."""
    state, out = runtime_side.begin_attempt(journal, duplex=duplex, version=version), []
    for event in [*([r.Replayed()] if replayed else []), *events]:
        named = r.EntrySent(frame=event) if isinstance(event, Frame) else event
        state, more = runtime_side.step(state, named)
        out += more
    return out


def violation(*events, **how):
    *_, last = run(*events, **how)
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
    ids=lambda each: type(each).__name__,
)
def test_what_comes_after_the_last_message_changes_nothing(surplus):
    finished = [r.StoreEntry(index=1, entry=OUTPUT), r.FinishInvocation(index=1)]
    assert run(OUTPUT, END, surplus, r.EntryCommitted(index=1), surplus) == finished
    asleep = r.SuspendInvocation(indexes=(1,))
    assert run(SLEEP, suspension(1), surplus, r.EntryCommitted(index=1))[1:] == [asleep]


def test_a_suspension_follows_what_it_waits_for():
    assert run(SLEEP, suspension(1)) == [r.StoreEntry(index=1, entry=SLEEP)]
    asleep = r.SuspendInvocation(indexes=(1,))
    assert run(SLEEP, suspension(1), r.EntryCommitted(index=1))[1:] == [asleep]
    asleep = r.SuspendInvocation(indexes=(1, 2))
    assert run(suspension(2, 1), journal=(INPUT, SLEEP, SLEEP)) == [asleep]


def test_a_suspension_may_name_an_entry_that_asked_for_an_ack():
    for entry in (RUN, CUSTOM):
        out = run(entry, suspension(1), r.EntryCommitted(index=1), duplex=False)
        assert out[1:] == [r.SuspendInvocation(indexes=(1,))]


def test_a_suspension_may_cross_a_completion():
    ready = r.CompletionReady(index=1, result=EMPTY)
    told = r.Notify(frame=make_completion(1, EMPTY))
    out = run(ready, suspension(1), journal=(INPUT, SLEEP))
    assert out == [told, r.SuspendInvocation(indexes=(1,))]


def test_a_completion_is_told_once_and_in_full_duplex_only():
    ready = r.CompletionReady(index=1, result=Failure(code=409, message="canceled"))
    told = r.Notify(frame=make_completion(1, ready.result))
    assert run(ready, ready, journal=(INPUT, SLEEP)) == [told]
    assert run(ready, journal=(INPUT, SLEEP), duplex=False) == []
    ready = r.CompletionReady(index=1, result=Value(value=b""))
    assert run(ready, journal=(INPUT, SLEPT)) == run(ready, journal=(INPUT, RUN)) == []


def test_an_error_makes_the_runtime_try_again_once_what_came_before_is_stored():
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
    ("events", "how", "said"),
    [
        ([SET], {"replayed": False}, "before the replay was over"),
        ([suspension(1)], {"replayed": False}, "before the replay was over"),
        ([END], {"replayed": False}, "before the replay was over"),
        ([INPUT], {}, "only the runtime makes"),
        ([OUTPUT, SET], {}, "after the Output"),
        ([SET], {"journal": (INPUT, OUTPUT)}, "after the Output"),
        ([END], {}, "without an Output"),
        ([OUTPUT, Frame(code=END.code, body=b"\xff")], {}, "cannot be parsed"),
        ([suspension()], {}, "names no entry"),
        ([suspension(0)], {}, "names entry 0"),
        ([suspension(1)], {}, "names entry 1"),
        ([suspension(2**32 - 1)], {}, "names entry 4294967295"),
        ([SLEEP, suspension(1, 2)], {}, "names entry 2"),
        ([SLEPT, suspension(1)], {}, "names entry 1"),
        ([SET, suspension(1)], {}, "names entry 1"),
        ([suspension(1)], {"journal": (INPUT, SLEPT)}, "names entry 1"),
        ([make_frame(pb.StartMessage())], {}, "Start"),
        ([make_completion(1, EMPTY)], {"journal": (INPUT, SLEEP)}, "Completion"),
        ([ack(0)], {}, "EntryAck"),
        ([Frame(code=SLEEP.code, body=b"\xff")], {}, "cannot be parsed"),
        ([Frame(code=SLEEP.code, body=b"", completed=True)], {}, "COMPLETED"),
        ([Frame(code=SLEEP.code, body=SLEPT.body)], {}, "COMPLETED"),
        ([Frame(code=0xFC00, body=b"\xff")], {}, "not a protobuf"),
        ([Frame(code=0xFC00, body=b"\x68\x01")], {}, "field 13"),
        ([Frame(code=0xFC00, body=b"\x72\x00")], {}, "field 14"),
        ([Frame(code=0xFC00, body=b"\x7a\x00")], {}, "field 15"),
        ([make_frame(pb.OutputEntryMessage())], {}, "no result"),
        ([make_frame(pb.RunEntryMessage())], {}, "no result"),
        ([make_frame(pb.CompleteAwakeableEntryMessage(id="x"))], {}, "no result"),
        ([make_frame(pb.CompletePromiseEntryMessage(key="x"))], {}, "no completion"),
        ([make_frame(pb.CancelInvocationEntryMessage())], {}, "no target"),
        ([make_frame(pb.AttachInvocationEntryMessage())], {}, "no target"),
        ([make_frame(pb.GetInvocationOutputEntryMessage())], {}, "no target"),
        ([make_frame(pb.CallEntryMessage(idempotency_key=""))], {}, "empty idempotency key"),
        ([make_frame(pb.OneWayCallEntryMessage(idempotency_key=""))], {}, "empty idempotency key"),
    ],
    ids=str,
)
def test_what_the_protocol_does_not_allow_ends_the_stream(events, how, said):
    assert said in violation(*events, **how)


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
def test_what_a_later_version_added_is_refused_in_an_earlier_one(message):
    entry = make_frame(message)
    for version in (1, 2):
        assert "version 3" in violation(entry, version=version)
    assert run(entry, version=3) == [r.StoreEntry(index=1, entry=entry)]
