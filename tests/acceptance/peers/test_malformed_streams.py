"""Streams that break the protocol, sent to a real server: each is refused, none leaves anything."""

import asyncio
import sys
from random import Random

import psutil
import pytest

from support.invocations.asgi_process import PROJECT_SERVICES, served, uvicorn
from support.invocations.scenarios import until
from support.peers.protocol_peer import Peer
from support.peers.runtime_breaches import BREACHES
from support.peers.streams import Duplex, Exchange
from support.peers.wire import unpack

ONCE = 16
GROWN_BYTES = 40 << 20


async def send_breach(url, breach, *, duplex):
    """Send it; return the status and the messages that came, or None where it leaves."""
    stream = Duplex(url) if duplex else Exchange(url)
    # Over HTTP/1.1 everything is sent before the handler works: late messages come at once.
    body = breach.head if duplex else breach.head + breach.later
    try:
        await stream.open(
            breach.method, breach.path, [("content-type", breach.media)], body, end=not duplex
        )
        if duplex and breach.later:
            await stream.send(breach.later)
        if breach.leaves:
            return None
        await stream.close()
        content = await stream.read()
        packets, left = unpack(content) if stream.status == 200 else ([], b"")
        assert not left, breach
        return stream.status, packets
    finally:
        await stream.break_off()


async def count_remains(url, *, duplex):
    """Return what the server has of streams, including the one that asks."""
    async with Peer(url, duplex=duplex, version=3) as peer:
        return await peer.call("Newer", "left")


def check_refusal(breach, answer):
    status, packets = answer
    assert status == breach.status, (breach, status)
    if status == 200:
        assert [packet.name for packet in packets] == ["ErrorMessage"], (breach, packets)
        error = packets[0].message
        assert error["code"] == breach.code, (breach, error)
        assert error["message"]
        assert "Traceback" not in error["message"] + error["description"]


@pytest.mark.parametrize("each", [5, pytest.param(50, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    ("options", "duplex"),
    [((), False), ((), True), ((uvicorn,), False)],
    ids=["exchange", "duplex", "uvicorn"],
)
async def test_endpoint_refuses_malformed_streams(record_property, tmp_path, options, duplex, each):
    # No other test has streams there.
    with served(sys.executable, PROJECT_SERVICES, tmp_path, *options) as server:
        await check_endpoint(record_property, server, duplex, each)


async def check_endpoint(record_property, server, duplex, each):
    chance = Random(duplex)
    breaches = [breach(chance) for _ in range(each) for breach in BREACHES]
    process, written = psutil.Process(server.process.pid), len(server.output)
    for breach in breaches[:10]:
        await send_breach(server.url, breach, duplex=duplex)

    async def left_alone():
        return (await count_remains(server.url, duplex=duplex))["streams"] == 1

    # The server learns of a stream that was broken off a moment after its peer.
    await until(left_alone)
    before = await count_remains(server.url, duplex=duplex)
    assert before["streams"] == 1
    files, size = process.num_fds(), process.memory_info().rss
    turns = asyncio.Semaphore(ONCE)

    async def try_breach(breach):
        async with turns:
            answer = await send_breach(server.url, breach, duplex=duplex)
        if answer is not None:
            check_refusal(breach, answer)

    await asyncio.gather(*map(try_breach, breaches))

    async def settled():
        closed = process.num_fds() <= files
        return closed and await count_remains(server.url, duplex=duplex) == before

    await until(settled)
    assert process.memory_info().rss - size < GROWN_BYTES
    assert "Traceback" not in server.output[written:], server.output
    record_property("malformed_streams", len(breaches))
