"""Peers that answer as a test says, byte by byte or frame by frame, and who asks them."""

import asyncio
from contextlib import asynccontextmanager

import h2.config
import h2.connection
import h2.events
import h2.settings


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
        for each in tasks:
            each.cancel()
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
            ended = [answer(connection, event) for event in connection.receive_data(data)]
            writer.write(connection.data_to_send())
            await writer.drain()
            if any(each is not None for each in ended):
                return

    async with raw_peer(talk) as url:
        yield url


def answered(connection, number, body=b"", *, end=True):
    """Send a response with status 200."""
    connection.send_headers(number, [(":status", "200"), ("content-type", "text/x")])
    connection.send_data(number, body, end_stream=end)


def asked(event):
    return isinstance(event, h2.events.RequestReceived)


@asynccontextmanager
async def asking(pool):
    """A client or its connections, closed at the end."""
    try:
        yield pool
    finally:
        await pool.close()


async def whole(exchange):
    found = bytearray()
    while part := await exchange.receive():
        found += part
    return bytes(found)
