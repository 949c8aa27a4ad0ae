"""The newest changes of one index, kept once for all its subscribers, each at a place of its own.

Everything happens in one event loop. The ring is bounded: a reader that is still at changes that
must make room loses its place, and is notified; nothing is skipped silently.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import anyio

from iscp_dagster.events.changes import StampedChange

MOST_ENTRIES = 16_384
PATIENCE_SECONDS = 5.0
"""Seconds that a reading waits for readers that are still at the oldest changes."""

TenantScope = frozenset[str] | None
"""The tenants that a reader sees; None: all."""


@dataclass(frozen=True, kw_only=True)
class RingEntry:
    """One step of a feed, with the cursor after it for each sight that it concerns.

    Without a change, positions only moved; with `gap`, the tenant's history was replaced.
    """

    tenant: str = ""
    stamped_change: StampedChange | None = None
    cursors: Mapping[TenantScope, str] = field(default_factory=dict)
    gap: bool = False


@dataclass(eq=False, kw_only=True)
class RingReader:
    """A subscriber's place in the ring. `on_lost` is called once, when it has lost its place."""

    scope: TenantScope
    next_entry: int
    on_lost: Callable[[], None]
    lost: bool = False
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class Ring:
    """At most `most` entries, and their readers."""

    def __init__(self, most: int = MOST_ENTRIES) -> None:
        self.most = most
        self._entries: deque[RingEntry] = deque()
        self._first = 0
        self._readers: set[RingReader] = set()
        self._readers_moved = asyncio.Event()

    @property
    def end(self) -> int:
        """The number that the next entry will have."""
        return self._first + len(self._entries)

    @property
    def reader_count(self) -> int:
        return len(self._readers)

    def list_scopes(self) -> frozenset[TenantScope]:
        """The distinct sights of its readers."""
        return frozenset(reader.scope for reader in self._readers)

    def join(self, scope: TenantScope, on_lost: Callable[[], None]) -> RingReader:
        """A new reader of the entries from now on; the caller must `leave`."""
        reader = RingReader(scope=scope, next_entry=self.end, on_lost=on_lost)
        self._readers.add(reader)
        return reader

    def leave(self, reader: RingReader) -> None:
        """Forget a reader. Idempotent."""
        self._readers.discard(reader)
        self._readers_moved.set()

    async def make_room(self, entries: int, patience: float = PATIENCE_SECONDS) -> None:
        """Wait until there is room, or evict the readers that make none in time."""
        with_room = self.end + entries - self.most
        with anyio.move_on_after(patience) as scope:
            await self._wait_for_room(with_room)
        if scope.cancelled_caught:
            self._evict_readers(with_room)

    async def _wait_for_room(self, first: int) -> None:
        while any(reader.next_entry < first for reader in self._readers):
            self._readers_moved.clear()
            await self._readers_moved.wait()

    def append(self, entry: RingEntry) -> None:
        """Add an entry in place of the oldest; see `make_room`."""
        self._entries.append(entry)
        while len(self._entries) > self.most:
            self._entries.popleft()
            self._first += 1
        self._evict_readers(self._first)

    def clear(self) -> None:
        """Drop all entries; for a ring without readers."""
        self._first = self.end
        self._entries.clear()

    def wake(self) -> None:
        """Notify the readers of new entries."""
        for reader in self._readers:
            reader.woken.set()

    def take_entries(self, reader: RingReader) -> Iterator[RingEntry]:
        """The reader's new entries; each counts as read when the next is requested.

        Stops early when the reader has lost its place.
        """
        while not reader.lost and reader.next_entry < self.end:
            yield self._entries[reader.next_entry - self._first]
            reader.next_entry += 1
            self._readers_moved.set()

    async def wait_for_entries(self, reader: RingReader, seconds: float | None = None) -> None:
        """Wait for new entries, no longer than `seconds`."""
        with anyio.move_on_after(seconds):
            await self._wait_until_new(reader)

    async def _wait_until_new(self, reader: RingReader) -> None:
        while not reader.lost and reader.next_entry >= self.end:
            reader.woken.clear()
            await reader.woken.wait()

    def _evict_readers(self, first: int) -> None:
        for reader in [reader for reader in self._readers if reader.next_entry < first]:
            self._readers.discard(reader)
            reader.lost = True
            reader.woken.set()
            reader.on_lost()
