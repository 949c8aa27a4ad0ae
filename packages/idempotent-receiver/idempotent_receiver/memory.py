"""Handled events in memory, for a receiver of one process; they are gone when it ends."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from idempotent_receiver.store import ClaimStatus, Store, StoreFullError, make_claim_lost_error

MOST = 1_000_000


@dataclass(frozen=True, kw_only=True)
class _EventRecord:
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
        self._entries: OrderedDict[str, _EventRecord] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def claim(self, event_id: str, holder: str, lease: float) -> ClaimStatus:
        with self._moved:
            status = self._get_claim_status(event_id)
            if status is ClaimStatus.MINE:
                self._check_capacity(event_id)
                now = self._clock()
                self._put_record(event_id, _EventRecord(holder=holder, at=now, until=now + lease))
            return status

    def complete(self, event_id: str, holder: str) -> None:
        with self._moved:
            record = self._entries.get(event_id)
            if record is None or record.holder != holder or record.until is None:
                raise make_claim_lost_error(event_id)
            self._put_record(event_id, _EventRecord(holder=holder, at=self._clock(), until=None))

    def release(self, event_id: str, holder: str) -> None:
        with self._moved:
            record = self._entries.get(event_id)
            if record is not None and record.holder == holder and record.until is not None:
                del self._entries[event_id]
                self._moved.notify_all()

    def wait_for_change(self, event_id: str, seconds: float) -> None:
        with self._moved:
            if self._get_claim_status(event_id) is ClaimStatus.HELD:
                self._moved.wait(seconds)

    def forget(self, seconds: float) -> int:
        with self._moved:
            before, forgotten = self._clock() - seconds, 0
            while self._entries and next(iter(self._entries.values())).at < before:
                self._entries.popitem(last=False)
                forgotten += 1
            return forgotten

    def _get_claim_status(self, event_id: str) -> ClaimStatus:
        """The event's status; MINE: the caller may claim it."""
        record = self._entries.get(event_id)
        if record is None:
            return ClaimStatus.MINE
        if record.until is None:
            return ClaimStatus.DONE
        return ClaimStatus.HELD if record.until >= self._clock() else ClaimStatus.MINE

    def _check_capacity(self, event_id: str) -> None:
        if event_id not in self._entries and len(self._entries) >= self._most:
            raise StoreFullError(
                f"{len(self._entries):,} events are remembered, the most that this store may hold; "
                "raise most=, or use a SqlStore."
            )

    def _put_record(self, event_id: str, record: _EventRecord) -> None:
        self._entries[event_id] = record
        self._entries.move_to_end(event_id)
        self._moved.notify_all()
