"""HTTP/1.1, request then response, over pooled connections."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from dataclasses import dataclass

import h11

from durable_invocations.runtime.http.connecting import CONNECT_SECONDS, Connector
from durable_invocations.runtime.http.exchange import (
    MOST_HEAD,
    Address,
    DeploymentUnreachableError,
    Head,
    Origin,
    Request,
    StaleError,
)

IDLE_SECONDS = 4.0
"""Connections that idled longer are not reused: uvicorn closes them after 5 s."""
MOST_IDLE = 64
"""Connections that are kept for each origin."""
_PIECE = 65_536


class _CountingProtocol(asyncio.StreamReaderProtocol):
    """Counts received bytes, read or not."""

    def __init__(self, reader: asyncio.StreamReader, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(reader, loop=loop)
        self.count = 0

    def data_received(self, data: bytes) -> None:
        self.count += len(data)
        super().data_received(data)


@dataclass(kw_only=True)
class Connection:
    """One connection, with HTTP's state."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    http: h11.Connection
    arrivals: _CountingProtocol
    used: bool = False
    idle_since: float = 0.0
    taken: int = 0
    """Bytes that were read."""

    async def write(self, event: h11.Event) -> None:
        data = self.http.send(event)
        if data:
            self.writer.write(data)
            await self.writer.drain()

    async def read_event(self) -> h11.Event:
        while (event := self.http.next_event()) is h11.NEED_DATA:
            data = await self.reader.read(_PIECE)
            self.taken += len(data)
            self.http.receive_data(data)
        if not isinstance(event, h11.Event):
            raise h11.RemoteProtocolError("it sent more than one response")
        return event

    @property
    def fit(self) -> bool:
        """Whether it may carry another request: it is open, and received nothing unrequested.

        Such a response, as a server sends before it closes, would answer the next request.
        """
        came = self.arrivals.count > self.taken or self.http.trailing_data[0]
        return not came and not self.reader.at_eof()


class Http1:
    """A pool of connections. All methods belong to one event loop."""

    def __init__(
        self,
        *,
        trusted: str | None = None,
        connect_seconds: float = CONNECT_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._tls = Connector("http/1.1", trusted=trusted)
        self._seconds, self._idle_seconds = connect_seconds, idle_seconds
        self._idle: dict[Origin, deque[Connection]] = defaultdict(deque)
        self._sweeping: asyncio.TimerHandle | None = None

    def open(self, address: Address, request: Request) -> Http1Exchange:
        """An exchange, which connects when the first part of its body is sent."""
        return Http1Exchange(self, address, request)

    async def take(self, origin: Origin, *, fresh: bool) -> Connection:
        idle = self._idle[origin]
        now = asyncio.get_running_loop().time()
        while idle and not fresh:
            connection = idle.pop()
            if now - connection.idle_since < self._idle_seconds and connection.fit:
                return connection
            connection.writer.close()
        return await self._connect(origin)

    def give_back(self, origin: Origin, connection: Connection) -> None:
        """Keep the connection for the next exchange if it can take one; else close it."""
        if not connection.fit:
            connection.writer.transport.abort()
            return
        connection.http.start_next_cycle()
        connection.used = True
        connection.idle_since = asyncio.get_running_loop().time()
        idle = self._idle[origin]
        idle.append(connection)
        if len(idle) > MOST_IDLE:
            idle.popleft().writer.close()
        if self._sweeping is None:
            loop = asyncio.get_running_loop()
            self._sweeping = loop.call_later(self._idle_seconds, self._sweep)

    async def close(self) -> None:
        """Close idle connections."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        idle = [connection for queue in self._idle.values() for connection in queue]
        self._idle.clear()
        for connection in idle:
            connection.writer.close()
        await asyncio.gather(
            *(connection.writer.wait_closed() for connection in idle), return_exceptions=True
        )

    def _sweep(self) -> None:
        """Close connections that idled too long; runs again when the next one is due."""
        loop = asyncio.get_running_loop()
        for origin, idle in list(self._idle.items()):
            while idle and idle[0].idle_since + self._idle_seconds <= loop.time():
                idle.popleft().writer.close()
            if not idle:
                del self._idle[origin]
        ends = [idle[0].idle_since + self._idle_seconds for idle in self._idle.values()]
        self._sweeping = loop.call_at(min(ends), self._sweep) if ends else None

    async def _connect(self, origin: Origin) -> Connection:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=MOST_HEAD, loop=loop)
        transport, protocol = await self._tls.connect(
            origin, lambda: _CountingProtocol(reader, loop), self._seconds
        )
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MOST_HEAD)
        return Connection(reader=reader, writer=writer, http=http, arrivals=protocol)


class Http1Exchange:
    """A request whose response is read after all of it was sent."""

    def __init__(self, pool: Http1, address: Address, request: Request) -> None:
        self._pool, self._address, self._request = pool, address, request
        self._connection: Connection | None = None
        self._full_body: bytes | None = None
        self._head: Head | None = None
        self._aborted: DeploymentUnreachableError | None = None

    async def send(self, data: bytes, *, end: bool = False) -> None:
        if self._connection is None and end:
            self._full_body = data
        try:
            await self._send_part(data, end=end, fresh=False)
        except StaleError:
            await self._send_part(data, end=end, fresh=True)

    async def read_head(self) -> Head:
        if self._head is None:
            try:
                self._head = await self._receive_head()
            except StaleError:
                await self._send_part(self._full_body or b"", end=True, fresh=True)
                self._head = await self._receive_head()
        return self._head

    async def receive(self) -> bytes:
        await self.read_head()
        connection = self._get_connection()
        try:
            event = await connection.read_event()
        except (OSError, h11.RemoteProtocolError) as error:
            raise self._make_broken_error(error) from None
        self._get_connection()
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    def abort(self, why: DeploymentUnreachableError) -> None:
        self._aborted = self._aborted or why
        if self._connection is not None:
            self._connection.writer.transport.abort()

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if connection.http.our_state is connection.http.their_state is h11.DONE:
            self._pool.give_back(self._address.origin, connection)
        else:
            connection.writer.transport.abort()

    async def _send_part(self, data: bytes, *, end: bool, fresh: bool) -> None:
        if self._connection is None or fresh:
            await self.close()
            self._connection = await self._pool.take(self._address.origin, fresh=fresh)
            await self._write_event(self._build_request(data, complete=end))
        if data:
            await self._write_event(h11.Data(data=data))
        if end:
            await self._write_event(h11.EndOfMessage())

    def _build_request(self, data: bytes, *, complete: bool) -> h11.Request:
        headers = [("host", self._address.origin.authority), *self._request.headers]
        if complete and (data or self._request.method != "GET"):
            headers.append(("content-length", str(len(data))))
        elif not complete:
            headers.append(("transfer-encoding", "chunked"))
        target = f"{self._address.prefix}{self._request.path}"
        return h11.Request(method=self._request.method, target=target, headers=headers)

    async def _write_event(self, event: h11.Event) -> None:
        connection = self._get_connection()
        try:
            await connection.write(event)
        except OSError as error:
            raise self._make_broken_error(error) from None

    async def _receive_head(self) -> Head:
        connection = self._get_connection()
        try:
            event = await connection.read_event()
            while isinstance(event, h11.InformationalResponse):
                event = await connection.read_event()
        except (OSError, h11.RemoteProtocolError) as error:
            raise self._make_broken_error(error) from None
        if not isinstance(event, h11.Response):
            raise self._make_broken_error("it closed the connection")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
        return Head(status=event.status_code, headers=headers)

    def _get_connection(self) -> Connection:
        if self._aborted is not None:
            raise self._aborted
        if self._connection is None:
            raise DeploymentUnreachableError(f"{self._address}: the exchange was closed.")
        return self._connection

    def _make_broken_error(self, why: object) -> DeploymentUnreachableError:
        """StaleError if the server may have closed a pooled connection before the request."""
        connection = self._get_connection()
        silent = connection.http.their_state in {h11.IDLE, h11.SEND_RESPONSE, h11.ERROR}
        if connection.used and self._full_body is not None and self._head is None and silent:
            connection.used = False
            return StaleError(f"{self._address}: {why}.")
        return DeploymentUnreachableError(f"{self._address} broke off: {why}.")
