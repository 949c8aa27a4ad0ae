"""Peers that answer as a test says, byte by byte or frame by frame."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import h2.config
import h2.connection
import h2.events
import h2.settings

from durable_invocations.runtime.http.exchange import Address, Request
from durable_invocations.runtime.http.http2 import Http2

POST = Request(method="POST", path="/x")


@asynccontextmanager
async def raw_peer(talk):
    """The URL of a server that runs `talk(reader, writer)` for each connection."""
    tasks = set()

    async def run(reader, writer):
        tasks.add(asyncio.current_task())
        try:
            await talk(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(run, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def h2_peer(answer, settings=()):
    """The URL of an HTTP/2 server that runs `answer(connection, event)` for each event of h2.

    What `answer` returns, if it is not None, ends the connection after what was sent.
    """

    async def talk(reader, writer):
        config = h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        connection = h2.connection.H2Connection(config)
        connection.local_settings = h2.settings.Settings(
            client=False, initial_values=dict(settings)
        )
        connection.initiate_connection()
        writer.write(connection.data_to_send())
        while data := await reader.read(65_536):
            results = [answer(connection, event) for event in connection.receive_data(data)]
            writer.write(connection.data_to_send())
            await writer.drain()
            if any(result is not None for result in results):
                return

    async with raw_peer(talk) as url:
        yield url


def send_response(connection, number, body=b"", *, end=True):
    """Send a response with status 200."""
    connection.send_headers(number, [(":status", "200"), ("content-type", "text/x")])
    connection.send_data(number, body, end_stream=end)


def is_request(event):
    return isinstance(event, h2.events.RequestReceived)


@asynccontextmanager
async def closing(pool):
    """A client, its connections or an exchange, until the block ends."""
    try:
        yield pool
    finally:
        await pool.close()


@asynccontextmanager
async def connect(peer, **options):
    """A function that opens an HTTP/2 exchange with this peer, until the block ends."""
    async with AsyncExitStack() as stack:
        address = Address.parse(await stack.enter_async_context(peer))
        pool = await stack.enter_async_context(closing(Http2(**options)))

        async def open_exchange(request=POST):
            return await stack.enter_async_context(closing(await pool.open(address, request)))

        yield open_exchange


async def read_body(exchange):
    body = bytearray()
    while part := await exchange.receive():
        body += part
    return bytes(body)
