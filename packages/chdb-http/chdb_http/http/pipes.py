"""Pipes between the event loop and the engine's threads; a full pipe holds the writer back."""

from __future__ import annotations

import asyncio
import fcntl
import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

# The most that Linux lets an ordinary user ask for.
CAPACITY = 1 << 20
_SET_CAPACITY = getattr(fcntl, "F_SETPIPE_SZ", None)


class Pipe:
    """A pipe whose ends are closed once each, by whoever holds them."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        self._open = {self.reader, self.writer}
        if _SET_CAPACITY is not None:
            with suppress(OSError):
                fcntl.fcntl(self.writer, _SET_CAPACITY, CAPACITY)

    def close(self, descriptor: int) -> None:
        """Close one end; a repeated call does nothing."""
        if descriptor in self._open:
            self._open.discard(descriptor)
            os.close(descriptor)

    def close_all(self) -> None:
        for descriptor in (self.reader, self.writer):
            self.close(descriptor)


async def read_chunks(descriptor: int) -> AsyncIterator[bytes]:
    """What arrives in the pipe, in chunks of at most `CAPACITY` bytes, until its writers close."""
    os.set_blocking(descriptor, False)
    loop = asyncio.get_running_loop()
    while True:
        try:
            chunk = os.read(descriptor, CAPACITY)
        except BlockingIOError:
            await _wait_ready(descriptor, loop.add_reader, loop.remove_reader)
            continue
        if not chunk:
            return
        yield chunk


async def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`; raises BrokenPipeError when nobody reads any more."""
    os.set_blocking(descriptor, False)
    loop = asyncio.get_running_loop()
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            await _wait_ready(descriptor, loop.add_writer, loop.remove_writer)


async def _wait_ready(
    descriptor: int, add: Callable[..., None], remove: Callable[[int], bool]
) -> None:
    event = asyncio.Event()
    add(descriptor, event.set)
    try:
        await event.wait()
    finally:
        remove(descriptor)
