"""Long journals cost little: no step copies the journal before it."""

from durable_invocations.journal import handler_events as h
from durable_invocations.journal import handler_side, index_sets, runtime_side
from durable_invocations.journal import runtime_events as r
from durable_invocations.journal.handler_state import HandlerState
from durable_invocations.protocol.decoding import Decoder
from durable_invocations.protocol.frames import encode, make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from runtime_support.growth import SLACK, time_growth

ENTRIES = 10_000
INPUT = make_frame(pb.InputEntryMessage())
RUN = make_frame(pb.RunEntryMessage(name="step"))
RUNS = [make_frame(pb.RunEntryMessage(name="step", value=b"%d" % n)) for n in range(ENTRIES)]


def replay_runs(count):
    """Replay a journal of so many runs; their values, and the handler's phase."""
    start = make_frame(pb.StartMessage(known_entries=count + 1))
    stream = b"".join(map(encode, (start, INPUT, *RUNS[:count])))
    state, recorded, resolved, decoder = HandlerState(), [], [], Decoder()
    for at in range(0, len(stream), 1 << 16):
        for message in decoder.feed(stream[at : at + (1 << 16)]):
            state, out = handler_side.step(state, h.FrameReceived(frame=message))
            recorded += [event.entry for event in out if isinstance(event, h.Recorded)]
    state, _ = handler_side.step(state, h.Issued(entry=INPUT, recorded=INPUT))
    for entry in recorded[1:]:
        state, out = handler_side.step(state, h.RunBegun(entry=RUN, recorded=entry))
        resolved += out
    return [result.result.value for result in resolved], state.phase.value


def open_calls(count):
    """Issue so many calls; return both sides."""
    handler = HandlerState()
    for message in (make_frame(pb.StartMessage(known_entries=1)), INPUT):
        handler, _ = handler_side.step(handler, h.FrameReceived(frame=message))
    handler, _ = handler_side.step(handler, h.Issued(entry=INPUT, recorded=INPUT))
    runtime, _ = runtime_side.step(runtime_side.begin_attempt([INPUT], duplex=True), r.Replayed())
    call = make_frame(pb.CallEntryMessage(service_name="S", handler_name="h"))
    for index in range(1, count + 1):
        handler, (sent,) = handler_side.step(handler, h.Issued(entry=call))
        runtime, _ = runtime_side.step(runtime, r.HandlerFrameReceived(frame=sent.frame))
        runtime, _ = runtime_side.step(runtime, r.EntryCommitted(index=index))
    return handler, runtime


def test_a_replay_takes_time_in_proportion_to_its_runs():
    values, phase = replay_runs(ENTRIES)
    assert values == [b"%d" % number for number in range(ENTRIES)]
    assert phase == "processing"
    assert time_growth(replay_runs, ENTRIES // 8, ENTRIES) < 8 * SLACK


def test_open_calls_take_time_in_proportion_on_either_side():
    handler, runtime = open_calls(ENTRIES)
    assert list(index_sets.iter_indexes(handler.open)) == list(range(1, ENTRIES + 1))
    assert handler.open == runtime.open
    assert time_growth(open_calls, ENTRIES // 8, ENTRIES) < 8 * SLACK
