"""The ClickHouse tables that a scan is written to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from iscp_dagster.clickhouse.connect.barrier import Epochs
from iscp_dagster.clickhouse.kinds.kind import IndexKind
from iscp_dagster.clickhouse.types.stored import Stored
from iscp_dagster.model.declared.schema import DELETED
from iscp_dagster.model.jobs import JobID


@dataclass(frozen=True, kw_only=True)
class Target:
    """A ClickHouse table that takes a part of the scan's columns."""

    job: JobID
    """Whose index it is."""
    database: str
    table: str
    columns: tuple[str, ...]
    keys: tuple[str, ...]
    identity: Mapping[str, str]
    """The columns that tell one row from the other, tenant first, with their ClickHouse types."""
    tenant: str | None
    stored: Mapping[str, Stored] = field(default_factory=dict)
    """How the columns are kept; one that is not here is sent as it is."""
    buries: bool = False
    """Rows that it cannot take become dead letters, and do not stop the others."""
    epochs: Epochs = field(default_factory=Epochs)
    """What an insert shows to the barriers."""
    index: IndexKind | None = None
    """Says how rows are to be for the table's indexes."""

    @property
    def name(self) -> str:
        """Which index: `docs.symbols/mirror`."""
        return f"{self.job.db}.{self.job.table}/{self.job.job}"

    @property
    def deleted(self) -> str:
        """The column that says whether a row is gone."""
        return DELETED
