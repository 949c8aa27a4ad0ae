"""What the runtime sends on an attempt's stream: the replay, then acks and completions."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from iscp_dagster.invocations.protocol.frames import Frame, encode
from iscp_dagster.invocations.runtime.http.exchange import Exchange

PIECE = 65_536
"""Bytes that are sent at once, unless one message has more."""


class Outgoing:
    """Frames in the order in which they are put; `replayed` is told before the last of the opening.

    Belongs to one event loop.
    """

    def __init__(self, opening: Sequence[Frame], replayed: Callable[[], None]) -> None:
        self._frames = deque(opening)
        self._replaying = len(opening)
        self._replayed = replayed
        self._news = asyncio.Event()
        self._ended = False

    def put(self, sent: Frame) -> None:
        """Send a frame after those before it; nothing after the end."""
        if not self._ended:
            self._frames.append(sent)
            self._news.set()

    def end(self) -> None:
        """Send no more than what was put. Idempotent."""
        self._ended = True
        self._news.set()

    async def run(self, exchange: Exchange) -> None:
        """Send until the end. Raises DeploymentUnreachableError."""
        while True:
            data = self._piece()
            done = self._ended and not self._frames
            if data or done:
                await exchange.send(data, end=done)
            if done:
                return
            if not self._frames:
                self._news.clear()
                await self._news.wait()

    async def run_whole(self, exchange: Exchange) -> None:
        """Send all of it in one, as what comes before a response."""
        self._ended = True
        data = b"".join(iter(self._piece, b""))
        await exchange.send(data, end=True)

    def _piece(self) -> bytes:
        taken, size = [], 0
        while self._frames and size < PIECE:
            taken.append(encode(self._frames.popleft()))
            size += len(taken[-1])
        if 0 < self._replaying <= len(taken):
            self._replayed()
        self._replaying = max(0, self._replaying - len(taken))
        return b"".join(taken)
