"""An httpcore network with vetted addresses, which keeps one answer apart from the next."""

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
    """An answer is longer than what is read of it."""


class VettedBackend(httpcore.AsyncNetworkBackend):
    """Connects to addresses that were vetted for this attempt, without resolving the host."""

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
        reason = ""
        for address in self._addresses:
            is_last = address == self._addresses[-1]
            try:
                with anyio.fail_after(None if is_last else self._patience):
                    return await _open_stream(address, port)
            except OSError as error:
                reason = f"{host} ({address}): {_describe_error(error)}"
        raise httpcore.ConnectError(reason)


async def _open_stream(address: str, port: int) -> AnswerStream:
    stream = AnswerStream(address)
    loop = asyncio.get_running_loop()
    await loop.create_connection(lambda: stream.protocol, address, port)
    return stream


def _describe_error(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or str(error) or "no answer"


class AnswerStream(httpcore.AsyncNetworkStream):
    """One connection, which returns an answer only up to its end.

    Anything that a receiver sends beyond its answer is detected: it must not pass for the next
    answer. The caller announces a request with `begin`, and the body's length with `expect_body`.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.protocol = _Protocol()
        self._remaining = MOST_READ
        self._body: int | None = None
        self._tail = b""
        self._in_headers = True

    @property
    def answered(self) -> bool:
        """Whether anything of the answer was returned."""
        return self._remaining < MOST_READ

    def begin(self) -> None:
        """A request is about to be sent; its answer may have MOST_READ bytes."""
        self._remaining, self._body, self._tail, self._in_headers = MOST_READ, None, b"", True

    def expect_body(self, body: int | None) -> None:
        """The answer's body has this many bytes; None: unknown, so it is returned as it comes."""
        self._in_headers, self._body = False, body

    @property
    def clean(self) -> bool:
        """Whether nothing came beyond the answer, so that another request may be sent."""
        leftover = self.protocol.buffer or self.protocol.ended or self.protocol.writing_paused
        return not leftover and self._body == 0

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        del timeout
        if self._remaining <= 0:
            raise LongAnswerError(f"the answer has more than {MOST_READ:,} bytes")
        data = await self.protocol.wait_for_data()
        count = min(len(data), max_bytes, self._remaining)
        if self._in_headers:
            count = self._count_header_bytes(bytes(data[:count]))
        elif self._body is not None:
            count = min(count, self._body)
            self._body -= count
        self._remaining -= count
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

    def _count_header_bytes(self, data: bytes) -> int:
        """How many of the bytes belong to the headers: all, or up to their end."""
        window = self._tail + data
        end = _HEADERS_END.search(window)
        self._tail = b"" if end else window[-2:]
        return len(data) if end is None else end.end() - (len(window) - len(data))


class _Protocol(asyncio.Protocol):
    """Holds what was received but not read yet, some 64 kB at most."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.ended = False
        self._transport: Any = None
        self._failed: Exception | None = None
        self._news = asyncio.Event()
        self.writing_paused = False

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
        self.writing_paused = True

    def resume_writing(self) -> None:
        self.writing_paused = False
        self._news.set()

    async def wait_for_data(self) -> bytearray:
        """What was received; empty once the other side has ended."""
        while not self.buffer and not self.ended:
            self._news.clear()
            await self._news.wait()
        if not self.buffer and self._failed is not None:
            raise httpcore.ReadError(str(self._failed) or type(self._failed).__name__)
        return self.buffer

    def take(self, count: int) -> bytes:
        data = bytes(self.buffer[:count])
        del self.buffer[:count]
        if len(self.buffer) <= _HELD and not self.ended:
            self._transport.resume_reading()
        return data

    async def write(self, data: bytes) -> None:
        if self.ended:
            raise httpcore.WriteError(str(self._failed or "the receiver ended the connection"))
        self._transport.write(data)
        # A receiver may answer before it has read all; then it need not read the rest.
        while self.writing_paused and not self.buffer and not self.ended:
            self._news.clear()
            await self._news.wait()

    async def start_tls(self, context: ssl.SSLContext, host: str | None) -> None:
        # Unencrypted bytes would pass for an answer through TLS.
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
