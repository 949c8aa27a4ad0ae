"""What an iteration works with: the lake, ClickHouse, the ISCP log and a Spark session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iscp_dagster.clickhouse.ddl import IndexTable
from iscp_dagster.clickhouse.endpoint import Endpoint
from iscp_dagster.clickhouse.indexes import IndexStore
from iscp_dagster.core.bounds import DEFAULT_BOUNDS, Bounds
from iscp_dagster.core.clock import Clock, utc_now
from iscp_dagster.core.schema import DeltaField
from iscp_dagster.core.tables import Index, SourceTable
from iscp_dagster.lake.deltalog import DeltaLog
from iscp_dagster.log.protocol import JobLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from iscp_dagster.states.protocol import StateStore


@dataclass(frozen=True, kw_only=True)
class Engine:
    """The services of one deployment. `spark` connects at its first call and not before."""

    endpoint: Endpoint
    log: JobLog
    spark: Callable[[], SparkSession]
    lake: str
    """The root below which a table without a path lies, as `database/table`."""
    states: Callable[[], StateStore] | None = None
    """Where batch states are kept beside the job's rows; None: there alone."""
    clock: Clock = utc_now
    bounds: Bounds = DEFAULT_BOUNDS
    """How much one iteration takes on, where its jobs do not say."""

    def path(self, source: SourceTable) -> str:
        """Where the Delta table lies."""
        return source.path or f"{self.lake.rstrip('/')}/{source.database}/{source.table}"

    def delta_log(self, source: SourceTable) -> DeltaLog:
        """The table's log, read without Spark."""
        return DeltaLog(self.path(source), source.tenant)

    def store(
        self,
        source: SourceTable,
        index: Index,
        schema: tuple[DeltaField, ...],
        generation: int = 0,
    ) -> IndexStore:
        """The index's ClickHouse tables of a generation, for a source of that `schema`."""
        wanted = source.columns_of(index, [field.name for field in schema])
        fields = [field for field in schema if field.name in wanted]
        shape = IndexTable(source=source, index=index, fields=fields, generation=generation)
        return IndexStore(endpoint=self.endpoint, shape=shape)
