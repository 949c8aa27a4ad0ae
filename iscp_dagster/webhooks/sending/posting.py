"""One attempt to deliver a message: signed, to a vetted address, within one timeout."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import Any
from urllib.parse import SplitResult, urlsplit

import anyio
import httpcore

from iscp_dagster.model.clock import Clock
from iscp_dagster.model.declared.endpoints import Endpoint
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.webhooks.answers import Answer
from iscp_dagster.webhooks.sending.addresses import Network, parsed
from iscp_dagster.webhooks.sending.network import LongAnswerError, Stream, VettedBackend
from iscp_dagster.webhooks.sending.resolving import AddressError, Resolver, vetted
from iscp_dagster.webhooks.sending.signing import headers, secrets_of

TOLD = 500
"""Characters of an answer that are kept."""
IDLE_SECONDS = 30.0
"""How long a connection is kept for the next message."""
_PORTS = {"http": 80, "https": 443}
_NO_BODY = frozenset({204, 304})


class Poster:
    """Posts messages to one endpoint; several attempts may be under way.

    No proxy is used, no redirect followed, no cookie kept. Raises ConfigError if a secret is
    missing or malformed, or a network is allowed that never is.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        environ: Mapping[str, str],
        resolver: Resolver,
        clock: Clock,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        parts = urlsplit(endpoint.url)
        self._host = parts.hostname or ""
        self._port = parts.port or _PORTS[parts.scheme]
        self._secrets = secrets_of(endpoint, environ)
        self._allowed = _networks(endpoint)
        self._url = _requested(parts)
        self._timeout = endpoint.timeout
        self._resolver = resolver
        self._clock = clock
        # One for all connections: it reads the system's certificates.
        self._tls = tls or (ssl.create_default_context() if parts.scheme == "https" else None)
        self._kept: list[tuple[httpcore.AsyncHTTPConnection, Stream]] = []

    async def post(self, id_: str, body: bytes) -> Answer:
        """Send a message and give its answer, or why there is none; raises nothing else."""
        try:
            with anyio.fail_after(self._timeout):
                return await self._attempt(id_, body)
        except AddressError as error:
            return Answer(text=_short(error), refused=True)
        except TimeoutError:
            return Answer(text=f"no whole answer within {self._timeout:g} s")
        except Exception as error:  # noqa: BLE001  (whatever fails, it is the attempt that failed)
            return Answer(text=_short(error))

    async def aclose(self) -> None:
        """Close the connections that were kept."""
        while self._kept:
            connection, _ = self._kept.pop()
            await connection.aclose()

    async def _attempt(self, id_: str, body: bytes) -> Answer:
        addresses = await vetted(self._resolver, self._host, self._port, self._allowed)
        kept = await self._reusable(addresses)
        request = self._request(id_, body)
        if kept is not None:
            connection, stream = kept
            stream.begin()
            try:
                return await self._answer(connection, request)
            except (httpcore.NetworkError, httpcore.ProtocolError):
                # A receiver may end a connection at rest just when the next message is sent.
                if stream.answered:
                    raise
        fresh = httpcore.AsyncHTTPConnection(
            self._url.origin,
            ssl_context=self._tls,
            keepalive_expiry=IDLE_SECONDS,
            network_backend=VettedBackend(addresses, self._timeout),
        )
        return await self._answer(fresh, request)

    def _request(self, id_: str, body: bytes) -> httpcore.Request:
        signed = headers(self._secrets, id_, int(self._clock().timestamp()), body)
        said = {
            "host": _host_header(self._url),
            "content-type": "application/json",
            "content-length": str(len(body)),
            "user-agent": f"iscp-dagster/{_VERSION}",
            "accept-encoding": "identity",
            **signed,
        }
        return httpcore.Request("POST", self._url, headers=list(said.items()), content=body)

    async def _answer(
        self, connection: httpcore.AsyncHTTPConnection, request: httpcore.Request
    ) -> Answer:
        whole = False
        try:
            response = await connection.handle_async_request(request)
            stream = response.extensions["network_stream"]
            if isinstance(stream, Stream):
                stream.expect(_length(response))
                text = await _beginning(response)
                whole = stream.clean and connection.is_idle()
                if whole:
                    self._kept.append((connection, stream))
            else:
                text = "the answer asks for another protocol"
            found = {name.lower(): value for name, value in response.headers}
            after = found.get(b"retry-after")
            return Answer(
                status=response.status,
                text=text,
                retry_after=None if after is None else after.decode("latin-1"),
            )
        finally:
            if not whole:
                await connection.aclose()

    async def _reusable(
        self, addresses: Sequence[str]
    ) -> tuple[httpcore.AsyncHTTPConnection, Stream] | None:
        """A kept connection to one of the addresses, on which nothing came since."""
        while self._kept:
            connection, stream = self._kept.pop()
            usable = stream.clean and connection.is_idle() and not connection.has_expired()
            if usable and stream.address in addresses:
                return connection, stream
            await connection.aclose()
        return None


async def _beginning(response: httpcore.Response) -> str:
    """Read the body, as far as it may be read; returns how it begins.

    Raises httpcore's errors for one that ends too soon: what cut it may have undone the rest.
    """
    read = bytearray()
    with suppress(LongAnswerError):
        async for some in response.aiter_stream():
            read += some[: TOLD * 4 - len(read)]
    await response.aclose()
    return read.decode("utf-8", "replace")[:TOLD]


def _length(response: httpcore.Response) -> int | None:
    """How many bytes the body has; None if only its end will tell."""
    if response.status in _NO_BODY:
        return 0
    names = [name.lower() for name, _ in response.headers]
    if b"transfer-encoding" in names:
        return None
    found = {value.strip() for name, value in response.headers if name.lower() == b"content-length"}
    text = found.pop() if len(found) == 1 else b""
    return int(text) if text.isdigit() else None


def _networks(endpoint: Endpoint) -> tuple[Network, ...]:
    try:
        return tuple(map(parsed, endpoint.allow))
    except ValueError as error:
        raise ConfigError(f"Endpoint {endpoint.name!r}: allow=[...]: {error}.") from None


def _requested(parts: SplitResult) -> httpcore.URL:
    """The URL with all of its path; httpcore would read `;v=1` as something else, and drop it."""
    query = f"?{parts.query}" if parts.query else ""
    return httpcore.URL(
        scheme=parts.scheme,
        host=parts.hostname or "",
        port=parts.port,
        target=f"{parts.path or '/'}{query}",
    )


def _host_header(url: httpcore.URL) -> str:
    host = url.host.decode("ascii")
    named = f"[{host}]" if ":" in host else host
    return named if url.port is None else f"{named}:{url.port}"


def _short(error: BaseException) -> str:
    told: Any = str(error) or type(error).__name__
    return " ".join(str(told).split())[:TOLD]


_VERSION = version("iscp_dagster")
