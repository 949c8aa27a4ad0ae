"""Leases: how long somebody may be silent before others go on without them.

A lease is a name with a time in the ISCP log, by the log's clock and nobody else's. Who works
renews the one of its run, the runner those of what it has queued and of the tables it looks at.
What has run out anybody frees, and nobody frees what has not.
"""

from __future__ import annotations

from dataclasses import dataclass

BEATS = 6
"""How often a run renews its lease while it lasts."""


@dataclass(frozen=True, kw_only=True)
class Leases:
    """How many seconds each kind of lease lasts."""

    run: float = 30.0
    """Of a run that works."""
    queued: float = 90.0
    """Of an iteration that waits for its run."""
    runner: float = 90.0
    """Of the runner that looks at a table; other runners on the same log stand by."""
    unseen: float = 90.0
    """Of a Dagster run that has never renewed one: it may just be starting."""

    @property
    def beat(self) -> float:
        """Seconds between two renewals by a run."""
        return self.run / BEATS


DEFAULT_LEASES = Leases()
