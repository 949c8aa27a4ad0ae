"""A service endpoint under uvicorn and hypercorn: streams side by side, and streams that break."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack, asynccontextmanager

import pytest

from durable_invocations import Context, Service, service_app
from durable_invocations.protocol.decoding import Decoder
from durable_invocations.protocol.frames import encode, make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.protocol.versions import format_content_type
from durable_invocations.runtime.http.client import HTTP_1, HTTP_2, HttpClient
from durable_invocations.runtime.http.discovery import discover_deployment
from durable_invocations.runtime.http.exchange import Address, Request
from runtime_support.endpoints.asgi_servers import hypercorn_of, uvicorn_of
from runtime_support.endpoints.asgi_stream import completion, names
from runtime_support.journal_frames import ack

STREAMS = 12
service = Service("S")
ended = threading.Event()
exchanges = []


@service.handler
async def steps(ctx: Context, count: int) -> list:
    first = await ctx.run("first", lambda: count)
    await ctx.sleep(1)
    return [first, ctx.id]


@service.handler
async def works(ctx: Context) -> None:
    ctx.send("T", "h")
    try:
        await asyncio.sleep(60)
    finally:
        ended.set()


@pytest.fixture(scope="module")
def urls():
    with ExitStack() as stack:
        app = service_app(service)
        yield {
            HTTP_1: stack.enter_context(uvicorn_of(app)).url,
            HTTP_2: stack.enter_context(hypercorn_of(app)).url,
        }


def make_replay(known=1, value=b"5"):
    start = pb.StartMessage(id=b"i" * 16, debug_id="inv_1i", known_entries=known)
    return [make_frame(start), make_frame(pb.InputEntryMessage(value=value))]


class Stream:
    def __init__(self, exchange):
        self.exchange = exchange
        self.decoder = Decoder()
        self.frames = []

    async def send(self, *frames, end=False):
        await self.exchange.send(b"".join(map(encode, frames)), end=end)

    async def receive(self):
        while not self.frames:
            data = await asyncio.wait_for(self.exchange.receive(), 10)
            if not data:
                return None
            self.frames += self.decoder.feed(data)
        return self.frames.pop(0)

    async def receive_all(self):
        frames = []
        while (frame := await self.receive()) is not None:
            frames.append(frame)
        return frames


async def open_stream(client, url, version, path="/invoke/S/steps", kind=None, **more):
    headers = [("content-type", kind or format_content_type(3)), *more.items()]
    request = Request(method="POST", path=path, headers=headers)
    exchange = await client.open(Address.parse(url), request, version)
    exchanges.append(exchange)
    return Stream(exchange)


@asynccontextmanager
async def new_client():
    client = HttpClient()
    try:
        yield client
    finally:
        while exchanges:
            await exchanges.pop().close()
        await client.close()


async def test_a_runtime_discovers_what_is_served(urls):
    async with new_client() as client:
        for url in urls.values():
            (described,) = (await discover_deployment(client, url)).manifest.services
            names_ = [handler.name for handler in described.handlers]
            assert (described.name, names_) == ("S", ["steps", "works"])


async def test_streams_of_one_connection_do_not_end_each_other(urls):
    async with new_client() as client:

        async def run_to_output(number):
            stream = await open_stream(client, urls[HTTP_2], HTTP_2)
            await stream.send(*make_replay(value=b"%d" % number))
            assert names([await stream.receive()]) == ["Run"]
            await stream.send(ack(1))
            assert names([await stream.receive()]) == ["Sleep"]
            await stream.send(completion(2))
            output, end = await stream.receive(), await stream.receive()
            assert names([end]) == ["End"]
            await stream.send(end=True)
            assert await stream.receive() is None
            return output.message().value

        async def get_status(path, kind, **headers):
            stream = await open_stream(client, urls[HTTP_2], HTTP_2, path, kind, **headers)
            head = await stream.exchange.read_head()
            await stream.exchange.send(b"whatever", end=True)
            return head.status

        first = await open_stream(client, urls[HTTP_2], HTTP_2)
        await first.send(*make_replay())
        await first.receive()
        answers = await asyncio.gather(
            *(run_to_output(number) for number in range(STREAMS)),
            get_status("/invoke/S/none", None),
            get_status("/invoke/S/steps", "text/plain"),
            get_status("/invoke/S/steps", None, origin="http://foreign.example"),
        )
        await first.send(ack(1))
        assert names([await first.receive()]) == ["Sleep"]
        await first.send(completion(2), end=True)
        assert names(await first.receive_all()) == ["Output", "End"]
    assert answers[:STREAMS] == [b'[%d,"inv_1i"]' % number for number in range(STREAMS)]
    assert answers[STREAMS:] == [404, 415, 403]


async def test_a_request_is_answered_entry_by_entry(urls):
    async with new_client() as client:
        stream = await open_stream(client, urls[HTTP_1], HTTP_1)
        await stream.send(*make_replay(), end=True)
        assert names(await stream.receive_all()) == ["Run", "Suspension"]


@pytest.mark.parametrize("version", [HTTP_1, HTTP_2])
async def test_a_handler_ends_with_its_connection(urls, version):
    ended.clear()
    async with new_client() as client:
        stream = await open_stream(client, urls[version], version, "/invoke/S/works")
        await stream.send(*make_replay(), end=True)
        assert names([await stream.receive()]) == ["OneWayCall"]
    assert await asyncio.to_thread(ended.wait, 10)


@pytest.mark.parametrize("version", [HTTP_1, HTTP_2])
async def test_a_breach_ends_its_own_stream_alone(urls, version):
    async with new_client() as client:
        broken = await open_stream(client, urls[version], version)
        await broken.send(*make_replay(known=3), end=True)
        (error,) = await broken.receive_all()
        sound = await open_stream(client, urls[version], version)
        await sound.send(*make_replay(), end=True)
        assert (error.message().code, names(await sound.receive_all())) == (
            571,
            ["Run", "Suspension"],
        )
