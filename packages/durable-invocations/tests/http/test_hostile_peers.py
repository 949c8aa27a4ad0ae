"""What hostile or broken peers may do to the runtime that speaks to them."""

import asyncio

import h2.events
import hpack
import pytest
from hyperframe.frame import (
    ContinuationFrame,
    HeadersFrame,
    PingFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from durable_invocations.runtime.http.exchange import Address, DeploymentUnreachableError, Request
from durable_invocations.runtime.http.http1 import Http1
from runtime_support.endpoints.scripted_peers import (
    POST,
    closing,
    connect,
    h2_peer,
    is_request,
    raw_peer,
    read_body,
    send_response,
)
from runtime_support.errors import raises_naming

SETTINGS = SettingsFrame(0).serialize()


async def test_an_empty_part_is_not_the_end_of_a_response():
    def answer(connection, event):
        if is_request(event):
            send_response(connection, event.stream_id, b"", end=False)
            connection.send_data(event.stream_id, b"one ")
            connection.send_data(event.stream_id, b"", pad_length=7)
            connection.send_data(event.stream_id, b"")
            connection.send_data(event.stream_id, b"two", end_stream=True)

    async with connect(h2_peer(answer)) as open_exchange:
        exchange = await open_exchange()
        await exchange.send(b"", end=True)
        assert await read_body(exchange) == b"one two"


async def test_empty_parts_take_no_memory():
    """They use up no window, so a peer may send any number of them."""
    arrived = asyncio.Event()

    def answer(connection, event):
        if is_request(event):
            send_response(connection, event.stream_id, b"", end=False)
            for _ in range(10_000):
                connection.send_data(event.stream_id, b"")
            connection.ping(b"arrived?")
        elif isinstance(event, h2.events.PingAckReceived):
            arrived.set()

    async with connect(h2_peer(answer)) as open_exchange:
        exchange = await open_exchange()
        await exchange.send(b"", end=True)
        await arrived.wait()
        assert len(exchange._parts) == 0


async def test_a_peer_that_does_not_read_is_dropped_before_its_answers_fill_the_memory():
    """Each ping and each settings frame must be answered, whether or not the answers are read."""
    flood = PingFrame(0, b"floooood").serialize() * 4_000

    async def talk(reader, writer):
        writer.write(SETTINGS)
        await reader.read(65_536)
        while True:
            writer.write(flood)
            await writer.drain()

    async with connect(raw_peer(talk)) as open_exchange:
        exchange = await open_exchange()
        with raises_naming(DeploymentUnreachableError, "answers"):
            await exchange.read_head()


ENCODED = hpack.Encoder().encode([(":status", "200"), ("x", "y" * 4_000)])
FLOODS = {
    "a head that never ends": HeadersFrame(1, b"\x88").serialize()
    + ContinuationFrame(1, b"\0" * 99).serialize() * 99,
    "a head that is small until it is unpacked": HeadersFrame(
        1, ENCODED + b"\xbe" * 9_000, flags=["END_HEADERS"]
    ).serialize(),
    "a window beyond the largest": WindowUpdateFrame(0, window_increment=2**31 - 1).serialize() * 2,
}


@pytest.mark.parametrize("flood", FLOODS)
async def test_a_peer_that_breaks_a_bound_of_http_2_is_dropped(flood):
    async def talk(reader, writer):
        writer.write(SETTINGS)
        received = b""
        while len(received) < 190:
            received += await reader.read(65_536)
        writer.write(FLOODS[flood])
        while await reader.read(65_536):
            pass

    async with connect(raw_peer(talk)) as open_exchange:
        exchange = await open_exchange(Request(method="POST", path=f"/{'x' * 150}"))
        await exchange.send(b"x", end=True)
        with raises_naming(DeploymentUnreachableError, "HTTP/2") as caught:
            await asyncio.wait_for(exchange.read_head(), 20)
        assert not str(caught.value).endswith("..")


@pytest.mark.parametrize("stale", ["early", "late"])
async def test_an_unrequested_response_answers_no_request(stale):
    """A server may say 408 before it closes; one that lies answers another's request."""
    unrequested = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nother"
    is_first_read = asyncio.Event()

    async def talk(reader, writer):
        first = True
        while await reader.readuntil(b"\r\n\r\n"):
            mine = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nmine"
            writer.write(mine + unrequested * (first and stale == "early"))
            await writer.drain()
            if first and stale == "late":
                await is_first_read.wait()
                writer.write(unrequested)
                await writer.drain()
            first = False

    async with raw_peer(talk) as url, closing(Http1()) as pool:
        for _ in range(2):
            async with closing(pool.open(Address.parse(url), POST)) as exchange:
                await exchange.send(b"", end=True)
                await exchange.read_head()
                assert await read_body(exchange) == b"mine"
            is_first_read.set()
            await asyncio.sleep(0.05)
