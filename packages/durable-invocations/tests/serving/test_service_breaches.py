"""A thousand malformed streams: each ends in a status or an ErrorMessage, and leaves no task."""

from __future__ import annotations

import logging
import random

import pytest

from durable_invocations import Context, VirtualObject, service_app
from durable_invocations.protocol.decoding import Limits
from durable_invocations.protocol.frames import HEADER, encode, make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from runtime_support.endpoints.asgi_stream import completion, names, open_request
from runtime_support.journal_frames import ack

STREAMS = 1_000
CART = VirtualObject("Cart")
LIMITS = Limits(message_bytes=10_000, journal_entries=50, journal_bytes=20_000)


@CART.handler
async def fill(ctx: Context, count: int) -> list:
    results = [await ctx.run("one", lambda: count)]
    call, sleep = ctx.call("T", "h", returns=int), ctx.sleep(1)
    ctx.state.set("n", count)
    results += [await call, await sleep, await ctx.state.get("n"), await ctx.state.keys()]
    _, answer = ctx.awakeable()
    return [*results, await answer]


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
    ack(77),
    start(2),
    completion(77),
    completion(1),
    *ENTRIES,
]


def pack(frames):
    return b"".join(map(encode, frames))


def pack_raw(code, flags, length, body=b""):
    return HEADER.pack(code, flags, length) + body


def truncated(chance):
    data = pack(VALID)
    return data[: chance.randrange(len(data) - 1)]


def truncated_after_the_replay(chance):
    late = encode(completion(3))
    return pack(VALID) + late[: chance.randrange(1, len(late))]


def oversized(chance):
    code = chance.choice([0x0400, 0x0801, 0x0C05, 0xFC00])
    return pack(VALID[:1]) + pack_raw(code, 0, chance.randrange(10_001, 2**32), b"x" * 64)


def too_many(chance):
    return pack([start(99), ENTRIES[0], *[ENTRIES[1]] * 60])


def too_heavy(chance):
    heavy = make_frame(pb.RunEntryMessage(name="one", value=b"x" * 9_000))
    return pack([start(4), ENTRIES[0], heavy, heavy, heavy])


def wrong_flags(chance):
    at = chance.randrange(len(VALID))
    chosen = VALID[at]
    bit = chance.randrange(1, 15)
    broken = pack_raw(chosen.code, chosen.flags | 1 << bit, len(chosen.body), chosen.body)
    return pack(VALID[:at]) + broken + pack(VALID[at + 1 :])


def completed_without_result(chance):
    odd = chance.choice([pack_raw(0x0C00, 1, 0), pack_raw(0x0800, 1, 0), pack_raw(0x0C05, 1, 0)])
    return pack([start(3), *ENTRIES[:2]]) + odd


def unknown_type(chance):
    code = chance.choice([0x0006, 0x03FF, 0x0402, 0x0805, 0x0C0A, 0xFBFF, 0x1000])
    at = chance.randrange(len(VALID))
    return pack(VALID[:at]) + pack_raw(code, 0, 0) + pack(VALID[at:])


def wrong_order(chance):
    at = chance.randrange(1, len(VALID))
    return pack([*VALID[:at], chance.choice(OTHERS[:7]), *VALID[at:]])


def after_the_replay(chance):
    return pack([*VALID, chance.choice(OTHERS)])


def no_start(chance):
    return pack([chance.choice([frame for frame in OTHERS if frame.code]), *VALID])


def no_entries(chance):
    return pack([start(0), *ENTRIES])


def malformed_body(chance):
    at = chance.randrange(len(VALID))
    body = b"\xff" * chance.randrange(1, 20)
    return pack(VALID[:at]) + pack_raw(VALID[at].code, 0, len(body), body) + pack(VALID[at + 1 :])


def unfinished_run(chance):
    return pack([start(2), ENTRIES[0], make_frame(pb.RunEntryMessage(name="one"))])


def other_steps(chance):
    at = chance.randrange(1, len(ENTRIES))
    wrong = make_frame(pb.SleepEntryMessage(wake_up_time=1, empty=pb.Empty()))
    return pack([start(at + 1), *ENTRIES[:at], wrong if at != 3 else ENTRIES[1]])


BREACHES = [
    *(truncated, truncated_after_the_replay, oversized, too_many, too_heavy, wrong_flags),
    *(completed_without_result, unknown_type, wrong_order, after_the_replay, no_start),
    *(no_entries, malformed_body, unfinished_run, other_steps),
]
CODES = {oversized: 413, too_many: 413, too_heavy: 413, other_steps: 570}
VIOLATION = 571
EACH = -(-STREAMS // (len(BREACHES) + 2))


async def get_last(body, *, http, pieces):
    """The last frame of the answer to a body that comes in so many pieces."""
    async with open_request(APP, "/invoke/Cart/fill", http=http) as stream:
        size = len(body) // pieces + 1
        for at in range(0, len(body), size):
            stream.send(data=body[at : at + size])
        stream.send(more=False)
        frames = await stream.receive_all()
    assert stream.task.exception() is None
    assert (stream.status, stream.ended) == (200, True)
    return frames[-1]


async def get_lasts(breach):
    """The last frames of the answers to so many streams that are broken in this way."""
    chance = random.Random(breach.__name__)
    return [
        await get_last(
            breach(chance), http=chance.choice(["1.1", "2"]), pieces=chance.choice([1, 2, 9])
        )
        for _ in range(EACH)
    ]


@pytest.mark.parametrize("breach", BREACHES, ids=lambda breach: breach.__name__)
async def test_a_breach_of_the_protocol_ends_with_an_error(breach, caplog):
    caplog.set_level(logging.WARNING)
    errors = [frame.message() for frame in await get_lasts(breach)]
    assert {type(error) for error in errors} == {pb.ErrorMessage}
    assert {error.code for error in errors} == {CODES.get(breach, VIOLATION)}
    assert all(error.message and not error.description for error in errors)
    # Only a mismatch is logged, for the author of the handler: the code has changed.
    assert len(caplog.records) == sum(error.code == 570 for error in errors)
    assert not any(record.exc_info for record in caplog.records)


def flipped(chance):
    """A stream with a few changed bytes, which may still be valid."""
    data = bytearray(pack(VALID))
    for _ in range(chance.randrange(1, 4)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


def noise(chance):
    return chance.randbytes(chance.randrange(200))


@pytest.mark.parametrize("breach", [flipped, noise], ids=lambda breach: breach.__name__)
async def test_a_stream_of_any_bytes_ends_as_the_protocol_demands(breach, caplog):
    caplog.set_level(logging.WARNING)
    kinds = set(names(await get_lasts(breach)))
    assert {"Error"} <= kinds <= {"Error", "Suspension", "End"}
    assert not any(record.exc_info for record in caplog.records)


async def test_the_valid_stream_suspends():
    last = await get_last(pack(VALID), http="1.1", pieces=1)
    assert last.message() == pb.SuspensionMessage(entry_indexes=[3])
