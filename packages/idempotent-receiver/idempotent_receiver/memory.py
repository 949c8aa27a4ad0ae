"""Handled events in memory, for a receiver of one process; they are gone when it ends."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from idempotent_receiver.store import Standing, Store, StoreFullError, lost

MOST = 1_000_000


@dataclass(frozen=True, kw_only=True)
class _Entry:
    holder: str
    at: float
    until: float | None
    """When the claim runs out; None: done."""


class MemoryStore(Store):
    """A Store of at most `most` events; beyond that, new ones are refused and none is forgotten.

    `clock` gives seconds; by default it never jumps, whatever is done to the time of day.
    """

    def __init__(self, most: int = MOST, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._moved = threading.Condition()
        # The oldest first.
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def claim(self, event_id: str, holder: str, lease: float) -> Standing:
        with self._moved:
            standing = self._standing(event_id)
            if standing is Standing.MINE:
                self._keep_bound(event_id)
                now = self._clock()
                self._put(event_id, _Entry(holder=holder, at=now, until=now + lease))
            return standing

    def done(self, event_id: str, holder: str) -> None:
        with self._moved:
            held = self._entries.get(event_id)
            if held is None or held.holder != holder or held.until is None:
                raise lost(event_id)
            self._put(event_id, _Entry(holder=holder, at=self._clock(), until=None))

    def release(self, event_id: str, holder: str) -> None:
        with self._moved:
            held = self._entries.get(event_id)
            if held is not None and held.holder == holder and held.until is not None:
                del self._entries[event_id]
                self._moved.notify_all()

    def pause(self, event_id: str, seconds: float) -> None:
        with self._moved:
            if self._standing(event_id) is Standing.HELD:
                self._moved.wait(seconds)

    def forget(self, seconds: float) -> int:
        with self._moved:
            before, forgotten = self._clock() - seconds, 0
            while self._entries and next(iter(self._entries.values())).at < before:
                self._entries.popitem(last=False)
                forgotten += 1
            return forgotten

    def _standing(self, event_id: str) -> Standing:
        """Where the event stands; MINE: it is free."""
        held = self._entries.get(event_id)
        if held is None:
            return Standing.MINE
        if held.until is None:
            return Standing.DONE
        return Standing.HELD if held.until >= self._clock() else Standing.MINE

    def _keep_bound(self, event_id: str) -> None:
        if event_id not in self._entries and len(self._entries) >= self._most:
            raise StoreFullError(
                f"{len(self._entries):,} events are remembered, the most that this store may hold; "
                "raise most=, or use a SqlStore."
            )

    def _put(self, event_id: str, entry: _Entry) -> None:
        self._entries[event_id] = entry
        self._entries.move_to_end(event_id)
        self._moved.notify_all()
