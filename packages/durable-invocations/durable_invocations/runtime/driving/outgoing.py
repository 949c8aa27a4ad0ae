"""What the runtime sends on an attempt's stream: the replay, then acks and completions."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from durable_invocations.protocol.frames import Frame, encode
from durable_invocations.runtime.http.exchange import Exchange

PIECE = 65_536
"""Bytes that are sent at once, unless one message has more."""


class Outgoing:
    """An opening, then frames in the order in which they are put, also before it.

    `replayed` is told before the last of the opening. Belongs to one event loop.
    """

    def __init__(self, replayed: Callable[[], None]) -> None:
        self._replayed = replayed
        self._replaying = 0
        self._frames: deque[Frame] = deque()
        self._kept: list[Frame] = []
        """What was put, until the peer answers."""
        self._answered = False
        self._news = asyncio.Event()
        self._ended = False

    def begin(self, opening: Sequence[Frame]) -> None:
        """Send the opening, then what was put; also again, where no peer looked at it."""
        self._frames = deque((*opening, *self._kept))
        self._replaying = len(opening)

    def answered(self) -> None:
        """The peer looks at what is sent: there is no other beginning."""
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
