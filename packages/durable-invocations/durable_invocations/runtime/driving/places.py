"""The places for attempts of a runtime, and how deployments share them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

PART = 4


class Places:
    """Counts the attempts under way by their deployments.

    A deployment has three quarters at most of the places that the others leave, so that one whose
    handlers hang holds up no other.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: Counter[str] = Counter()

    def take(self, deployment: str) -> None:
        """An attempt of the deployment begins."""
        self._held[deployment] += 1

    def leave(self, deployment: str) -> None:
        """One has ended."""
        self._held[deployment] -= 1
        if not self._held[deployment]:
            del self._held[deployment]

    @property
    def free(self) -> int:
        """How many more may begin, whichever deployments they are of but the full ones."""
        rooms = [self._room(0), *map(self._room, self._held.values())]
        return min((each for each in rooms if each > 0), default=0)

    @property
    def full(self) -> Collection[str]:
        """The deployments of which no more may begin."""
        return [name for name, held in self._held.items() if self._room(held) <= 0]

    def _room(self, held: int) -> int:
        left = self._most - self._held.total() + held
        return left - left // PART - held
