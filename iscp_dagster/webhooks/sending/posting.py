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
from iscp_dagster.webhooks.answers import EndpointAnswer
from iscp_dagster.webhooks.sending.addresses import Network, parse_network
from iscp_dagster.webhooks.sending.network import AnswerStream, LongAnswerError, VettedBackend
from iscp_dagster.webhooks.sending.resolving import AddressError, Resolver, resolve_vetted
from iscp_dagster.webhooks.sending.signing import build_headers, get_secrets

ANSWER_CHARACTERS = 500
"""Characters of an answer that are kept."""
IDLE_SECONDS = 30.0
"""How long a connection is kept for the next message."""
_PORTS = {"http": 80, "https": 443}
_NO_BODY = frozenset({204, 304})


class Poster:
    """Posts messages to one endpoint; several attempts may be under way.

    No proxy is used, no redirect followed, no cookie kept. Raises ConfigError if a secret is
    missing or malformed, or an allowed network is never allowed.
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
        self._secrets = get_secrets(endpoint, environ)
        self._allowed = _parse_allowed(endpoint)
        self._url = _build_url(parts)
        self._timeout = endpoint.timeout
        self._resolver = resolver
        self._clock = clock
        # One for all connections: it reads the system's certificates.
        self._tls = tls or (ssl.create_default_context() if parts.scheme == "https" else None)
        self._idle: list[tuple[httpcore.AsyncHTTPConnection, AnswerStream]] = []

    async def post(self, id_: str, body: bytes) -> EndpointAnswer:
        """Send a message and return its answer, or why there is none; raises no error."""
        try:
            with anyio.fail_after(self._timeout):
                return await self._attempt_post(id_, body)
        except AddressError as error:
            return EndpointAnswer(text=_shorten_error(error), address_denied=True)
        except TimeoutError:
            return EndpointAnswer(text=f"no whole answer within {self._timeout:g} s")
        except Exception as error:  # noqa: BLE001  (whatever fails, it is the attempt that failed)
            return EndpointAnswer(text=_shorten_error(error))

    async def aclose(self) -> None:
        """Close the connections that were kept."""
        while self._idle:
            connection, _ = self._idle.pop()
            await connection.aclose()

    async def _attempt_post(self, id_: str, body: bytes) -> EndpointAnswer:
        addresses = await resolve_vetted(self._resolver, self._host, self._port, self._allowed)
        reusable = await self._take_reusable(addresses)
        request = self._build_request(id_, body)
        if reusable is not None:
            connection, stream = reusable
            stream.begin()
            try:
                return await self._read_answer(connection, request)
            except (httpcore.NetworkError, httpcore.ProtocolError):
                # A receiver may end a connection at rest just when the next message is sent.
                if stream.answered:
                    raise
        new_connection = httpcore.AsyncHTTPConnection(
            self._url.origin,
            ssl_context=self._tls,
            keepalive_expiry=IDLE_SECONDS,
            network_backend=VettedBackend(addresses, self._timeout),
        )
        return await self._read_answer(new_connection, request)

    def _build_request(self, id_: str, body: bytes) -> httpcore.Request:
        signed = build_headers(self._secrets, id_, int(self._clock().timestamp()), body)
        request_headers = {
            "host": _format_host_header(self._url),
            "content-type": "application/json",
            "content-length": str(len(body)),
            "user-agent": f"iscp-dagster/{_VERSION}",
            "accept-encoding": "identity",
            **signed,
        }
        return httpcore.Request(
            "POST", self._url, headers=list(request_headers.items()), content=body
        )

    async def _read_answer(
        self, connection: httpcore.AsyncHTTPConnection, request: httpcore.Request
    ) -> EndpointAnswer:
        reusable = False
        try:
            response = await connection.handle_async_request(request)
            stream = response.extensions["network_stream"]
            if isinstance(stream, AnswerStream):
                stream.expect_body(_get_body_length(response))
                text = await _read_beginning(response)
                reusable = stream.clean and connection.is_idle()
                if reusable:
                    self._idle.append((connection, stream))
            else:
                text = "the answer requests another protocol"
            response_headers = {name.lower(): value for name, value in response.headers}
            retry_after = response_headers.get(b"retry-after")
            return EndpointAnswer(
                status=response.status,
                text=text,
                retry_after=None if retry_after is None else retry_after.decode("latin-1"),
            )
        finally:
            if not reusable:
                await connection.aclose()

    async def _take_reusable(
        self, addresses: Sequence[str]
    ) -> tuple[httpcore.AsyncHTTPConnection, AnswerStream] | None:
        """A kept connection to one of the addresses that has received nothing since."""
        while self._idle:
            connection, stream = self._idle.pop()
            usable = stream.clean and connection.is_idle() and not connection.has_expired()
            if usable and stream.address in addresses:
                return connection, stream
            await connection.aclose()
        return None


async def _read_beginning(response: httpcore.Response) -> str:
    """Read the body up to its limit; returns its beginning.

    Raises httpcore's errors for a truncated body: what cut it may have undone the delivery.
    """
    beginning = bytearray()
    with suppress(LongAnswerError):
        async for chunk in response.aiter_stream():
            beginning += chunk[: ANSWER_CHARACTERS * 4 - len(beginning)]
    await response.aclose()
    return beginning.decode("utf-8", "replace")[:ANSWER_CHARACTERS]


def _get_body_length(response: httpcore.Response) -> int | None:
    """How many bytes the body has; None if only its end shows."""
    if response.status in _NO_BODY:
        return 0
    names = [name.lower() for name, _ in response.headers]
    if b"transfer-encoding" in names:
        return None
    lengths = {
        value.strip() for name, value in response.headers if name.lower() == b"content-length"
    }
    text = lengths.pop() if len(lengths) == 1 else b""
    return int(text) if text.isdigit() else None


def _parse_allowed(endpoint: Endpoint) -> tuple[Network, ...]:
    try:
        return tuple(map(parse_network, endpoint.allow))
    except ValueError as error:
        raise ConfigError(f"Endpoint {endpoint.name!r}: allow=[...]: {error}.") from None


def _build_url(parts: SplitResult) -> httpcore.URL:
    """The URL with its full path; httpcore would read `;v=1` as something else, and drop it."""
    query = f"?{parts.query}" if parts.query else ""
    return httpcore.URL(
        scheme=parts.scheme,
        host=parts.hostname or "",
        port=parts.port,
        target=f"{parts.path or '/'}{query}",
    )


def _format_host_header(url: httpcore.URL) -> str:
    host = url.host.decode("ascii")
    name = f"[{host}]" if ":" in host else host
    return name if url.port is None else f"{name}:{url.port}"


def _shorten_error(error: BaseException) -> str:
    text: Any = str(error) or type(error).__name__
    return " ".join(str(text).split())[:ANSWER_CHARACTERS]


_VERSION = version("iscp_dagster")
