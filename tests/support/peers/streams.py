"""One stream of messages: a request and its response over HTTP/1.1, or both ways over HTTP/2."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import h2.config
import h2.connection
import h2.events
import h11

STALL_SECONDS = 30.0
"""A peer that owes something and sends nothing for so long has hung."""
_ENDS = (h2.events.StreamEnded, h2.events.StreamReset, h2.events.ConnectionTerminated)
Headers = Iterable[tuple[str, str]]


class Stream:
    """What both kinds share: a connection of its own, a status and headers."""

    def __init__(self, url: str) -> None:
        self.url = urlsplit(url)
        self.status = 0
        self.headers: dict[str, str] = {}
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None

    async def connect(self) -> None:
        host, port = self.url.hostname, self.url.port
        self._reader, self._writer = await asyncio.open_connection(host, port)

    async def _more(self) -> bytes:
        return await asyncio.wait_for(self._reader.read(65536), STALL_SECONDS)

    def path(self, below: str) -> str:
        return self.url.path.rstrip("/") + below

    async def read(self) -> bytes:
        """Return the rest of the response's body."""
        parts = []
        while (part := await self.receive()) is not None:
            parts.append(part)
        return b"".join(parts)

    async def break_off(self) -> None:
        """Break the connection off, if there is one, as a crash of either side does."""
        if self._writer is not None:
            self._writer.transport.abort()
            with suppress(OSError):
                await self._writer.wait_closed()


class Exchange(Stream):
    """HTTP/1.1: the whole request first, then the response."""

    duplex = False

    async def open(
        self, method: str, path: str, headers: Headers, body: bytes, *, end: bool = True
    ) -> None:
        assert end, "nothing can follow the request's first bytes here"
        await self.connect()
        self._http = h11.Connection(our_role=h11.CLIENT)
        own = [("host", self.url.netloc), ("content-length", str(len(body)))]
        request = h11.Request(method=method, target=self.path(path), headers=[*own, *headers])
        self._writer.write(self._http.send(request))
        self._writer.write(self._http.send(h11.Data(data=body)))
        self._writer.write(self._http.send(h11.EndOfMessage()))
        with suppress(ConnectionError):
            await self._writer.drain()

    async def receive(self) -> bytes | None:
        """Return the next part of the response's body; None at its end."""
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                try:
                    self._http.receive_data(await self._more())
                except ConnectionError:
                    return None
            elif isinstance(event, h11.Response):
                self.status = event.status_code
                self.headers = {name.decode(): value.decode() for name, value in event.headers}
            elif isinstance(event, h11.Data):
                return bytes(event.data)
            else:
                return None

    async def send(self, data: bytes) -> None:
        """Nothing can be sent any more."""

    async def close(self) -> None:
        """The request ended when it was made."""


class Duplex(Stream):
    """HTTP/2 with prior knowledge: both sides send at any time."""

    duplex = True

    async def open(
        self, method: str, path: str, headers: Headers, body: bytes, *, end: bool = False
    ) -> None:
        await self.connect()
        config = h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        self._http = h2.connection.H2Connection(config)
        self._http.initiate_connection()
        self._id = self._http.get_next_available_stream_id()
        self._parts: list[bytes] = []
        self._ended = self._closed = self._reading = False
        self._moved = asyncio.Event()
        own = [(":method", method), (":path", self.path(path)), (":scheme", "http")]
        self._http.send_headers(
            self._id, [*own, (":authority", self.url.netloc), *headers], end_stream=end and not body
        )
        self._flush()
        if body:
            await self.send(body)
            if end:
                await self.close()

    def _flush(self) -> None:
        self._writer.write(self._http.data_to_send())

    async def _pump(self) -> None:
        """Read what comes next, or wait while another task does."""
        if self._reading:
            await asyncio.wait_for(self._moved.wait(), STALL_SECONDS)
            return
        self._reading = True
        try:
            data = await self._more()
        except ConnectionError:
            data = b""
        finally:
            self._reading = False
        self._moved.set()
        self._moved = asyncio.Event()
        self._ended = self._ended or not data
        for event in self._http.receive_data(data):
            self._handle(event)
        self._flush()

    def _handle(self, event: Any) -> None:
        if isinstance(event, h2.events.ResponseReceived):
            headers = dict(event.headers)
            self.status = int(headers.pop(":status"))
            self.headers = headers
        elif isinstance(event, h2.events.DataReceived):
            self._http.acknowledge_received_data(event.flow_controlled_length, self._id)
            self._parts.append(event.data)
        elif isinstance(event, _ENDS):
            self._ended = True

    async def send(self, data: bytes) -> None:
        """Send, waiting for the peer's window where it is full."""
        while data and not self._ended and not self._closed:
            window = self._http.local_flow_control_window(self._id)
            size = min(window, self._http.max_outbound_frame_size)
            if size <= 0:
                await self._pump()
                continue
            self._http.send_data(self._id, data[:size])
            data = data[size:]
            self._flush()

    async def close(self) -> None:
        """End this side; the other may continue."""
        if not self._closed and not self._ended:
            self._closed = True
            self._http.end_stream(self._id)
            self._flush()

    async def receive(self) -> bytes | None:
        """Return the bytes that came; None at the end."""
        while not self._parts and not self._ended:
            await self._pump()
        if self._parts:
            parts, self._parts = b"".join(self._parts), []
            return parts
        return None


async def exchange(stream: Stream, method: str, path: str, headers: Headers, body: bytes) -> bytes:
    """Send one whole request and return the whole body of its response."""
    await stream.open(method, path, headers, body, end=True)
    content = await stream.read()
    await stream.break_off()
    return content
