"""What the runtime sends on an attempt's stream: the replay, then acks and completions."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from durable_invocations.protocol.frames import Frame, encode
from durable_invocations.runtime.http.exchange import Exchange

PIECE = 65_536
"""Bytes that are sent at once, unless one message is larger."""


class Outgoing:
    """Sends an opening, then frames in the order of `put`, even if put before it.

    `replayed` is called before the end of the opening is sent. Belongs to one event loop.
    """

    def __init__(self, replayed: Callable[[], None]) -> None:
        self._replayed = replayed
        self._replaying = 0
        self._frames: deque[Frame] = deque()
        self._kept: list[Frame] = []
        """Frames put before the peer answered."""
        self._answered = False
        self._news = asyncio.Event()
        self._ended = False

    def begin(self, opening: Sequence[Frame]) -> None:
        """Send the opening, then what was put; again if no peer read it."""
        self._frames = deque((*opening, *self._kept))
        self._replaying = len(opening)

    def mark_answered(self) -> None:
        """Note that the peer reads the stream, so that it is not begun again."""
        self._answered = True
        self._kept.clear()

    def put(self, sent: Frame) -> None:
        """Send a frame after those before it; nothing after the end."""
        if self._ended:
            return
        self._frames.append(sent)
        if not self._answered:
            self._kept.append(sent)
        self._news.set()

    def end(self) -> None:
        """Send only what was put so far. Idempotent."""
        self._ended = True
        self._news.set()

    async def run(self, exchange: Exchange) -> None:
        """Send until the end. Raises DeploymentUnreachableError."""
        while True:
            data = self._take_piece()
            finished = self._ended and not self._frames
            if data or finished:
                await exchange.send(data, end=finished)
            if finished:
                return
            if not self._frames:
                self._news.clear()
                await self._news.wait()

    async def run_whole(self, exchange: Exchange) -> None:
        """Send everything at once, before the response."""
        self._ended = True
        data = b"".join(iter(self._take_piece, b""))
        await exchange.send(data, end=True)

    def _take_piece(self) -> bytes:
        encoded, size = [], 0
        while self._frames and size < PIECE:
            encoded.append(encode(self._frames.popleft()))
            size += len(encoded[-1])
        if 0 < self._replaying <= len(encoded):
            self._replayed()
        self._replaying = max(0, self._replaying - len(encoded))
        return b"".join(encoded)
