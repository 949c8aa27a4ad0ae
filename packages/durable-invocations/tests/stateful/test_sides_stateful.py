"""An invocation ends the same, whatever is lost and in whatever order completions come."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_invocations.protocol.frames import Frame, make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from runtime_support.two_sides import World, calculate_output

ASKS = (
    pb.SleepEntryMessage(wake_up_time=1),
    pb.CallEntryMessage(service_name="S", handler_name="h"),
    pb.AwakeableEntryMessage(),
    pb.GetStateEntryMessage(key=b"k"),
    pb.GetStateEntryMessage(key=b"k", value=b"eager"),
    pb.GetStateKeysEntryMessage(),
    pb.GetPromiseEntryMessage(key="p"),
    pb.PeekPromiseEntryMessage(key="p"),
    pb.CompletePromiseEntryMessage(key="p", completion_value=b"x"),
    pb.GetCallInvocationIdEntryMessage(call_entry_index=0),
    pb.AttachInvocationEntryMessage(invocation_id="inv_1x"),
    pb.GetInvocationOutputEntryMessage(invocation_id="inv_1x"),
)
TELLS = (
    make_frame(pb.SetStateEntryMessage(key=b"k", value=b"v")),
    make_frame(pb.ClearStateEntryMessage(key=b"k"), requires_ack=True),
    make_frame(pb.ClearAllStateEntryMessage()),
    make_frame(pb.OneWayCallEntryMessage(service_name="S", handler_name="h")),
    make_frame(pb.CompleteAwakeableEntryMessage(id="x", value=b"y")),
    make_frame(pb.CancelInvocationEntryMessage(invocation_id="inv_1x")),
    Frame(code=0xFC05, body=b"", reserved=9),
)


@st.composite
def programs(draw):
    program = []
    for position in range(draw(st.integers(0, 8))):
        earlier = [at for at, (kind, _) in enumerate(program) if kind in {"run", "ask"}]
        kind = draw(st.sampled_from(["run", "ask", "tell", *["wait"] * 2 * bool(earlier)]))
        arguments = {
            "run": st.just(f"run{position}"),
            "ask": st.sampled_from(ASKS),
            "tell": st.sampled_from(TELLS),
            "wait": st.lists(st.sampled_from(earlier or [0]), min_size=1, max_size=3),
        }
        program.append((kind, draw(arguments[kind])))
    return program


@settings(max_examples=150)
@given(programs(), st.integers(0, 2**32), st.integers(0, 4), st.integers(0, 3))
def test_crashes_losses_and_any_order_of_completions(program, seed, crashes, losses):
    world = World(program=program, random=Random(seed), crashes=crashes, losses=losses)
    assert world.run() == calculate_output(program)
    runs = [entry for entry in world.journal if entry.code == 0x0C05]
    assert sum(kind == "run" for kind, _ in program) == len(runs)
    assert all(1 <= times <= 1 + crashes for times in world.executed.values())
    if not crashes:
        assert set(world.executed.values()) <= {1}


PROGRAM = [
    *(("run", "charge"), ("ask", ASKS[0]), ("wait", [0, 1]), ("tell", TELLS[0])),
    *(("ask", ASKS[1]), ("run", "ship"), ("ask", ASKS[4]), ("ask", ASKS[2])),
    *(("wait", [5]), ("run", "tell"), ("wait", [4, 7]), ("wait", [9, 6])),
]
ENTRIES = sum(kind != "wait" for kind, _ in PROGRAM) + 1


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("at", range(1, ENTRIES + 1))
def test_a_crash_after_every_entry_committed_or_not(at, stored):
    for seed in range(10):
        world = World(program=PROGRAM, random=Random(seed), lost_at=at, lost_stored=stored)
        assert world.run() == calculate_output(PROGRAM)
        assert world.lost_at is None
        assert len(world.journal) == ENTRIES + 1
        # Only the runs that were not stored when both sides crashed are executed again.
        assert sum(times - 1 for times in world.executed.values()) <= 2
        if stored:
            assert world.executed.get(at, 1) == 1
        elif at == 1:
            assert world.executed[1] == 2
