"""Streams that break the protocol, sent to a real server: each is refused, none leaves anything."""

import asyncio
import sys
from random import Random

import psutil
import pytest

from support.invocations.asgi_process import hypercorn, served, uvicorn
from support.invocations.scenarios import until
from support.peers.protocol_peer import Peer
from support.peers.runtime_breaches import BREACHES
from support.peers.streams import Duplex, Exchange
from support.peers.wire import unpacked

EACH = 50
ONCE = 16
GROWN_BYTES = 40 << 20


async def _refused(url, breach, *, duplex):
    """Send it; return the status and the messages that came."""
    stream = Duplex(url) if duplex else Exchange(url)
    # Over HTTP/1.1 all is said before the handler works: what comes too late comes at once.
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
        parts = []
        while (part := await stream.receive()) is not None:
            parts.append(part)
        packets, left = unpacked(b"".join(parts)) if stream.status == 200 else ([], b"")
        assert not left, breach
        return stream.status, packets
    finally:
        await stream.gone()


async def _left(url, *, duplex):
    """What the server holds of streams, the one that asks included."""
    async with Peer(url, duplex=duplex, version=3) as peer:
        return await peer.call("Newer", "left")


def _judge(breach, answer):
    status, packets = answer
    assert status == breach.status, (breach, status)
    if status == 200:
        assert [each.name for each in packets] == ["ErrorMessage"], (breach, packets)
        told = packets[0].message
        assert told["code"] == breach.code, (breach, told)
        assert told["message"]
        assert "Traceback" not in told["message"] + told["description"]


@pytest.mark.parametrize(
    ("server_of", "duplex"),
    [(hypercorn, False), (hypercorn, True), (uvicorn, False)],
    ids=["exchange", "duplex", "uvicorn"],
)
async def test_endpoint_refuses_malformed_streams(tmp_path, record_property, server_of, duplex):
    chance = Random(duplex)
    breaches = [breach(chance) for _ in range(EACH) for breach in BREACHES]

    with served(sys.executable, "project_services:app", tmp_path, server_of) as server:
        process = psutil.Process(server.process.pid)
        for breach in breaches[:10]:
            await _refused(server.url, breach, duplex=duplex)
        before = await _left(server.url, duplex=duplex)
        assert before["streams"] == 1
        files, size = process.num_fds(), process.memory_info().rss
        turns = asyncio.Semaphore(ONCE)

        async def one(breach):
            async with turns:
                answer = await _refused(server.url, breach, duplex=duplex)
            if answer is not None:
                _judge(breach, answer)

        await asyncio.gather(*map(one, breaches))

        async def settled():
            closed = process.num_fds() <= files
            return closed and await _left(server.url, duplex=duplex) == before

        await until(settled)
        assert process.memory_info().rss - size < GROWN_BYTES
        assert "Traceback" not in server.told, server.told
    record_property("malformed_streams", len(breaches))
