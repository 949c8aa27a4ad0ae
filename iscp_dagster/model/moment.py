"""A point in a source table's history: commit version for order, timestamp for time."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import lru_cache

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True, order=True)
class Moment:
    """Commit `version` (from 0; -1 is before the first commit) and its `micros` since the epoch.

    Order and equality compare only versions.
    """

    version: int
    micros: int = field(default=0, compare=False)

    @property
    def at(self) -> datetime:
        """The commit's time, aware UTC, microseconds."""
        return EPOCH + timedelta(microseconds=self.micros)

    def __str__(self) -> str:
        return f"{self.version}@{self.micros}"

    @classmethod
    @lru_cache
    def parse(cls, text: str) -> Moment:
        """Read what `str` wrote. Raises ValueError on anything else."""
        version, _, micros = text.partition("@")
        return cls(int(version), int(micros))


START = Moment(-1)
"""Before the first commit."""


@dataclass(frozen=True, kw_only=True)
class HistoryStart:
    """Where the history of a tenant begins in a changes index, or with a trigger."""

    at: Moment
    """The commit that its BASE rows are read at."""
    gap: tuple[str, ...] = ()
    """The versions that it lacks and why, as text; empty for a first synchronization."""
