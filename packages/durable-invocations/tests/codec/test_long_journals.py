"""Long journals cost little: no step copies what was before it."""

from growth import SLACK, time_growth

from durable_invocations.journal import bits, handler_side, runtime_side
from durable_invocations.journal import handler_events as h
from durable_invocations.journal import runtime_events as r
from durable_invocations.journal.handler_state import Attempt
from durable_invocations.protocol.decoding import Decoder
from durable_invocations.protocol.frames import encode, frame
from durable_invocations.protocol.pb import protocol_pb2 as pb

ENTRIES = 10_000
INPUT = frame(pb.InputEntryMessage())
BEGUN = frame(pb.RunEntryMessage(name="step"))
RUNS = [frame(pb.RunEntryMessage(name="step", value=b"%d" % each)) for each in range(ENTRIES)]


def replay_runs(count):
    """Replay a journal of as many runs; return their values and the handler's phase."""
    start = frame(pb.StartMessage(known_entries=count + 1))
    stream = b"".join(map(encode, (start, INPUT, *RUNS[:count])))
    state, recorded, resolved, decoder = Attempt(), [], [], Decoder()
    for at in range(0, len(stream), 1 << 16):
        for message in decoder.feed(stream[at : at + (1 << 16)]):
            state, out = handler_side.step(state, h.Received(frame=message))
            recorded += [got.entry for got in out if isinstance(got, h.Recorded)]
    state, _ = handler_side.step(state, h.Issued(entry=INPUT, recorded=INPUT))
    for entry in recorded[1:]:
        state, out = handler_side.step(state, h.Begun(entry=BEGUN, recorded=entry))
        resolved += out
    return [result.result.value for result in resolved], state.phase.value


def open_calls(count):
    """Issue as many calls; return both sides."""
    handler = Attempt()
    for message in (frame(pb.StartMessage(known_entries=1)), INPUT):
        handler, _ = handler_side.step(handler, h.Received(frame=message))
    handler, _ = handler_side.step(handler, h.Issued(entry=INPUT, recorded=INPUT))
    runtime, _ = runtime_side.step(runtime_side.begun([INPUT], duplex=True), r.Replayed())
    call = frame(pb.CallEntryMessage(service_name="S", handler_name="h"))
    for index in range(1, count + 1):
        handler, (sent,) = handler_side.step(handler, h.Issued(entry=call))
        runtime, _ = runtime_side.step(runtime, r.Received(frame=sent.frame))
        runtime, _ = runtime_side.step(runtime, r.Committed(index=index))
    return handler, runtime


def test_a_replay_takes_time_in_proportion_to_its_runs():
    values, phase = replay_runs(ENTRIES)
    assert values == [b"%d" % number for number in range(ENTRIES)]
    assert phase == "processing"
    assert time_growth(replay_runs, ENTRIES // 8, ENTRIES) < 8 * SLACK


def test_open_calls_take_time_in_proportion_on_either_side():
    handler, runtime = open_calls(ENTRIES)
    assert list(bits.each(handler.open)) == list(range(1, ENTRIES + 1))
    assert handler.open == runtime.open
    assert time_growth(open_calls, ENTRIES // 8, ENTRIES) < 8 * SLACK
