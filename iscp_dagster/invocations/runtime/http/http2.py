"""HTTP/2, without TLS by prior knowledge: connections that many exchanges share."""

from __future__ import annotations

import asyncio
import ssl
from collections import defaultdict

from iscp_dagster.invocations.runtime.http.connecting import (
    CONNECT_SECONDS,
    connected,
    tls_context,
)
from iscp_dagster.invocations.runtime.http.connection2 import Http2Connection
from iscp_dagster.invocations.runtime.http.exchange import (
    Address,
    DeploymentUnreachableError,
    NotHttp2Error,
    Origin,
    Request,
    StaleError,
)
from iscp_dagster.invocations.runtime.http.exchange2 import Http2Exchange

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
        self._trusted, self._seconds, self._ping_seconds = trusted, connect_seconds, ping_seconds
        self._context: ssl.SSLContext | None = None
        self._held: dict[Origin, list[Http2Connection]] = defaultdict(list)
        self._locks: dict[Origin, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def open(self, address: Address, request: Request) -> Http2Exchange:
        """Begin an exchange on a connection that has room, or on a new one.

        Raises NotHttp2Error, DeploymentUnreachableError.
        """
        while True:
            connection = await self._roomy(address.origin)
            try:
                return connection.begin(address, request)
            except StaleError:
                continue

    async def close(self) -> None:
        """Break off every exchange, and close the connections."""
        held = [each for every in self._held.values() for each in every]
        self._held.clear()
        for each in held:
            each.end(DeploymentUnreachableError(f"{each.origin}: the runtime stops."))
        await asyncio.sleep(0)

    async def _roomy(self, origin: Origin) -> Http2Connection:
        found = self._with_room(origin)
        if found is not None:
            return found
        async with self._locks[origin]:
            return self._with_room(origin) or await self._connected(origin)

    def _with_room(self, origin: Origin) -> Http2Connection | None:
        held = self._held[origin] = [each for each in self._held[origin] if each.open]
        return next((each for each in held if each.has_room), None)

    async def _connected(self, origin: Origin) -> Http2Connection:
        transport, connection = await connected(
            origin,
            lambda: Http2Connection(origin, self._ping_seconds),
            self._tls(origin),
            self._seconds,
        )
        chosen = transport.get_extra_info("ssl_object")
        if chosen is not None and chosen.selected_alpn_protocol() != "h2":
            transport.abort()
            raise NotHttp2Error(f"{origin} does not offer HTTP/2 over TLS.")
        await connection.settled(self._seconds)
        self._held[origin].append(connection)
        return connection

    def _tls(self, origin: Origin) -> ssl.SSLContext | None:
        if origin.tls and self._context is None:
            self._context = tls_context(("h2", "http/1.1"), self._trusted)
        return self._context if origin.tls else None
