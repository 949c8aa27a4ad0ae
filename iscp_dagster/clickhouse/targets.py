"""The ClickHouse tables that a scan is written to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from iscp_dagster.clickhouse.stored import Stored
from iscp_dagster.core.batch import Range


@dataclass(frozen=True, kw_only=True)
class TokenSeed:
    """What a chunk's token is made of, besides its number and its content."""

    job_id: int
    tenants: frozenset[str]
    range: Range


@dataclass(frozen=True, kw_only=True)
class Target:
    """A ClickHouse table that takes a part of the scan's columns."""

    name: str
    """Which index: `docs.symbols/mirror`."""
    database: str
    table: str
    columns: tuple[str, ...]
    keys: tuple[str, ...]
    identity: Mapping[str, str]
    """The columns that tell one row from the other, tenant first, with their ClickHouse types."""
    tenant: str | None
    system: tuple[str, str, str]
    """The names of the version, timestamp and deleted columns."""
    token: TokenSeed | None
    """What makes chunk tokens; None: no deduplication (a staging table)."""
    stored: Mapping[str, Stored] = field(default_factory=dict)
    """How the columns are kept; one that is not here is sent as it is."""
    vector: str | None = None
    dimension: int = 0

    @property
    def deleted(self) -> str:
        return self.system[2]
