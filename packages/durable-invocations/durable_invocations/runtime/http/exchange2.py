"""One exchange of an HTTP/2 connection: both bodies flow at the same time."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from typing import NoReturn, Protocol

import h2.connection
import h2.errors
import h2.events
import h2.exceptions

from durable_invocations.runtime.http.exchange import DeploymentUnreachableError, Head, Origin


class Carrier(Protocol):
    """What an exchange needs from its connection."""

    origin: Origin
    http: h2.connection.H2Connection

    def flush(self) -> int: ...
    async def wait_writable(self) -> None: ...
    def forget(self, number: int) -> None: ...


class Http2Exchange:
    """A request whose response can be read before all of it is sent."""

    def __init__(self, carrier: Carrier, number: int, *, sent_all: bool = False) -> None:
        self._carrier, self._number = carrier, number
        self._parts: deque[tuple[bytes, int]] = deque()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._head: Head | None = None
        self._failure: DeploymentUnreachableError | None = None
        self._sent_all, self._got_all, self._closed = sent_all, False, False

    async def send(self, data: bytes, *, end: bool = False) -> None:
        rest = memoryview(data)
        while rest:
            room = await self._wait_room()
            piece, rest = rest[:room], rest[room:]
            self._send_data(bytes(piece), end=end and not rest)
        if end and not self._sent_all:
            self._send_data(b"", end=True)
        await self._carrier.wait_writable()

    async def read_head(self) -> Head:
        while self._head is None:
            self._check_open()
            await self._wait_news()
        return self._head

    async def receive(self) -> bytes:
        data = b""
        while not data:
            if self._parts:
                data = self._pop_data()
            elif self._got_all:
                break
            else:
                self._check_open()
                await self._wait_news()
        return data

    def abort(self, why: DeploymentUnreachableError) -> None:
        if self._failure is None and not self._closed:
            self._break_off()
            self._carrier.flush()
            self.fail(why)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._carrier.forget(self._number)
        if self._failure is None:
            self._break_off()
        self._carrier.flush()

    # Called by the connection.

    def on(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.ResponseReceived):
            headers = {
                _decode_text(name): _decode_text(value) for name, value in event.headers or ()
            }
            self._head = Head(status=_parse_status(headers.pop(":status")), headers=headers)
        elif isinstance(event, h2.events.DataReceived):
            self._queue_data(event.data or b"", event.flow_controlled_length or 0)
        elif isinstance(event, h2.events.StreamEnded):
            self._got_all = True
        elif isinstance(event, h2.events.StreamReset):
            self._handle_reset(event)
        self._news.set()

    def notify_room(self) -> None:
        self._room.set()

    def fail(self, why: DeploymentUnreachableError) -> None:
        self._failure = why
        self._news.set()
        self._room.set()

    # Private.

    async def _wait_room(self) -> int:
        """Wait until the peer accepts data; returns how many bytes."""
        http = self._carrier.http
        await self._carrier.wait_writable()
        while True:
            self._check_open()
            self._room.clear()
            try:
                room = http.local_flow_control_window(self._number)
            except h2.exceptions.ProtocolError as error:
                self._raise_refused(error)
            if room > 0:
                return min(room, http.max_outbound_frame_size)
            self._carrier.flush()
            await self._room.wait()

    def _send_data(self, data: bytes, *, end: bool) -> None:
        self._check_open()
        try:
            self._carrier.http.send_data(self._number, data, end_stream=end)
        except h2.exceptions.ProtocolError as error:
            self._raise_refused(error)
        self._sent_all = end
        self._carrier.flush()

    def _queue_data(self, data: bytes, flow_length: int) -> None:
        # Empty frames do not count for flow control; a frame of only padding does.
        if flow_length:
            self._parts.append((data, flow_length))

    def _pop_data(self) -> bytes:
        data, flow_length = self._parts.popleft()
        if not self._got_all or self._parts:
            self._release_window(flow_length)
        return data

    async def _wait_news(self) -> None:
        self._carrier.flush()
        self._news.clear()
        await self._news.wait()

    def _release_window(self, flow_length: int) -> None:
        if flow_length and self._failure is None:
            self._carrier.http.acknowledge_received_data(flow_length, self._number)
            self._carrier.flush()

    def _break_off(self) -> None:
        http = self._carrier.http
        for _, flow_length in self._parts:
            self._release_window(flow_length)
        try:
            if not self._got_all:
                http.reset_stream(self._number, h2.errors.ErrorCodes.CANCEL)
            elif not self._sent_all:
                # hypercorn ends the whole connection if an answered request gets data, even none.
                http.reset_stream(self._number, h2.errors.ErrorCodes.NO_ERROR)
        except h2.exceptions.ProtocolError:
            pass  # The peer was first.

    def _handle_reset(self, event: h2.events.StreamReset) -> None:
        code = event.error_code or 0
        if self._got_all and code == h2.errors.ErrorCodes.NO_ERROR:
            self._sent_all = True
            return
        name = getattr(code, "name", code)
        self.fail(DeploymentUnreachableError(f"{self._carrier.origin} reset the exchange: {name}."))

    def _check_open(self) -> None:
        if self._closed:
            raise DeploymentUnreachableError(f"{self._carrier.origin}: the exchange was closed.")
        if self._failure is not None:
            raise self._failure

    def _raise_refused(self, error: h2.exceptions.ProtocolError) -> NoReturn:
        raise DeploymentUnreachableError(
            f"{self._carrier.origin} accepts no data: {str(error).rstrip('.')}."
        ) from None


def _decode_text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")


def _parse_status(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{2}", text, re.ASCII):
        raise h2.exceptions.ProtocolError(f"its status is {text[:20]!r}")
    return int(text)
