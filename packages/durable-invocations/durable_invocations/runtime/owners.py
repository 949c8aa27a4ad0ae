"""Which runtimes are alive: those whose beats grow, by the observer's monotonic clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SILENT_SECONDS = 10.0
BEAT_SECONDS = 2.0
LOOKS = 4
"""The least looks at an unchanged beat before its runtime is dead."""


@dataclass(kw_only=True)
class LivenessWatch:
    """Remembers for how long each runtime's beat has not changed.

    No clocks are compared, so a changed clock does no harm. A time without looks counts little:
    while the database was unavailable, no beat could grow.
    """

    owner: str
    """The observer, which is alive."""
    silent: float = SILENT_SECONDS
    _looked: float | None = None
    _seen: dict[str, tuple[int, float]] = field(default_factory=dict)

    def find_dead(self, beats: Mapping[str, int], now: float) -> tuple[tuple[str, int], ...]:
        """The runtimes, with their beats, that have been silent for `silent` seconds at `now`."""
        passed = 0.0 if self._looked is None else min(now - self._looked, self.silent / LOOKS)
        self._looked = now
        others = {owner: beat for owner, beat in beats.items() if owner != self.owner}
        self._seen = {
            owner: self._compute_still(owner, beat, passed) for owner, beat in others.items()
        }
        return tuple(
            (owner, beat) for owner, (beat, still) in self._seen.items() if still >= self.silent
        )

    def _compute_still(self, owner: str, beat: int, passed: float) -> tuple[int, float]:
        seen, still = self._seen.get(owner, (None, 0.0))
        return beat, still + passed if seen == beat else 0.0
