"""A clock that never goes back, and the time of the next timer."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone

Clock = Callable[[], int]
"""Milliseconds since 1970."""
_MS = 1_000


def get_utc_now() -> datetime:
    """The machine's time: aware UTC."""
    return datetime.now(timezone.utc)


class SteadyClock:
    """The machine's clock, which keeps running when the machine's is set back."""

    def __init__(
        self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._ahead = wall() - monotonic()

    def __call__(self) -> int:
        now = self._monotonic()
        # Threads may race here; either value is correct.
        self._ahead = max(self._ahead, self._wall() - now)
        return int((self._ahead + now) * _MS)

    def get_lead(self) -> int:
        """Milliseconds by which it is ahead of the machine's clock, if that was set back."""
        return max(0, self() - int(self._wall() * _MS))

    def get_utc(self) -> datetime:
        """The same time as aware UTC."""
        return datetime.fromtimestamp(self() / _MS, timezone.utc)


class Due:
    """The earliest known time at which something is due, if anything is."""

    def __init__(self) -> None:
        self.at: int | None = None

    def note_due(self, at: int | None) -> bool:
        """Note a time; true if it is earlier than all before."""
        if at is None or (self.at is not None and self.at <= at):
            return False
        self.at = at
        return True

    def reset(self) -> None:
        """Forget the noted times, before the store is read."""
        self.at = None

    def compute_wait(self, now: int) -> float | None:
        """Seconds until then; None if nothing is due."""
        return None if self.at is None else max(0, self.at - now) / _MS
