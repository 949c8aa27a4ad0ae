"""What hostile or broken peers may do to the runtime that speaks to them."""

import asyncio

import h2.events
import h2.settings
import hpack
import pytest
from hyperframe.frame import (
    ContinuationFrame,
    HeadersFrame,
    PingFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from durable_invocations.runtime.http.client import HTTP_2, HttpClient
from durable_invocations.runtime.http.exchange import Address, DeploymentUnreachableError, Request
from durable_invocations.runtime.http.http1 import Http1
from durable_invocations.runtime.http.http2 import Http2
from runtime_support.endpoints.asgi_servers import run
from runtime_support.endpoints.scripted_peers import (
    answered,
    asked,
    asking,
    h2_peer,
    raw_peer,
    whole,
)

POST = Request(method="POST", path="/x")
SETTINGS = SettingsFrame(0).serialize()


async def test_a_part_that_is_empty_is_not_the_end_of_a_response():
    def answer(connection, event):
        if asked(event):
            answered(connection, event.stream_id, b"", end=False)
            connection.send_data(event.stream_id, b"one ")
            connection.send_data(event.stream_id, b"", pad_length=7)
            connection.send_data(event.stream_id, b"")
            connection.send_data(event.stream_id, b"two", end_stream=True)

    async with h2_peer(answer) as url, asking(HttpClient()) as client:
        exchange = await client.open(Address.parse(url), POST, HTTP_2)
        await exchange.send(b"", end=True)
        assert await whole(exchange) == b"one two"
        await exchange.close()


async def test_parts_that_are_empty_take_no_memory():
    """They use up no window, so a peer may send any number of them."""
    arrived = asyncio.Event()

    def answer(connection, event):
        if asked(event):
            answered(connection, event.stream_id, b"", end=False)
            for _ in range(10_000):
                connection.send_data(event.stream_id, b"")
            connection.ping(b"arrived?")
        elif isinstance(event, h2.events.PingAckReceived):
            arrived.set()

    async with h2_peer(answer) as url, asking(HttpClient()) as client:
        exchange = await client.open(Address.parse(url), POST, HTTP_2)
        await exchange.send(b"", end=True)
        await arrived.wait()
        kept = len(exchange._parts)
        await exchange.close()
        assert kept == 0


async def test_a_peer_that_reads_nothing_is_given_up_before_its_answers_fill_the_memory():
    """Each ping and each settings frame must be answered, whether or not the answers are read."""
    flood = PingFrame(0, b"floooood").serialize() * 4_000

    async def talk(reader, writer):
        writer.write(SETTINGS)
        await reader.read(65_536)
        while True:
            writer.write(flood)
            await writer.drain()

    async with raw_peer(talk) as url, asking(Http2()) as pool:
        exchange = await pool.open(Address.parse(url), POST)
        with pytest.raises(DeploymentUnreachableError, match="does not read"):
            await exchange.read_head()
        await exchange.close()


def continued():
    """A head that never ends."""
    return HeadersFrame(1, b"\x88").serialize() + ContinuationFrame(1, b"\0" * 99).serialize() * 99


def packed():
    """A head that is small until it is unpacked."""
    encoded = hpack.Encoder().encode([(":status", "200"), ("x", "y" * 4_000)])
    return HeadersFrame(1, encoded + b"\xbe" * 9_000, flags=["END_HEADERS"]).serialize()


def windowed():
    """A window beyond what the protocol has."""
    return WindowUpdateFrame(0, window_increment=2**31 - 1).serialize() * 2


@pytest.mark.parametrize("flood", [continued, packed, windowed])
def test_a_peer_that_floods_is_given_up(flood):
    async def talk(reader, writer):
        writer.write(SETTINGS)
        got = b""
        while len(got) < 190:
            got += await reader.read(65_536)
        writer.write(flood())
        while await reader.read(65_536):
            pass

    async def inside():
        long = Request(method="POST", path=f"/{'x' * 150}")
        async with raw_peer(talk) as url, asking(Http2()) as pool:
            exchange = await pool.open(Address.parse(url), long)
            await exchange.send(b"x", end=True)
            with pytest.raises(DeploymentUnreachableError, match=r"broke HTTP/2: .*[^.]\.$"):
                await exchange.read_head()
            await exchange.close()
            return True

    assert run(inside(), 20)


@pytest.mark.parametrize("stale", [b"early", b"late"])
async def test_a_response_that_nobody_asked_for_answers_no_request(stale):
    """A server may say 408 before it closes; one that lies answers another's request."""
    unasked = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nother"

    asked_twice = asyncio.Event()

    async def talk(reader, writer):
        first = True
        while await reader.readuntil(b"\r\n\r\n"):
            mine = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nmine"
            writer.write(mine + unasked * (first and stale == b"early"))
            await writer.drain()
            if first and stale == b"late":
                await asked_twice.wait()
                writer.write(unasked)
                await writer.drain()
            first = False

    async with raw_peer(talk) as url, asking(Http1()) as pool:
        address = Address.parse(url)
        found = []
        for _ in range(2):
            exchange = pool.open(address, POST)
            await exchange.send(b"", end=True)
            await exchange.read_head()
            found.append(await whole(exchange))
            await exchange.close()
            asked_twice.set()
            await asyncio.sleep(0.05)
        assert found == [b"mine", b"mine"]
