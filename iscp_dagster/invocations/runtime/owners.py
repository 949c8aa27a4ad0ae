"""Which runtimes are alive: those whose beats move on, by the observer's own monotonic clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SILENT_SECONDS = 10.0
BEAT_SECONDS = 2.0


@dataclass(kw_only=True)
class Watch:
    """Remembers when each runtime's beat was seen to move.

    No clocks are compared, so that one that is put back or forward does no harm.
    """

    owner: str
    """The observer, which is alive."""
    silent: float = SILENT_SECONDS
    _seen: dict[str, tuple[int, float]] = field(default_factory=dict)

    def dead(self, beats: Mapping[str, int], now: float) -> tuple[tuple[str, int], ...]:
        """The runtimes, with their beats, that stood still for `silent` seconds until `now`."""
        others = {owner: beat for owner, beat in beats.items() if owner != self.owner}
        self._seen = {owner: self._since(owner, beat, now) for owner, beat in others.items()}
        return tuple(
            (owner, beat)
            for owner, (beat, since) in self._seen.items()
            if now - since >= self.silent
        )

    def _since(self, owner: str, beat: int, now: float) -> tuple[int, float]:
        before = self._seen.get(owner)
        return before if before is not None and before[0] == beat else (beat, now)
