"""Which runtimes are alive: those whose beats move on, by the observer's own monotonic clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SILENT_SECONDS = 10.0
BEAT_SECONDS = 2.0
LOOKS = 4
"""Looks at a beat that stands still before its runtime is dead, however far apart they are."""


@dataclass(kw_only=True)
class Watch:
    """Remembers for how long each runtime's beat was seen to stand still.

    No clocks are compared, so that one that is put back or forward does no harm. A time without
    looks counts little: when the database was away, no beat could move.
    """

    owner: str
    """The observer, which is alive."""
    silent: float = SILENT_SECONDS
    _looked: float | None = None
    _seen: dict[str, tuple[int, float]] = field(default_factory=dict)

    def dead(self, beats: Mapping[str, int], now: float) -> tuple[tuple[str, int], ...]:
        """The runtimes, with their beats, that stood still for `silent` seconds until `now`."""
        passed = 0.0 if self._looked is None else min(now - self._looked, self.silent / LOOKS)
        self._looked = now
        others = {owner: beat for owner, beat in beats.items() if owner != self.owner}
        self._seen = {owner: self._still(owner, beat, passed) for owner, beat in others.items()}
        return tuple(
            (owner, beat) for owner, (beat, still) in self._seen.items() if still >= self.silent
        )

    def _still(self, owner: str, beat: int, passed: float) -> tuple[int, float]:
        seen, still = self._seen.get(owner, (None, 0.0))
        return beat, still + passed if seen == beat else 0.0
