"""One HTTP/2 connection: concurrent exchanges, each with its own flow control."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import anyio
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
from h2.config import H2Configuration

from durable_invocations.runtime.http.exchange import (
    MOST_HEAD,
    Address,
    DeploymentUnreachableError,
    NotHttp2Error,
    Origin,
    Request,
    StaleError,
)
from durable_invocations.runtime.http.exchange2 import Http2Exchange

STREAM_WINDOW = 1 << 20
"""Bytes that a peer may send on one exchange before they are read."""
CONNECTION_WINDOW = 1 << 24
"""The same for all exchanges of a connection."""
_FIRST_WINDOW = 65_535
MOST_OWED = 1 << 20
"""Bytes of answers to pings and settings that may wait for a peer that does not read."""
MOST_EXCHANGES = 900
"""Exchanges of a connection; at the thousandth hypercorn aborts all running ones."""


class _H2Connection(h2.connection.H2Connection):
    """Lets exchanges that a GOAWAY does not end finish."""

    def _receive_goaway_frame(self, frame: Any) -> tuple[list[Any], list[h2.events.Event]]:
        # h2 would consider the connection closed, and refuse what still arrives.
        event = h2.events.ConnectionTerminated()
        event.error_code = frame.error_code
        event.last_stream_id = frame.last_stream_id
        return [], [event]


class Http2Connection(asyncio.Protocol):
    """A connection and its exchanges. All methods belong to one event loop."""

    def __init__(self, origin: Origin, ping_seconds: float) -> None:
        self.origin = origin
        self.exchanges: dict[int, Http2Exchange] = {}
        self.http: h2.connection.H2Connection = _H2Connection(
            H2Configuration(client_side=True, header_encoding=None)
        )
        loop = asyncio.get_running_loop()
        self._settled: asyncio.Future[None] = loop.create_future()
        self._gone: DeploymentUnreachableError | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._transport: asyncio.Transport | None = None
        self._ping_seconds = ping_seconds
        self._pinging: asyncio.TimerHandle | None = None
        self._heard = self._busy = False
        self._owed = 0
        self._retiring = False

    # Called by the pool.

    async def wait_settled(self, seconds: float) -> None:
        """Wait for the peer's settings. Raises NotHttp2Error, DeploymentUnreachableError."""
        try:
            with anyio.fail_after(seconds):
                await asyncio.shield(self._settled)
        except TimeoutError:
            self.end(DeploymentUnreachableError(f"{self.origin} sent no HTTP/2 settings."))
            raise NotHttp2Error(
                f"{self.origin} sent no HTTP/2 settings within {seconds:g} s."
            ) from None

    @property
    def open(self) -> bool:
        return self._gone is None and not self._retiring

    @property
    def has_room(self) -> bool:
        """Whether the peer allows another exchange now."""
        most = self.http.remote_settings.max_concurrent_streams
        return self.open and len(self.exchanges) < most

    def begin(self, address: Address, request: Request) -> Http2Exchange:
        """Begin a request, whose headers are sent with the first part of its body.

        Raises StaleError if this connection takes no more.
        """
        if not self.open:
            raise StaleError(f"{self.origin} closed the connection.")
        number = self.http.get_next_available_stream_id()
        bare = request.method == "GET"
        self.http.send_headers(number, _build_headers(address, request), end_stream=bare)
        exchange = Http2Exchange(self, number, sent_all=bare)
        self.exchanges[number] = exchange
        # Exchanges have odd numbers.
        self._retiring = self._retiring or number // 2 + 1 >= MOST_EXCHANGES
        self._busy = True
        self._schedule_ping()
        return exchange

    def stop_accepting(self) -> None:
        """Accept no more exchanges; close once the open ones have ended."""
        self._retiring = True
        self._close_if_done()

    def end(self, why: DeploymentUnreachableError) -> None:
        """Abort the connection and all its exchanges."""
        if self._gone is None:
            self._gone = why
            self._fail_exchanges(list(self.exchanges), why)
        if self._transport is not None:
            self._transport.abort()

    # Called by exchanges.

    def flush(self) -> int:
        """Write pending data; returns the number of bytes."""
        data = self.http.data_to_send()
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
        return len(data or b"")

    async def wait_writable(self) -> None:
        await self._writable.wait()

    def forget(self, number: int) -> None:
        self.exchanges.pop(number, None)
        self._close_if_done()

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is not an asyncio.Transport, but has its methods.
        self._transport = cast("asyncio.Transport", transport)
        self.http.initiate_connection()
        setting = h2.settings.SettingCodes
        self.http.update_settings(
            {
                setting.ENABLE_PUSH: 0,
                setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
                setting.MAX_HEADER_LIST_SIZE: MOST_HEAD,
            }
        )
        self.http.increment_flow_control_window(CONNECTION_WINDOW - _FIRST_WINDOW)
        self.flush()

    def data_received(self, data: bytes) -> None:
        self._heard = True
        try:
            for event in self.http.receive_data(data):
                self._handle_event(event)
        except h2.exceptions.ProtocolError as error:
            self.flush()
            error_type = DeploymentUnreachableError if self._settled.done() else NotHttp2Error
            self._fail_connection(
                error_type(f"{self.origin} broke HTTP/2: {str(error).rstrip('.')}.")
            )
            return
        self._count_owed(self.flush())

    def connection_lost(self, exc: Exception | None) -> None:
        error_type = DeploymentUnreachableError if self._settled.done() else NotHttp2Error
        why = f": {exc}." if exc else "; check that it runs."
        self._fail_connection(error_type(f"{self.origin} closed the connection{why}"))
        self._writable.set()
        if self._pinging is not None:
            self._pinging.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._owed = 0
        self._writable.set()

    # Events.

    def _count_owed(self, size: int) -> None:
        """Count answers to a peer that does not read; too many end the connection."""
        if not self._writable.is_set():
            self._owed += size
        if self._owed > MOST_OWED:
            message = f"{self.origin} does not read the answers to its own requests."
            self._fail_connection(DeploymentUnreachableError(message))

    def _handle_event(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.RemoteSettingsChanged):
            if not self._settled.done():
                self._settled.set_result(None)
            self._notify_room(0)
        elif isinstance(event, h2.events.WindowUpdated):
            self._notify_room(event.stream_id or 0)
        elif isinstance(event, h2.events.ConnectionTerminated):
            self._handle_terminated(event)
        else:
            number = getattr(event, "stream_id", None)
            exchange = self.exchanges.get(number) if number else None
            if exchange is not None:
                exchange.on(event)
            elif isinstance(event, h2.events.DataReceived):
                self.http.acknowledge_received_data(
                    event.flow_controlled_length or 0, event.stream_id
                )

    def _notify_room(self, number: int) -> None:
        exchanges = self.exchanges.values() if number == 0 else (self.exchanges.get(number),)
        for exchange in exchanges:
            if exchange is not None:
                exchange.notify_room()

    def _handle_terminated(self, event: h2.events.ConnectionTerminated) -> None:
        self._retiring = True
        last_id = event.last_stream_id or 0
        if event.error_code:
            name = _format_error_code(event.error_code)
            self._fail_connection(
                DeploymentUnreachableError(f"{self.origin} ended the connection: {name}.")
            )
            return
        unprocessed = [number for number in self.exchanges if number > last_id]
        self._fail_exchanges(
            unprocessed, StaleError(f"{self.origin} is about to close the connection.")
        )
        self._close_if_done()

    def _fail_connection(self, why: DeploymentUnreachableError) -> None:
        if not self._settled.done():
            self._settled.set_exception(why)
            self._settled.exception()
        self.end(why)

    def _fail_exchanges(self, numbers: list[int], why: DeploymentUnreachableError) -> None:
        for number in numbers:
            self.exchanges.pop(number).fail(why)

    def _close_if_done(self) -> None:
        if self._retiring and not self.exchanges and self._transport is not None:
            self._gone = self._gone or StaleError(f"{self.origin}: the connection was closed.")
            self._transport.close()

    def _schedule_ping(self) -> None:
        if self._pinging is None:
            loop = asyncio.get_running_loop()
            self._heard = True
            self._pinging = loop.call_later(self._ping_seconds, self._ping)

    def _ping(self) -> None:
        """Ping a silent peer; end the connection if the last ping was not answered.

        A connection without exchanges since the last ping is closed.
        """
        self._pinging = None
        busy, self._busy = self._busy, False
        if self._gone is not None:
            return
        if self.exchanges and not self._heard:
            self.end(DeploymentUnreachableError(f"{self.origin} does not answer a ping."))
        elif not self.exchanges and not busy:
            self.stop_accepting()
        else:
            self._send_ping()

    def _send_ping(self) -> None:
        if self.exchanges:
            self._heard = False
            self.http.ping(b"iscpping")
            self.flush()
        loop = asyncio.get_running_loop()
        self._pinging = loop.call_later(self._ping_seconds, self._ping)


def _format_error_code(code: int) -> str:
    try:
        return h2.errors.ErrorCodes(code).name
    except ValueError:
        return str(code)


def _build_headers(address: Address, request: Request) -> list[tuple[str, str]]:
    return [
        (":method", request.method),
        (":scheme", address.origin.scheme),
        (":authority", address.origin.authority),
        (":path", f"{address.prefix}{request.path}"),
        *((name.lower(), value) for name, value in request.headers),
    ]
