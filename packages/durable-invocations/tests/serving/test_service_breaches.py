"""A thousand malformed streams: each ends in a status or an ErrorMessage, and leaves nothing."""

from __future__ import annotations

import asyncio
import logging
import random

import pytest

from durable_invocations import Context, VirtualObject, service_app
from durable_invocations.protocol.decoding import Limits
from durable_invocations.protocol.frames import HEADER, encode, make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from runtime_support.endpoints.asgi_stream import line, told

STREAMS = 1_000
CART = VirtualObject("Cart")
LIMITS = Limits(message_bytes=10_000, journal_entries=50, journal_bytes=20_000)


@CART.handler
async def fill(ctx: Context, count: int) -> list:
    got = [await ctx.run("one", lambda: count)]
    call, sleep = ctx.call("T", "h", returns=int), ctx.sleep(1)
    ctx.state.set("n", count)
    got += [await call, await sleep, await ctx.state.get("n"), await ctx.state.keys()]
    _, answer = ctx.awakeable()
    return [*got, await answer]


APP = service_app(CART, limits=LIMITS)


def start(known):
    state = [pb.StartMessage.StateEntry(key=b"n", value=b"1")]
    return make_frame(
        pb.StartMessage(id=b"i" * 16, debug_id="inv_1i", known_entries=known, state_map=state)
    )


ENTRIES = [
    make_frame(pb.InputEntryMessage(value=b"3")),
    make_frame(pb.RunEntryMessage(name="one", value=b"3")),
    make_frame(pb.CallEntryMessage(service_name="T", handler_name="h", value=b"4")),
    make_frame(pb.SleepEntryMessage(wake_up_time=1)),
    make_frame(pb.SetStateEntryMessage(key=b"n", value=b"3")),
]
VALID = [start(len(ENTRIES)), *ENTRIES]
OTHERS = [
    make_frame(pb.SuspensionMessage(entry_indexes=[9])),
    make_frame(pb.ErrorMessage(code=500, message="?")),
    make_frame(pb.EndMessage()),
    make_frame(pb.EntryAckMessage(entry_index=77)),
    start(2),
    told(77),
    told(1),
    *ENTRIES,
]


def packed(frames):
    return b"".join(encode(each) for each in frames)


def raw(code, flags, length, body=b""):
    return HEADER.pack(code, flags, length) + body


def truncated(chance):
    data = packed(VALID)
    return data[: chance.randrange(len(data) - 1)]


def truncated_after_the_replay(chance):
    late = encode(told(3))
    return packed(VALID) + late[: chance.randrange(1, len(late))]


def oversized(chance):
    code = chance.choice([0x0400, 0x0801, 0x0C05, 0xFC00])
    return packed(VALID[:1]) + raw(code, 0, chance.randrange(10_001, 2**32), b"x" * 64)


def too_many(chance):
    return packed([start(99), ENTRIES[0], *[ENTRIES[1]] * 60])


def too_heavy(chance):
    heavy = make_frame(pb.RunEntryMessage(name="one", value=b"x" * 9_000))
    return packed([start(4), ENTRIES[0], heavy, heavy, heavy])


def wrong_flags(chance):
    at = chance.randrange(len(VALID))
    chosen = VALID[at]
    bit = chance.randrange(1, 15)
    broken = raw(chosen.code, chosen.flags | 1 << bit, len(chosen.body), chosen.body)
    return packed(VALID[:at]) + broken + packed(VALID[at + 1 :])


def completed_without_result(chance):
    odd = chance.choice([raw(0x0C00, 1, 0), raw(0x0800, 1, 0), raw(0x0C05, 1, 0)])
    return packed([start(3), *ENTRIES[:2]]) + odd


def unknown_type(chance):
    code = chance.choice([0x0006, 0x03FF, 0x0402, 0x0805, 0x0C0A, 0xFBFF, 0x1000])
    at = chance.randrange(len(VALID))
    return packed(VALID[:at]) + raw(code, 0, 0) + packed(VALID[at:])


def wrong_order(chance):
    at = chance.randrange(1, len(VALID))
    return packed([*VALID[:at], chance.choice(OTHERS[:7]), *VALID[at:]])


def after_the_replay(chance):
    return packed([*VALID, chance.choice(OTHERS)])


def no_start(chance):
    return packed([chance.choice([each for each in OTHERS if each.code]), *VALID])


def no_entries(chance):
    return packed([start(0), *ENTRIES])


def malformed_body(chance):
    at = chance.randrange(len(VALID))
    body = b"\xff" * chance.randrange(1, 20)
    return packed(VALID[:at]) + raw(VALID[at].code, 0, len(body), body) + packed(VALID[at + 1 :])


def unfinished_run(chance):
    return packed([start(2), ENTRIES[0], make_frame(pb.RunEntryMessage(name="one"))])


def other_steps(chance):
    at = chance.randrange(1, len(ENTRIES))
    wrong = make_frame(pb.SleepEntryMessage(wake_up_time=1, empty=pb.Empty()))
    return packed([start(at + 1), *ENTRIES[:at], wrong if at != 3 else ENTRIES[1]])


BREACHES = [
    *(truncated, truncated_after_the_replay, oversized, too_many, too_heavy, wrong_flags),
    *(completed_without_result, unknown_type, wrong_order, after_the_replay, no_start),
    *(no_entries, malformed_body, unfinished_run, other_steps),
]
CODES = {oversized: 413, too_many: 413, too_heavy: 413, other_steps: 570}
VIOLATION = 571
EACH = -(-STREAMS // (len(BREACHES) + 2))


async def ends(body, *, http, pieces):
    """The last frame of the answer to a body that comes in so many pieces."""
    async with line(APP, "/invoke/Cart/fill", http=http) as made:
        size = len(body) // pieces + 1
        for at in range(0, len(body), size):
            made.say(data=body[at : at + size])
        made.say(more=False)
        heard = await made.rest()
    assert made.task.exception() is None
    assert made.status == 200
    assert made.ended
    return heard[-1]


def each_ends(breach, chance):
    async def scene():
        return [
            await ends(
                breach(chance), http=chance.choice(["1.1", "2"]), pieces=chance.choice([1, 2, 9])
            )
            for _ in range(EACH)
        ]

    return asyncio.run(scene())


@pytest.mark.parametrize("breach", BREACHES, ids=lambda each: each.__name__)
def test_what_breaks_the_protocol_ends_with_an_error(breach, caplog):
    caplog.set_level(logging.WARNING)
    lasts = each_ends(breach, random.Random(breach.__name__))
    errors = [each.message() for each in lasts]
    assert {type(each) for each in errors} == {pb.ErrorMessage}
    assert {each.code for each in errors} == {CODES.get(breach, VIOLATION)}
    assert all(each.message and not each.description for each in errors)
    # Of all this, only the writer of the handler is told of something: that its code is another.
    mismatches = sum(each.code == 570 for each in errors)
    assert len(caplog.records) == mismatches
    assert not any(each.exc_info for each in caplog.records)


def flipped(chance):
    """Whatever a changed byte makes of it, a valid stream perhaps."""
    data = bytearray(packed(VALID))
    for _ in range(chance.randrange(1, 4)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


def noise(chance):
    return chance.randbytes(chance.randrange(200))


@pytest.mark.parametrize("breach", [flipped, noise], ids=lambda each: each.__name__)
def test_any_bytes_end_a_stream_as_the_protocol_says(breach, caplog):
    caplog.set_level(logging.WARNING)
    lasts = each_ends(breach, random.Random(breach.__name__))
    kinds = {each.kind.name for each in lasts}
    assert "Error" in kinds
    assert kinds <= {"Error", "Suspension", "End"}
    assert not any(each.exc_info for each in caplog.records)


def test_the_unbroken_stream_goes_on():
    last = asyncio.run(ends(packed(VALID), http="1.1", pieces=1))
    assert last.message() == pb.SuspensionMessage(entry_indexes=[3])
