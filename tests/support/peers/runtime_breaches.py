"""Streams of a runtime that break the protocol, each in one way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from support.peers.endpoint_lies import pack
from support.peers.proto_text import coded
from support.peers.wire import ACK, COMPLETED, HEADER, Packet, completion, packet, varint

INPUT = packet("Input", value=b'["a", "b", "c"]')
CALL = {"service_name": "Steps", "handler_name": "greet"}
HELLO = ("value", b'"hello"')
FIRST = packet("Call", **CALL, parameter=b'"a"').with_result(HELLO)
SECOND = packet("Call", **CALL, parameter=b'"b"')
JOURNAL = [INPUT, FIRST, SECOND]
"""Of the handler Steps.chain, which then waits for its second call."""
TOO_LARGE, MISMATCH, VIOLATION = 413, 570, 571
"""HTTP's code for what is too large, the protocol's for a mismatch and for a violation."""


@dataclass(frozen=True, kw_only=True)
class Breach:
    """What is sent, and how it must end: with this status, and an ErrorMessage if that is 200."""

    head: bytes
    """What is sent with the request."""
    later: bytes = b""
    """What follows once the handler works, where both sides may send."""
    status: int = 200
    code: int = VIOLATION
    """What the ErrorMessage says."""
    method: str = "POST"
    path: str = "/invoke/Steps/chain"
    media: str = "application/vnd.restate.invocation.v3"
    leaves: bool = False
    """Whether the connection breaks in place of the request's end."""


def start(known: int) -> Packet:
    return packet("Start", id=b"i" * 16, debug_id="inv_1i", known_entries=known)


def valid() -> bytes:
    return pack(start(len(JOURNAL)), *JOURNAL)


def heads(chance: Random) -> Breach:
    """Requests that invoke no handler."""
    paths = ("/invoke/Steps/nothing", "/invoke/Nobody/chain", "/somewhere")
    breaches = [Breach(head=valid(), status=404, path=path) for path in paths]
    breaches += [
        Breach(head=valid(), status=404, path="/invoke/Steps/chain/more"),
        Breach(head=valid(), status=415, media="application/json"),
        Breach(head=valid(), status=415, media="application/vnd.restate.invocation.v4"),
        Breach(head=b"", status=405, method="GET"),
    ]
    return chance.choice(breaches)


def truncated(chance: Random) -> Breach:
    whole = valid()
    return Breach(head=whole[: chance.randrange(len(whole) - 1)], leaves=chance.random() < 0.2)


def oversized(chance: Random) -> Breach:
    code = chance.choice([0x0400, 0x0801, 0x0C05, 0xFC00])
    huge = HEADER.pack(code, 0, chance.randrange(1 << 26, 1 << 32))
    return Breach(head=pack(start(3)) + huge + b"x" * chance.randrange(99), code=TOO_LARGE)


def unknown(chance: Random) -> Breach:
    codes = (*range(6, 12), *range(0x400, 0x410), *range(0x800, 0x820), 0x0C0A, 0x1000, 0xFBFF)
    lies = [code for code in codes if code not in coded()]
    return Breach(head=pack(start(3), INPUT, Packet(chance.choice(lies), 0, b""), SECOND))


def flags(chance: Random) -> Breach:
    lies = [
        packet("SetState", COMPLETED, key=b"k", value=b"v"),
        packet("Run", COMPLETED, value=b"1"),
        packet("Sleep", 1 << chance.randrange(1, 15), wake_up_time=1),
        packet("Sleep", COMPLETED, wake_up_time=1),
        Packet(0x0C01, 0, FIRST.body),
        packet("EntryAck", ACK, entry_index=0),
    ]
    return Breach(head=pack(start(3), INPUT, chance.choice(lies), SECOND))


def openings(chance: Random) -> Breach:
    """Messages that a stream must not begin with, nor a replay contain."""
    lies = [
        [INPUT, start(3), FIRST, SECOND],
        [start(3), start(3), FIRST, SECOND],
        [start(0)],
        [start(3), FIRST, INPUT, SECOND],
        [start(3), INPUT, INPUT, SECOND],
        [start(4), *JOURNAL],
        [start(3), INPUT, completion(1, HELLO), FIRST, SECOND],
        [start(3), INPUT, packet("EntryAck", entry_index=0), FIRST, SECOND],
        [start(3), INPUT, packet("End"), SECOND],
        [start(3), INPUT, packet("Suspension", entry_indexes=[1]), SECOND],
        [start(3), INPUT, packet("Error", code=500), SECOND],
    ]
    return Breach(head=pack(*chance.choice(lies)))


def mismatches(chance: Random) -> Breach:
    """Entries that the handler does not make."""
    lies = [
        packet("Sleep", COMPLETED, wake_up_time=1, empty={}),
        packet("Call", service_name="Steps", handler_name="nap", parameter=b'"a"'),
        packet("Run", name="r", value=b"1"),
        packet("OneWayCall", **CALL, parameter=b'"a"'),
        Packet(0xFC02, 0, b""),
        Packet(0xFC77, 0, b""),
    ]
    return Breach(head=pack(start(3), INPUT, chance.choice(lies), SECOND), code=MISMATCH)


def bodies(chance: Random) -> Breach:
    code = chance.choice([code for code in coded() if code > 0x400])
    junk = [b"\x0a\xff\xff\xff\xff\x0f", varint(15 << 3 | 2) + b"\x05ab", b"\xff"]
    messages = [start(3), INPUT, Packet(code, 0, chance.choice(junk)), SECOND]
    if chance.random() < 0.2:
        messages[0] = Packet(0, 0, junk[0])
    return Breach(head=pack(*messages))


def later(chance: Random) -> Breach:
    """Messages that may not come once the handler works."""
    lies = [
        packet("SetState", key=b"k", value=b"v"),
        start(3),
        INPUT,
        packet("End"),
        packet("Error", code=500),
        packet("Suspension", entry_indexes=[2]),
        completion(0, HELLO),
        completion(chance.randrange(3, 1 << 32), HELLO),
        completion(2, ("empty", {})),
        packet("Completion", entry_index=2),
        packet("EntryAck", entry_index=chance.randrange(3, 1 << 32)),
        Packet(0x0001, COMPLETED, completion(2, HELLO).body),
        Packet(0x0006, 0, b""),
    ]
    return Breach(head=valid(), later=chance.choice(lies).bytes())


BREACHES: tuple[Callable[[Random], Breach], ...] = (
    *(heads, truncated, oversized, unknown, flags, openings, mismatches, bodies, later, later),
)
