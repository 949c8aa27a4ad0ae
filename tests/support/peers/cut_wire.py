"""A wire between a runtime and a service endpoint that is cut after so many bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

UP, DOWN = "up", "down"


@dataclass
class Wire:
    """Cuts every connection once `left` more bytes have gone the way; then it is whole again."""

    way: str = ""
    left: int = 0
    cuts: int = 0
    _ends: set[Any] = field(default_factory=set)

    def arm(self, way: str, left: int) -> None:
        self.way, self.left = way, left

    def pass_(self, way: str, data: bytes) -> bytes:
        """The bytes that get through."""
        if way != self.way:
            return data
        self.left -= len(data)
        return data if self.left >= 0 else data[: self.left]

    async def pump(self, way: str, reader: Any, writer: Any) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(self.pass_(way, data))
                await writer.drain()
                if way == self.way and self.left < 0:
                    self.cut()
            if writer.can_write_eof():
                writer.write_eof()

    def cut(self) -> None:
        self.way, self.cuts = "", self.cuts + 1
        for each in list(self._ends):
            each.close()

    async def join(self, there: Any, reader: Any, writer: Any) -> None:
        """Carry one connection until it ends."""
        try:
            far_reader, far_writer = await asyncio.open_connection(there.hostname, there.port)
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
            for each in ends:
                each.close()


@asynccontextmanager
async def wired(url: str) -> AsyncIterator[tuple[Wire, str]]:
    """Run a wire to the address until the end of the block; it, and its own address."""
    wire, tasks = Wire(), set()

    async def joined(reader: Any, writer: Any) -> None:
        tasks.add(asyncio.current_task())
        with suppress(asyncio.CancelledError):
            await wire.join(urlsplit(url), reader, writer)

    server = await asyncio.start_server(joined, "127.0.0.1", 0)
    try:
        yield wire, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
