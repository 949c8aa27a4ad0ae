"""Opens exchanges with service deployments, over each one's version of HTTP."""

from __future__ import annotations

from durable_invocations.runtime.http.exchange import Address, Exchange, Request
from durable_invocations.runtime.http.http1 import Http1
from durable_invocations.runtime.http.http2 import PING_SECONDS, Http2

HTTP_1, HTTP_2 = 1, 2


class HttpClient:
    """Pools of connections of both versions. All methods belong to one event loop."""

    def __init__(self, *, trusted: str | None = None, ping_seconds: float = PING_SECONDS) -> None:
        self._http1 = Http1(trusted=trusted)
        self._http2 = Http2(trusted=trusted, ping_seconds=ping_seconds)

    async def open(self, address: Address, request: Request, version: int) -> Exchange:
        """Begin an exchange; the caller closes it. Raises DeploymentUnreachableError."""
        if version == HTTP_2:
            return await self._http2.open(address, request)
        return self._http1.open(address, request)

    async def close(self) -> None:
        """Close all connections; open exchanges fail."""
        await self._http1.close()
        await self._http2.close()
