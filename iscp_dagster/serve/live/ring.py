"""The newest changes of one index, kept once for all its subscribers, each at a place of its own.

Everything happens in one event loop. The ring is bounded: a reader that is still at changes that
must make room has lost its place, and is told so; nothing is skipped silently.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import anyio

from iscp_dagster.events.changes import Stamped

MOST_ENTRIES = 16_384
PATIENCE = 5.0
"""Seconds that a reading waits for readers that are still at the oldest changes."""

Sight = frozenset[str] | None
"""The tenants that a reader sees; None: all."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One step of a feed, with the cursor after it for each sight that it concerns.

    Without a change, positions only moved; with `gap`, the tenant's history began anew.
    """

    tenant: str = ""
    stamped: Stamped | None = None
    cursors: Mapping[Sight, str] = field(default_factory=dict)
    gap: bool = False


@dataclass(eq=False, kw_only=True)
class Reader:
    """A subscriber's place in the ring. `on_lost` is called once, when it has lost its place."""

    sight: Sight
    at: int
    on_lost: Callable[[], None]
    lost: bool = False
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class Ring:
    """At most `most` entries, and who reads them."""

    def __init__(self, most: int = MOST_ENTRIES) -> None:
        self.most = most
        self._held: deque[Entry] = deque()
        self._first = 0
        self._readers: set[Reader] = set()
        self._taken = asyncio.Event()

    @property
    def end(self) -> int:
        """The number that the next entry will have."""
        return self._first + len(self._held)

    @property
    def readers(self) -> int:
        return len(self._readers)

    def sights(self) -> frozenset[Sight]:
        """What its readers see, each once."""
        return frozenset(reader.sight for reader in self._readers)

    def join(self, sight: Sight, on_lost: Callable[[], None]) -> Reader:
        """A new reader, of what comes from now on; the caller must `leave`."""
        reader = Reader(sight=sight, at=self.end, on_lost=on_lost)
        self._readers.add(reader)
        return reader

    def leave(self, reader: Reader) -> None:
        """Forget a reader. Idempotent."""
        self._readers.discard(reader)
        self._taken.set()

    async def room(self, entries: int, patience: float = PATIENCE) -> None:
        """Wait until there is room, or turn out the readers that do not make any in time."""
        with_room = self.end + entries - self.most
        with anyio.move_on_after(patience) as scope:
            await self._made(with_room)
        if scope.cancelled_caught:
            self._turn_out(with_room)

    async def _made(self, first: int) -> None:
        while any(reader.at < first for reader in self._readers):
            self._taken.clear()
            await self._taken.wait()

    def append(self, entry: Entry) -> None:
        """Add an entry in place of the oldest; see `room`."""
        self._held.append(entry)
        while len(self._held) > self.most:
            self._held.popleft()
            self._first += 1
        self._turn_out(self._first)

    def clear(self) -> None:
        """Drop all entries; for a ring without readers."""
        self._first = self.end
        self._held.clear()

    def wake(self) -> None:
        """Tell the readers that there are new entries."""
        for reader in self._readers:
            reader.woken.set()

    def taken(self, reader: Reader) -> Iterator[Entry]:
        """The entries that the reader has not had; each counts as had when the next is asked for.

        Stops early when the reader has lost its place.
        """
        while not reader.lost and reader.at < self.end:
            yield self._held[reader.at - self._first]
            reader.at += 1
            self._taken.set()

    async def news(self, reader: Reader, seconds: float | None = None) -> None:
        """Wait for new entries, no longer than `seconds`."""
        with anyio.move_on_after(seconds):
            await self._new(reader)

    async def _new(self, reader: Reader) -> None:
        while not reader.lost and reader.at >= self.end:
            reader.woken.clear()
            await reader.woken.wait()

    def _turn_out(self, first: int) -> None:
        for reader in [each for each in self._readers if each.at < first]:
            self._readers.discard(reader)
            reader.lost = True
            reader.woken.set()
            reader.on_lost()
