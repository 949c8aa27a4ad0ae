"""What the runtime sends on a stream, and in which order."""

import asyncio

import pytest

from durable_invocations.protocol.decoding import Decoder
from durable_invocations.protocol.frames import make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.protocol.results import EMPTY, make_completion
from durable_invocations.runtime.driving import outgoing as module
from durable_invocations.runtime.driving.outgoing import Outgoing


class Wire:
    """An exchange that records what is sent."""

    def __init__(self):
        self.sent, self.ends = [], []

    async def send(self, data, *, end=False):
        self.sent.append(data)
        self.ends.append(end)

    @property
    def frames(self):
        return Decoder().feed(b"".join(self.sent))


def make_opening(count):
    runs = [make_frame(pb.RunEntryMessage(value=b"%d" % number)) for number in range(count)]
    return [make_frame(pb.StartMessage(known_entries=count)), *runs]


async def send(frames, *, more=(), whole=False):
    """The wire, and how many pieces had been sent each time that the replay was over."""
    wire, replays = Wire(), []
    out = Outgoing(lambda: replays.append(len(wire.sent)))
    out.begin(frames)
    for frame in more:
        out.put(frame)
    out.end()
    out.put(make_completion(99, EMPTY))
    await (out.run_whole(wire) if whole else out.run(wire))
    return wire, replays


async def test_completions_follow_the_replay_however_early_they_are_ready():
    first = make_completion(1, EMPTY)
    wire, replays = await send(make_opening(3), more=[first])
    assert wire.frames == [*make_opening(3), first]
    assert wire.ends[-1] is True
    assert replays == [0]


@pytest.mark.parametrize("whole", [False, True])
async def test_a_long_replay_is_sent_in_pieces_and_is_over_with_the_last_one(monkeypatch, whole):
    monkeypatch.setattr(module, "PIECE", 20)
    wire, replays = await send(make_opening(30), whole=whole)
    assert wire.frames == make_opening(30)
    assert (len(wire.sent) == 1) is whole
    assert len(replays) == 1
    assert wire.ends == [False] * (len(wire.sent) - 1) + [True]


async def test_a_frame_that_is_put_later_is_sent_then():
    wire = Wire()
    out = Outgoing(lambda: None)
    out.begin(make_opening(0))
    sending = asyncio.ensure_future(out.run(wire))
    for number in range(3):
        await asyncio.sleep(0)
        out.put(make_completion(number, EMPTY))
    await asyncio.sleep(0)
    out.end()
    await sending
    assert [frame.message().entry_index for frame in wire.frames[1:]] == [0, 1, 2]
    assert wire.ends[-1] is True


async def test_a_frame_that_is_put_before_the_opening_follows_it_each_time_that_it_is_sent():
    first, second = make_completion(0, EMPTY), make_completion(1, EMPTY)

    out, wires = Outgoing(lambda: None), [Wire(), Wire()]
    out.put(first)
    for wire in wires:
        out.begin(make_opening(2))
        await out.run_whole(wire)
        assert wire.frames == [*make_opening(2), first]

    out, wire = Outgoing(lambda: None), Wire()
    out.begin(make_opening(1))
    out.put(first)
    out.mark_answered()
    out.put(second)
    out.begin(make_opening(1))
    await out.run_whole(wire)
    assert wire.frames == make_opening(1)
