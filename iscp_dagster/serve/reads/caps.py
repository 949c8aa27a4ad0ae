"""What one request may ask for, who asks, and what is left."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from iscp_dagster.model.errors import IscpError
from iscp_dagster.serve.access import Viewer
from iscp_dagster.serve.rows import Limits
from iscp_dagster.serve.scalars import BadValueError


class TooComplexError(IscpError):
    """A query asks for more than the server's caps allow; what it asked for was not read."""

    code = 10_870


@dataclass(frozen=True, kw_only=True)
class Caps:
    """The most that one request may ask for."""

    rows: int = 1_000
    """Rows of one field."""
    skipped: int = 10_000
    """Rows that `offset` skips."""
    cells: int = 200_000
    """Values of all fields: rows times columns."""
    seconds: float = 20
    """For the whole request, and so for ClickHouse."""
    bytes: int = 64 * 1024 * 1024
    """Bytes of all rows, as ClickHouse writes them."""
    told: int = 300_000
    """Fields that the schema tells of itself."""
    default_rows: int = 100

    def checked(self, limit: int | None, offset: int) -> int:
        """Return the limit. Raises BadValueError beyond the caps."""
        limit = self.default_rows if limit is None else limit
        given = (("limit", limit, self.rows), ("offset", offset, self.skipped))
        for name, value, most in given:
            if not 0 <= value <= most:
                raise BadValueError(
                    f"{name}: {value} is not from 0 to {most:,}, this server's cap."
                )
        return limit


@dataclass(kw_only=True)
class Asking:
    """One request: who asks, and what is left of its caps."""

    viewer: Viewer
    caps: Caps = field(default_factory=Caps)
    clock: Callable[[], float] = time.monotonic
    told: int = 0
    """Fields that the schema has told of itself."""
    _cells: int = 0
    _bytes: int = 0
    _began: float | None = None

    def __post_init__(self) -> None:
        self._began = self.clock()

    def charge(self, cells: int) -> None:
        """Count values before they are read. Raises TooComplexError beyond the cap."""
        self._cells += cells
        if self._cells > self.caps.cells:
            raise TooComplexError(
                f"The query asks for up to {self._cells:,} values (rows times columns), and this "
                f"server reads {self.caps.cells:,} at a time; lower `limit`, or ask for less."
            )

    def limits(self, most: int) -> Limits:
        """Return what ClickHouse may spend on the next query."""
        passed = self.clock() - (self._began or 0)
        return Limits(
            seconds=max(0.1, self.caps.seconds - passed),
            rows=most,
            bytes=max(1, self.caps.bytes - self._bytes),
            spend=self._spend,
        )

    def _spend(self, read: int) -> None:
        self._bytes += read
        if self._bytes > self.caps.bytes:
            raise TooComplexError(
                f"The rows are larger than the {self.caps.bytes:,} bytes that this server reads at "
                "a time; ask for fewer rows or columns."
            )
