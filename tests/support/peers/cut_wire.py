"""A wire between a runtime and a service endpoint, which is cut after a number of bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from runtime_support.endpoints.scripted_peers import raw_peer

UP, DOWN = "up", "down"


@dataclass
class CuttingProxy:
    """Cuts every connection once `left` more bytes have gone one way; then it is whole again."""

    way: str = ""
    left: int = 0
    cuts: int = 0
    _ends: set[Any] = field(default_factory=set)

    def arm(self, way: str, left: int) -> None:
        self.way, self.left = way, left

    def let_through(self, way: str, data: bytes) -> bytes:
        """Return the bytes that get through."""
        if way != self.way:
            return data
        self.left -= len(data)
        return data if self.left >= 0 else data[: self.left]

    async def pump(self, way: str, reader: Any, writer: Any) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(self.let_through(way, data))
                await writer.drain()
                if way == self.way and self.left < 0:
                    self.cut()
            if writer.can_write_eof():
                writer.write_eof()

    def cut(self) -> None:
        self.way, self.cuts = "", self.cuts + 1
        for end in list(self._ends):
            end.close()

    async def join(self, address: Any, reader: Any, writer: Any) -> None:
        """Carry one connection until it ends."""
        try:
            far_reader, far_writer = await asyncio.open_connection(address.hostname, address.port)
        except ConnectionError:
            writer.close()
            return
        ends = {writer, far_writer}
        self._ends |= ends
        try:
            await asyncio.gather(
                self.pump(UP, reader, far_writer), self.pump(DOWN, far_reader, writer)
            )
        finally:
            self._ends -= ends
            for end in ends:
                end.close()


@asynccontextmanager
async def wired(url: str) -> AsyncIterator[tuple[CuttingProxy, str]]:
    """Run a wire to the address until the end of the block; yield it, and its own address."""
    wire = CuttingProxy()
    async with raw_peer(partial(wire.join, urlsplit(url))) as wire_url:
        yield wire, wire_url
