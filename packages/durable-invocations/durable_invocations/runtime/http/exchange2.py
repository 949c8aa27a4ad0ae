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
    """What an exchange needs of its connection."""

    origin: Origin
    http: h2.connection.H2Connection

    def flush(self) -> int: ...
    async def writable(self) -> None: ...
    def forget(self, number: int) -> None: ...


class Http2Exchange:
    """A request whose response may begin, and be read, before all of it is sent."""

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
            room = await self._roomy()
            piece, rest = rest[:room], rest[room:]
            self._put(bytes(piece), end=end and not rest)
        if end and not self._sent_all:
            self._put(b"", end=True)
        await self._carrier.writable()

    async def head(self) -> Head:
        while self._head is None:
            self._check()
            await self._told()
        return self._head

    async def receive(self) -> bytes:
        data = b""
        while not data:
            if self._parts:
                data = self._popped()
            elif self._got_all:
                break
            else:
                self._check()
                await self._told()
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

    # What the connection tells.

    def on(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.ResponseReceived):
            headers = {_text(name): _text(value) for name, value in event.headers or ()}
            self._head = Head(status=_status(headers.pop(":status")), headers=headers)
        elif isinstance(event, h2.events.DataReceived):
            self._arrived(event.data or b"", event.flow_controlled_length or 0)
        elif isinstance(event, h2.events.StreamEnded):
            self._got_all = True
        elif isinstance(event, h2.events.StreamReset):
            self._reset(event)
        self._news.set()

    def roomier(self) -> None:
        self._room.set()

    def fail(self, why: DeploymentUnreachableError) -> None:
        self._failure = why
        self._news.set()
        self._room.set()

    # Inside.

    async def _roomy(self) -> int:
        """Wait until the peer takes data; return how much of it."""
        http = self._carrier.http
        await self._carrier.writable()
        while True:
            self._check()
            self._room.clear()
            try:
                room = http.local_flow_control_window(self._number)
            except h2.exceptions.ProtocolError as error:
                self._refuse(error)
            if room > 0:
                return min(room, http.max_outbound_frame_size)
            self._carrier.flush()
            await self._room.wait()

    def _put(self, data: bytes, *, end: bool) -> None:
        self._check()
        try:
            self._carrier.http.send_data(self._number, data, end_stream=end)
        except h2.exceptions.ProtocolError as error:
            self._refuse(error)
        self._sent_all = end
        self._carrier.flush()

    def _arrived(self, data: bytes, counted: int) -> None:
        # A peer may send any number of parts that count for nothing; what only counts is padding.
        if counted:
            self._parts.append((data, counted))

    def _popped(self) -> bytes:
        data, counted = self._parts.popleft()
        if not self._got_all or self._parts:
            self._taken(counted)
        return data

    async def _told(self) -> None:
        self._carrier.flush()
        self._news.clear()
        await self._news.wait()

    def _taken(self, counted: int) -> None:
        if counted and self._failure is None:
            self._carrier.http.acknowledge_received_data(counted, self._number)
            self._carrier.flush()

    def _break_off(self) -> None:
        http = self._carrier.http
        for _, counted in self._parts:
            self._taken(counted)
        try:
            if not self._got_all:
                http.reset_stream(self._number, h2.errors.ErrorCodes.CANCEL)
            elif not self._sent_all:
                # hypercorn ends the whole connection for data, also none, of what it has answered.
                http.reset_stream(self._number, h2.errors.ErrorCodes.NO_ERROR)
        except h2.exceptions.ProtocolError:
            pass  # The peer was first.

    def _reset(self, event: h2.events.StreamReset) -> None:
        code = event.error_code or 0
        if self._got_all and code == h2.errors.ErrorCodes.NO_ERROR:
            self._sent_all = True
            return
        name = getattr(code, "name", code)
        self.fail(DeploymentUnreachableError(f"{self._carrier.origin} reset the exchange: {name}."))

    def _check(self) -> None:
        if self._closed:
            raise DeploymentUnreachableError(f"{self._carrier.origin}: the exchange was closed.")
        if self._failure is not None:
            raise self._failure

    def _refuse(self, error: h2.exceptions.ProtocolError) -> NoReturn:
        raise DeploymentUnreachableError(
            f"{self._carrier.origin} takes no data: {str(error).rstrip('.')}."
        ) from None


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")


def _status(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{2}", text, re.ASCII):
        raise h2.exceptions.ProtocolError(f"its status is {text[:20]!r}")
    return int(text)
