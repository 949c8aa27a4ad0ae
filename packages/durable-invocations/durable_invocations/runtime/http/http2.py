"""HTTP/2, without TLS by prior knowledge: connections that many exchanges share."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from functools import partial

from durable_invocations.runtime.http.connecting import CONNECT_SECONDS, Tls
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
"""A peer with exchanges that sent nothing for so long is asked; then given up after as long.

A connection that had no exchange for so long is closed."""


class Http2:
    """A pool of connections. All methods belong to one event loop."""

    def __init__(
        self,
        *,
        trusted: str | None = None,
        connect_seconds: float = CONNECT_SECONDS,
        ping_seconds: float = PING_SECONDS,
    ) -> None:
        self._tls = Tls("h2", "http/1.1", trusted=trusted)
        self._seconds, self._ping_seconds = connect_seconds, ping_seconds
        self._held: dict[Origin, list[Http2Connection]] = defaultdict(list)
        self._connecting: dict[Origin, asyncio.Future[Http2Connection]] = {}

    async def open(self, address: Address, request: Request) -> Http2Exchange:
        """Begin an exchange on a connection that has room, or on a new one.

        Raises NotHttp2Error, DeploymentUnreachableError.
        """
        connection = await self._roomy(address.origin)
        return connection.begin(address, request)

    async def close(self) -> None:
        """Break off every exchange, and close the connections."""
        connecting = list(self._connecting.values())
        for begun in connecting:
            begun.cancel()
        await asyncio.gather(*connecting, return_exceptions=True)
        held = [each for every in self._held.values() for each in every]
        self._held.clear()
        for each in held:
            each.end(_stops(each.origin))
        await asyncio.sleep(0)

    async def _roomy(self, origin: Origin) -> Http2Connection:
        """A connection with room. All who need one wait for the same, or learn why there is none.

        One by one, each would wait as long as those before it for a machine that is gone.
        """
        while (found := self._with_room(origin)) is None:
            made = await asyncio.shield(self._connecting.get(origin) or self._connect(origin))
            if not made.open:
                raise _closed(origin)
        return found

    def _with_room(self, origin: Origin) -> Http2Connection | None:
        held = self._held[origin] = [each for each in self._held[origin] if each.open]
        return next((each for each in held if each.has_room), None)

    def _connect(self, origin: Origin) -> asyncio.Future[Http2Connection]:
        begun = self._connecting[origin] = asyncio.ensure_future(self._unless_closed(origin))
        begun.add_done_callback(partial(self._ended, origin))
        return begun

    def _ended(self, origin: Origin, connecting: asyncio.Future[Http2Connection]) -> None:
        del self._connecting[origin]
        if not connecting.cancelled():
            # Nobody may have waited to the end.
            connecting.exception()

    async def _unless_closed(self, origin: Origin) -> Http2Connection:
        try:
            return await self._connected(origin)
        except asyncio.CancelledError:
            # By `close`: whoever waits is not canceled.
            raise _stops(origin) from None

    async def _connected(self, origin: Origin) -> Http2Connection:
        transport, connection = await self._tls.connected(
            origin, lambda: Http2Connection(origin, self._ping_seconds), self._seconds
        )
        try:
            await self._settled(transport, connection)
        except BaseException:
            transport.abort()
            raise
        self._held[origin].append(connection)
        return connection

    async def _settled(self, transport: asyncio.Transport, connection: Http2Connection) -> None:
        """Wait until it takes exchanges. Raises NotHttp2Error, DeploymentUnreachableError, and
        StaleError if the peer goes away at once, as while it is restarted.
        """
        chosen = transport.get_extra_info("ssl_object")
        if chosen is not None and chosen.selected_alpn_protocol() != "h2":
            raise NotHttp2Error(f"{connection.origin} does not offer HTTP/2 over TLS.")
        await connection.settled(self._seconds)
        if not connection.open:
            raise _closed(connection.origin)
        if not connection.has_room:
            raise DeploymentUnreachableError(f"{connection.origin} allows no HTTP/2 requests.")


def _closed(origin: Origin) -> StaleError:
    return StaleError(f"{origin} closed the connection; check that it runs.")


def _stops(origin: Origin) -> DeploymentUnreachableError:
    return DeploymentUnreachableError(f"{origin}: the runtime stops.")
