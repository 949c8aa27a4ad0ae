"""Leases: how long a run, a dispatch or a runner may be silent before others continue without it.

A lease is a name with an expiry time in the ISCP log, by the log's clock. A run renews its own
while it works; the runner renews the leases of its queued iterations and of the tables it watches.
Anybody may free a job whose lease has expired; nobody may free a running job before that.
"""

from __future__ import annotations

from dataclasses import dataclass

BEATS = 6
"""How many times a run renews its lease before it would expire."""


@dataclass(frozen=True, kw_only=True)
class LeaseDurations:
    """How many seconds each kind of lease lasts."""

    run: float = 30.0
    """For a run that is working."""
    queued: float = 90.0
    """For an iteration that is queued for a run."""
    runner: float = 90.0
    """For the runner that looks at a table; other runners on the same log stand by."""
    unseen: float = 90.0
    """For a Dagster run that has never renewed one: it may just be starting."""

    @property
    def beat(self) -> float:
        """Seconds between two renewals by a run."""
        return self.run / BEATS


DEFAULT_LEASES = LeaseDurations()
