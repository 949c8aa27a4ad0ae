"""Time that never runs backwards, and when the next timer is due."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone

Clock = Callable[[], int]
"""Milliseconds since 1970."""
_MS = 1_000


def utc_now() -> datetime:
    """The machine's time: aware UTC."""
    return datetime.now(timezone.utc)


class SteadyClock:
    """The machine's clock, which goes on at its pace where the machine's is put back."""

    def __init__(
        self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._ahead = wall() - monotonic()

    def __call__(self) -> int:
        now = self._monotonic()
        # Threads may race here; either value is a right one.
        self._ahead = max(self._ahead, self._wall() - now)
        return int((self._ahead + now) * _MS)

    def lead(self) -> int:
        """Milliseconds by which it is ahead of the machine's clock, which was put back."""
        return max(0, self() - int(self._wall() * _MS))

    def utc(self) -> datetime:
        """The same as a moment of UTC."""
        return datetime.fromtimestamp(self() / _MS, timezone.utc)


class Due:
    """The earliest moment at which something is due, as far as one knows; None: nothing is."""

    def __init__(self) -> None:
        self.at: int | None = None

    def heard(self, at: int | None) -> bool:
        """Take a moment in; whether it is earlier than those before."""
        if at is None or (self.at is not None and self.at <= at):
            return False
        self.at = at
        return True

    def taken(self) -> None:
        """Forget what was heard: who looks now finds what there is."""
        self.at = None

    def wait(self, now: int) -> float | None:
        """Seconds until then; None: nothing is due."""
        return None if self.at is None else max(0, self.at - now) / _MS
