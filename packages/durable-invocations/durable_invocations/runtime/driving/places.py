"""A runtime's places for attempts, and how deployments share them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

PART = 4


class Places:
    """Counts the attempts under way by their deployments.

    A deployment gets at most three quarters of the places that the others leave, so that one whose
    handlers hang does not block the rest.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts: Counter[str] = Counter()

    def take(self, deployment: str) -> None:
        """Count an attempt of the deployment that begins."""
        self._counts[deployment] += 1

    def leave(self, deployment: str) -> None:
        """Count one that has ended."""
        self._counts[deployment] -= 1
        if not self._counts[deployment]:
            del self._counts[deployment]

    @property
    def free(self) -> int:
        """How many more may begin, on any deployments except the full ones."""
        rooms = [self._compute_room(0), *map(self._compute_room, self._counts.values())]
        return min((room for room in rooms if room > 0), default=0)

    @property
    def full(self) -> Collection[str]:
        """The deployments that may begin no more attempts."""
        return [name for name, count in self._counts.items() if self._compute_room(count) <= 0]

    def _compute_room(self, count: int) -> int:
        available = self._most - self._counts.total() + count
        return available - available // PART - count
