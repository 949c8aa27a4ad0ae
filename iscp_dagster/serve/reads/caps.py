"""The caps of one request, its viewer, and what remains of the caps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from iscp_dagster.model.errors import IscpError
from iscp_dagster.serve.access import Viewer
from iscp_dagster.serve.rows import QueryLimits
from iscp_dagster.serve.scalars import BadValueError


class TooComplexError(IscpError):
    """A query exceeds the server's caps, and its rows were not read."""

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
    introspection_fields: int = 300_000
    """Fields of introspection."""
    default_rows: int = 100

    def check_page(self, limit: int | None, offset: int) -> int:
        """Return the limit. Raises BadValueError beyond the caps."""
        limit = self.default_rows if limit is None else limit
        checks = (("limit", limit, self.rows), ("offset", offset, self.skipped))
        for name, value, cap in checks:
            if not 0 <= value <= cap:
                raise BadValueError(f"{name}: {value} is not from 0 to {cap:,}, this server's cap.")
        return limit


@dataclass(kw_only=True)
class RequestContext:
    """One request: its viewer, and what remains of its caps."""

    viewer: Viewer
    caps: Caps = field(default_factory=Caps)
    clock: Callable[[], float] = time.monotonic
    introspected_fields: int = 0
    """Fields of introspection so far."""
    _cells: int = 0
    _bytes: int = 0
    _began: float | None = None

    def __post_init__(self) -> None:
        self._began = self.clock()

    def charge_cells(self, cells: int) -> None:
        """Count values before they are read. Raises TooComplexError beyond the cap."""
        self._cells += cells
        if self._cells > self.caps.cells:
            raise TooComplexError(
                f"The query selects up to {self._cells:,} values (rows times columns), and this "
                f"server reads at most {self.caps.cells:,}; lower `limit`, or select fewer columns."
            )

    def compute_limits(self, max_rows: int) -> QueryLimits:
        """Return what ClickHouse may spend on the next query."""
        elapsed = self.clock() - (self._began or 0)
        return QueryLimits(
            seconds=max(0.1, self.caps.seconds - elapsed),
            rows=max_rows,
            bytes=max(1, self.caps.bytes - self._bytes),
            charge_bytes=self._charge_bytes,
        )

    def _charge_bytes(self, count: int) -> None:
        self._bytes += count
        if self._bytes > self.caps.bytes:
            raise TooComplexError(
                f"The rows are larger than the {self.caps.bytes:,} bytes that this server reads at "
                "a time; ask for fewer rows or columns."
            )
