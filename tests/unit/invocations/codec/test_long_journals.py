"""Long journals cost little: no step copies what was before it."""

from __future__ import annotations

import time

from iscp_dagster.invocations.journal import bits, handler_side, runtime_side
from iscp_dagster.invocations.journal import handler_events as h
from iscp_dagster.invocations.journal import runtime_events as r
from iscp_dagster.invocations.journal.handler_state import Attempt
from iscp_dagster.invocations.protocol.decoding import Decoder
from iscp_dagster.invocations.protocol.frames import encode, frame
from iscp_dagster.invocations.protocol.pb import protocol_pb2 as pb

ENTRIES = 10_000
INPUT = frame(pb.InputEntryMessage())
BEGUN = frame(pb.RunEntryMessage(name="step"))
RUNS = [frame(pb.RunEntryMessage(name="step", value=b"%d" % each)) for each in range(ENTRIES)]


def test_a_replay_of_ten_thousand_runs_takes_less_than_a_second():
    start = frame(pb.StartMessage(known_entries=ENTRIES + 1))
    stream = b"".join(map(encode, (start, INPUT, *RUNS)))
    begin = time.process_time()
    state, recorded, resolved, decoder = Attempt(), [], [], Decoder()
    for at in range(0, len(stream), 1 << 16):
        for each in decoder.feed(stream[at : at + (1 << 16)]):
            state, out = handler_side.step(state, h.Received(frame=each))
            recorded += [got.entry for got in out if isinstance(got, h.Recorded)]
    state, _ = handler_side.step(state, h.Issued(entry=INPUT, recorded=INPUT))
    for each in recorded[1:]:
        state, out = handler_side.step(state, h.Begun(entry=BEGUN, recorded=each))
        resolved += out
    assert time.process_time() - begin < 1
    assert [each.result.value for each in resolved] == [b"%d" % each for each in range(ENTRIES)]
    assert state.phase.value == "processing"


def test_ten_thousand_open_calls_cost_little_on_either_side():
    begin = time.process_time()
    handler = Attempt()
    for each in (frame(pb.StartMessage(known_entries=1)), INPUT):
        handler, _ = handler_side.step(handler, h.Received(frame=each))
    handler, _ = handler_side.step(handler, h.Issued(entry=INPUT, recorded=INPUT))
    runtime, _ = runtime_side.step(runtime_side.begun([INPUT], duplex=True), r.Replayed())
    call = frame(pb.CallEntryMessage(service_name="S", handler_name="h"))
    for index in range(1, ENTRIES + 1):
        handler, (sent,) = handler_side.step(handler, h.Issued(entry=call))
        runtime, _ = runtime_side.step(runtime, r.Received(frame=sent.frame))
        runtime, _ = runtime_side.step(runtime, r.Committed(index=index))
    assert time.process_time() - begin < 3
    assert list(bits.each(handler.open)) == list(range(1, ENTRIES + 1))
    assert handler.open == runtime.open
