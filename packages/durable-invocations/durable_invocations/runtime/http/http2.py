"""HTTP/2, by prior knowledge if without TLS: connections that many exchanges share."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from functools import partial

from durable_invocations.runtime.http.connecting import CONNECT_SECONDS, Connector
from durable_invocations.runtime.http.connection2 import Http2Connection
from durable_invocations.runtime.http.exchange import (
    Address,
    DeploymentUnreachableError,
    NotHttp2Error,
    Origin,
    Request,
    StaleError,
)
from durable_invocations.runtime.http.exchange2 import Http2Exchange

PING_SECONDS = 20.0
"""A peer with exchanges that is silent for so long is pinged; after as long again it is dropped.

A connection without exchanges for so long is closed."""


class Http2:
    """A pool of connections. All methods belong to one event loop."""

    def __init__(
        self,
        *,
        trusted: str | None = None,
        connect_seconds: float = CONNECT_SECONDS,
        ping_seconds: float = PING_SECONDS,
    ) -> None:
        self._tls = Connector("h2", "http/1.1", trusted=trusted)
        self._seconds, self._ping_seconds = connect_seconds, ping_seconds
        self._connections: dict[Origin, list[Http2Connection]] = defaultdict(list)
        self._connecting: dict[Origin, asyncio.Future[Http2Connection]] = {}

    async def open(self, address: Address, request: Request) -> Http2Exchange:
        """Begin an exchange on a connection that has room, or on a new one.

        Raises NotHttp2Error, DeploymentUnreachableError.
        """
        connection = await self._acquire_connection(address.origin)
        return connection.begin(address, request)

    async def close(self) -> None:
        """Abort every exchange and close the connections."""
        connecting = list(self._connecting.values())
        for future in connecting:
            future.cancel()
        await asyncio.gather(*connecting, return_exceptions=True)
        connections = [connection for pool in self._connections.values() for connection in pool]
        self._connections.clear()
        for connection in connections:
            connection.end(_make_stop_error(connection.origin))
        await asyncio.sleep(0)

    async def _acquire_connection(self, origin: Origin) -> Http2Connection:
        """A connection with room. All callers wait for the same attempt to connect.

        Otherwise their timeouts would add up if the host is down.
        """
        while (connection := self._find_with_room(origin)) is None:
            opened = await asyncio.shield(
                self._connecting.get(origin) or self._begin_connect(origin)
            )
            if not opened.open:
                raise _make_closed_error(origin)
        return connection

    def _find_with_room(self, origin: Origin) -> Http2Connection | None:
        connections = self._connections[origin] = [
            connection for connection in self._connections[origin] if connection.open
        ]
        return next((connection for connection in connections if connection.has_room), None)

    def _begin_connect(self, origin: Origin) -> asyncio.Future[Http2Connection]:
        future = self._connecting[origin] = asyncio.ensure_future(
            self._connect_unless_closed(origin)
        )
        future.add_done_callback(partial(self._handle_connect_done, origin))
        return future

    def _handle_connect_done(
        self, origin: Origin, connecting: asyncio.Future[Http2Connection]
    ) -> None:
        del self._connecting[origin]
        if not connecting.cancelled():
            # No caller may be left to retrieve it.
            connecting.exception()

    async def _connect_unless_closed(self, origin: Origin) -> Http2Connection:
        try:
            return await self._open_connection(origin)
        except asyncio.CancelledError:
            # Canceled by `close`: the waiting callers are not.
            raise _make_stop_error(origin) from None

    async def _open_connection(self, origin: Origin) -> Http2Connection:
        transport, connection = await self._tls.connect(
            origin, lambda: Http2Connection(origin, self._ping_seconds), self._seconds
        )
        try:
            await self._wait_settled(transport, connection)
        except BaseException:
            transport.abort()
            raise
        self._connections[origin].append(connection)
        return connection

    async def _wait_settled(
        self, transport: asyncio.Transport, connection: Http2Connection
    ) -> None:
        """Wait until it accepts exchanges. Raises NotHttp2Error, DeploymentUnreachableError, and
        StaleError if the peer closes it at once, as during a restart.
        """
        ssl_object = transport.get_extra_info("ssl_object")
        if ssl_object is not None and ssl_object.selected_alpn_protocol() != "h2":
            raise NotHttp2Error(f"{connection.origin} does not offer HTTP/2 over TLS.")
        await connection.wait_settled(self._seconds)
        if not connection.open:
            raise _make_closed_error(connection.origin)
        if not connection.has_room:
            raise DeploymentUnreachableError(f"{connection.origin} allows no HTTP/2 requests.")


def _make_closed_error(origin: Origin) -> StaleError:
    return StaleError(f"{origin} closed the connection; check that it runs.")


def _make_stop_error(origin: Origin) -> DeploymentUnreachableError:
    return DeploymentUnreachableError(f"{origin}: the runtime stops.")
