"""Answers of a service endpoint that break the protocol, each in one way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from support.peers.proto_text import coded
from support.peers.wire import ACK, COMPLETED, HEADER, Packet, packet, varint

MEDIA = "application/vnd.restate.invocation.v{version}"
DONE = [packet("Output", value=b'"done"'), packet("End")]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A response: its head, its body, and whether the connection breaks in place of its end."""

    status: int = 200
    media: str | None = MEDIA
    body: bytes = b""
    broken: bool = False
    raw: bytes | None = field(default=None, repr=False)
    """What is sent over HTTP/1.1 in place of a response."""


def pack(*packets: Packet) -> bytes:
    return b"".join(each.bytes() for each in packets)


TO_ITSELF = {"service_name": "Liar", "handler_name": "go", "key": "k", "parameter": b"-1"}
TRUE_STARTS = [
    packet("Sleep", wake_up_time=1),
    packet("SetState", key=b"k", value=b"v"),
    packet("Run", ACK, name="r", value=b"1"),
    packet("Awakeable"),
    Packet(0xFC07, 0, b""),
]
"""Entries that may come before a lie; they are stored."""


def _build_answer(chance: Random, *lies: Packet | bytes) -> Answer:
    starts = chance.sample(TRUE_STARTS, chance.randrange(3))
    parts = (lie if isinstance(lie, bytes) else lie.bytes() for lie in (*starts, *lies))
    return Answer(body=b"".join(parts))


def heads(chance: Random) -> Answer:
    """Responses that no service endpoint gives."""
    wrong = ["text/html", None, "application/vnd.restate.invocation.v9", MEDIA[:-9]]
    if chance.random() < 0.5:
        return Answer(media=chance.choice(wrong), body=pack(*DONE))
    return Answer(status=chance.choice([201, 204, 302, 400, 404, 415, 429, 500, 503]), body=b"no")


def broken(chance: Random) -> Answer:
    """Streams that break off, within a message or between two."""
    body = pack(*chance.sample(TRUE_STARTS, 3), *DONE)
    return Answer(body=body[: chance.randrange(len(body) - 8)], broken=chance.random() < 0.7)


def oversized(chance: Random) -> Answer:
    code = chance.choice([0x0401, 0x0801, 0x0C05, 0xFC00])
    head = HEADER.pack(code, 0, chance.randrange(1 << 26, 1 << 32))
    return _build_answer(chance, head + b"x" * 100)


def unknown(chance: Random) -> Answer:
    codes = [code for code in (*range(6, 12), *range(0x400, 0x410), *range(0x800, 0x820)) if code]
    codes += [0x0C0A, 0x0C20, 0x1000, 0xFBFF]
    lies = [code for code in codes if code not in coded()]
    return _build_answer(chance, Packet(chance.choice(lies), 0, b""), *DONE)


def flags(chance: Random) -> Answer:
    """COMPLETED where nothing completes, or without its result; unknown bits."""
    lies = [
        packet("SetState", COMPLETED, key=b"k", value=b"v"),
        packet("Run", COMPLETED | ACK, value=b"1"),
        packet("Output", COMPLETED, value=b"1"),
        packet("Sleep", COMPLETED, wake_up_time=1),
        packet("Sleep", 0, wake_up_time=1, empty={}),
        packet("GetState", COMPLETED, key=b"k"),
        packet("Awakeable", 0, value=b"1"),
        packet("Sleep", 1 << chance.randrange(1, 15), wake_up_time=1),
        packet("End", ACK),
        packet("Suspension", COMPLETED, entry_indexes=[0]),
    ]
    return _build_answer(chance, chance.choice(lies), *DONE)


def suspensions(chance: Random) -> Answer:
    """On nothing, on what was not sent, is not completable, or is completed."""
    done = packet("GetState", COMPLETED, key=b"k", empty={})
    lies = [
        (packet("Suspension"),),
        (packet("Suspension", entry_indexes=[chance.randrange(20, 1 << 32)]),),
        (packet("Suspension", entry_indexes=[0]),),
        (packet("SetState", key=b"k", value=b"v"), packet("Suspension", entry_indexes=[1])),
        (done, packet("Suspension", entry_indexes=[1])),
        (packet("OneWayCall", **TO_ITSELF), packet("Suspension", entry_indexes=[1])),
    ]
    return Answer(body=pack(*chance.choice(lies)))


def endings(chance: Random) -> Answer:
    """An end without an output, an entry after it, two of them, or what the runtime alone sends."""
    lies = [
        (packet("End"),),
        (DONE[0], packet("SetState", key=b"k", value=b"v"), DONE[1]),
        (DONE[0], *DONE),
        (packet("Start", id=b"x", known_entries=1), *DONE),
        (packet("Completion", entry_index=0, value=b"x"), *DONE),
        (packet("EntryAck", entry_index=0), *DONE),
        (packet("Input", value=b"x"), *DONE),
        (packet("Output"), DONE[1]),
        (packet("Run", ACK), *DONE),
    ]
    return _build_answer(chance, *chance.choice(lies))


def bodies(chance: Random) -> Answer:
    """Messages that are not protobuf, or have contents that their kind may not have."""
    code = chance.choice([code for code in coded() if code > 1])
    junk = [
        Packet(code, 0, b"\x0a\xff\xff\xff\xff\x0f"),
        Packet(code, 0, varint(15 << 3 | 2) + b"\x05ab"),
        Packet(0xFC00, 0, varint(13 << 3 | 2) + b"\x00"),
        Packet(0xFC00, 0, b"\xff"),
        Packet(0x0C03, 0, b"\x62\x02\xff\xfe"),
        packet("Call", **TO_ITSELF, idempotency_key=""),
        packet("CancelInvocation"),
        packet("AttachInvocation"),
    ]
    return _build_answer(chance, chance.choice(junk), *DONE)


def refused(chance: Random) -> Answer:
    """Entries that the runtime cannot do."""
    lies = [
        packet("Call", service_name="Nobody", handler_name="go"),
        packet("Call", **TO_ITSELF | {"handler_name": "nothing"}),
        packet("Call", **TO_ITSELF | {"key": ""}),
        packet("OneWayCall", service_name="Nobody", handler_name="go"),
        packet("CompleteAwakeable", id="prom_1", value=b"x"),
        packet("CompleteAwakeable", id="nonsense", value=b"x"),
        packet("GetCallInvocationId", call_entry_index=99),
        packet("AttachInvocation", call_entry_index=0),
        packet("CancelInvocation", call_entry_index=77),
        packet("CancelInvocation", invocation_id="nonsense"),
    ]
    return _build_answer(chance, chance.choice(lies), *DONE)


def http1(chance: Random) -> Answer:
    """Bytes that are not HTTP."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/vnd.restate.invocation.v3\r\n"
    lies = [
        b"",
        b"HTTP/1.1 200",
        b"nonsense\r\n\r\n",
        head + b"content-length: 999\r\n\r\nxx",
        head + b"content-length: -1\r\n\r\n",
        head + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        head + b"transfer-encoding: chunked\r\n\r\n5\r\nab",
        head + b"x" * 200_000,
        b"HTTP/9.9 200 OK\r\n\r\n",
        b"HTTP/1.1 999999 No\r\n\r\n",
    ]
    return Answer(raw=chance.choice(lies), broken=True)


LIES: tuple[Callable[[Random], Answer], ...] = (
    *(heads, broken, oversized, unknown, flags, suspensions, endings, bodies, refused, http1),
)
