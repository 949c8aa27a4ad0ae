"""Leases: how long a run, a dispatch or a runner may be silent before others go on without it.

A lease is a name with a time in the ISCP log, by the log's clock alone. A run renews its own while
it works; the runner renews those of the iterations it has queued and of the tables it looks at.
Anybody may free a job whose lease has run out; nobody may free a running job whose lease has not.
"""

from __future__ import annotations

from dataclasses import dataclass

BEATS = 6
"""How many times a run renews its lease before it would run out."""


@dataclass(frozen=True, kw_only=True)
class Leases:
    """How many seconds each kind of lease lasts."""

    run: float = 30.0
    """For a run that works."""
    queued: float = 90.0
    """For an iteration that waits for its run."""
    runner: float = 90.0
    """For the runner that looks at a table; other runners on the same log stand by."""
    unseen: float = 90.0
    """For a Dagster run that has never renewed one: it may just be starting."""

    @property
    def beat(self) -> float:
        """Seconds between two renewals by a run."""
        return self.run / BEATS


DEFAULT_LEASES = Leases()
