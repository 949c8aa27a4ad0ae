"""The ClickHouse tables that a scan is written to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from iscp_dagster.clickhouse.connect.barrier import Epochs
from iscp_dagster.clickhouse.kinds.kind import IndexKind
from iscp_dagster.clickhouse.types.storage import StoredType
from iscp_dagster.model.declared.schema import DELETED
from iscp_dagster.model.jobs import JobID


@dataclass(frozen=True, kw_only=True)
class Target:
    """A ClickHouse table that takes some of the scan's columns."""

    job: JobID
    """The job that keeps the index."""
    database: str
    table: str
    columns: tuple[str, ...]
    keys: tuple[str, ...]
    identity: Mapping[str, str]
    """The columns that identify a row, tenant first, with their ClickHouse types."""
    tenant: str | None
    stored_types: Mapping[str, StoredType] = field(default_factory=dict)
    """How the columns are kept; a column that is missing here is sent unchanged."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """By name, the columns that say whether a column of the scan is null."""
    keeps_dead_letters: bool = False
    """Whether rows that it cannot take become dead letters, without stopping the others."""
    epochs: Epochs = field(default_factory=Epochs)
    """The epochs that an insert shows to the barriers."""
    keeps_replaced_rows: bool = False
    """Whether rows that a rebuild has replaced are still stored, as in partitions of several."""
    index: IndexKind | None = None
    """Fits the rows to the table's indexes."""

    @property
    def name(self) -> str:
        """The index's name, such as `docs.symbols/mirror`."""
        return f"{self.job.db}.{self.job.table}/{self.job.job}"

    @property
    def deleted_column(self) -> str:
        """The column that marks deleted rows."""
        return DELETED
