"""The source's time of a row's change, with a type of its own, so no column passes for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from iscp_dagster.model.moment import EPOCH

NANOS_PER_MICROSECOND = 1_000
"""Nanoseconds of a microsecond, the unit in which rows carry the commit's time."""


@dataclass(frozen=True, order=True, kw_only=True)
class SourceTimestamp:
    """The in-commit timestamp of commit `version`, and the change's place in that commit.

    `nanos` are nanoseconds since the epoch; `ordinal` counts the tenant's changes in the commit
    from 0. Order and equality are of version and ordinal, within one table. It travels beside a
    row, as the second of a tuple, and neither compares nor adds up with numbers.
    """

    nanos: int = field(compare=False)
    version: int
    ordinal: int = 0

    @property
    def text(self) -> str:
        """The nanoseconds in decimal digits, as payloads and subscriptions show them."""
        return str(self.nanos)

    @property
    def at(self) -> datetime:
        """The commit's time, aware UTC; nanoseconds are cut to microseconds."""
        return EPOCH + timedelta(microseconds=self.nanos // NANOS_PER_MICROSECOND)

    @classmethod
    def from_micros(cls, micros: int, *, version: int, ordinal: int = 0) -> SourceTimestamp:
        """The timestamp of a commit at `micros` since the epoch."""
        return cls(nanos=micros * NANOS_PER_MICROSECOND, version=version, ordinal=ordinal)

    @classmethod
    def from_datetime(cls, at: datetime, *, version: int, ordinal: int = 0) -> SourceTimestamp:
        """The timestamp of a commit at an aware time. Exact, whatever the year."""
        micros = (at - EPOCH) // timedelta(microseconds=1)
        return cls.from_micros(micros, version=version, ordinal=ordinal)
