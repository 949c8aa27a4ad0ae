"""A network for httpcore that vets every address, and keeps one answer apart from the next."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Iterable, Sequence
from typing import Any

import anyio
import httpcore

MOST_READ = 20_000
"""Bytes of an answer that are read, headers included."""
_HELD = 65_536
CONNECT_SECONDS = 3.0
"""The longest that one of several addresses may keep silent before the next one is tried."""
_HEADERS_END = re.compile(rb"\n\r?\n")


class LongAnswerError(httpcore.ReadError):
    """An answer goes on beyond what is read of it."""


class VettedBackend(httpcore.AsyncNetworkBackend):
    """Connects to addresses that were vetted for this attempt, whatever the host's name says."""

    def __init__(self, addresses: Sequence[str], timeout: float) -> None:
        self._addresses = addresses
        # Each of several is tried within the attempt's `timeout`, with time left for the answer.
        self._patience = min(CONNECT_SECONDS, timeout / (len(addresses) + 1))

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        del timeout, local_address, socket_options
        failed = ""
        for address in self._addresses:
            last = address == self._addresses[-1]
            try:
                with anyio.fail_after(None if last else self._patience):
                    return await _connected(address, port)
            except OSError as error:
                failed = f"{host} ({address}): {_told(error)}"
        raise httpcore.ConnectError(failed)


async def _connected(address: str, port: int) -> Stream:
    stream = Stream(address)
    loop = asyncio.get_running_loop()
    await loop.create_connection(lambda: stream.protocol, address, port)
    return stream


def _told(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or str(error) or "no answer"


class Stream(httpcore.AsyncNetworkStream):
    """One connection, from which an answer is handed on only up to its end.

    What a receiver sends beyond its answer is seen: it must not pass for the next one's. The
    caller tells with `begin` that it sends a request, and with `expect` how long the body is.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.protocol = _Protocol()
        self._left = MOST_READ
        self._body: int | None = None
        self._tail = b""
        self._in_headers = True

    @property
    def answered(self) -> bool:
        """Whether anything of the answer was handed on."""
        return self._left < MOST_READ

    def begin(self) -> None:
        """A request is about to be sent; its answer may have MOST_READ bytes."""
        self._left, self._body, self._tail, self._in_headers = MOST_READ, None, b"", True

    def expect(self, body: int | None) -> None:
        """The answer's body has this many bytes; None: unknown, so it is handed on as it comes."""
        self._in_headers, self._body = False, body

    @property
    def clean(self) -> bool:
        """Whether nothing came beyond the answer, so that another request may be sent."""
        held = self.protocol.buffer or self.protocol.ended or self.protocol.full
        return not held and self._body == 0

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        del timeout
        if self._left <= 0:
            raise LongAnswerError(f"the answer has more than {MOST_READ:,} bytes")
        found = await self.protocol.some()
        count = min(len(found), max_bytes, self._left)
        if self._in_headers:
            count = self._headers(bytes(found[:count]))
        elif self._body is not None:
            count = min(count, self._body)
            self._body -= count
        self._left -= count
        return self.protocol.take(count)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        del timeout
        await self.protocol.write(buffer)

    async def aclose(self) -> None:
        self.protocol.close()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore.AsyncNetworkStream:
        del timeout
        try:
            await self.protocol.start_tls(ssl_context, server_hostname)
        except (OSError, ssl.SSLError) as error:
            raise httpcore.ConnectError(f"TLS with {server_hostname}: {error}") from None
        return self

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":
            return bool(self.protocol.buffer) or self.protocol.ended
        return self.protocol.info(info)

    def _headers(self, found: bytes) -> int:
        """How many of the bytes belong to the headers: all, or up to their end."""
        seen = self._tail + found
        end = _HEADERS_END.search(seen)
        self._tail = b"" if end else seen[-2:]
        return len(found) if end is None else end.end() - (len(seen) - len(found))


class _Protocol(asyncio.Protocol):
    """Holds what has come and was not read yet, some 64 kB at most."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.ended = False
        self._transport: Any = None
        self._failed: Exception | None = None
        self._news = asyncio.Event()
        self.full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        self._news.set()
        if len(self.buffer) > _HELD:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        self.ended = True
        self._news.set()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended, self._failed = True, exc
        self._news.set()

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        self._news.set()

    async def some(self) -> bytearray:
        """What has come; empty once the other side has ended."""
        while not self.buffer and not self.ended:
            self._news.clear()
            await self._news.wait()
        if not self.buffer and self._failed is not None:
            raise httpcore.ReadError(str(self._failed) or type(self._failed).__name__)
        return self.buffer

    def take(self, count: int) -> bytes:
        taken = bytes(self.buffer[:count])
        del self.buffer[:count]
        if len(self.buffer) <= _HELD and not self.ended:
            self._transport.resume_reading()
        return taken

    async def write(self, data: bytes) -> None:
        if self.ended:
            raise httpcore.WriteError(str(self._failed or "the receiver ended the connection"))
        self._transport.write(data)
        # A receiver may answer before it has read all; then it need not read the rest.
        while self.full and not self.buffer and not self.ended:
            self._news.clear()
            await self._news.wait()

    async def start_tls(self, context: ssl.SSLContext, host: str | None) -> None:
        # Bytes that came in the open would pass for an answer that came through TLS.
        if self.buffer:
            raise OSError("the receiver sent something before TLS began")
        loop = asyncio.get_running_loop()
        transport = await loop.start_tls(self._transport, self, context, server_hostname=host)
        if transport is None:
            raise OSError("the connection ended")
        self._transport = transport

    def close(self) -> None:
        if self._transport is not None:
            # An orderly end would wait for a receiver that may be silent.
            self._transport.abort()

    def info(self, name: str) -> Any:
        if name == "ssl_object":
            return self._transport.get_extra_info("ssl_object")
        return self._transport.get_extra_info(name)
