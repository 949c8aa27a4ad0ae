"""The services of an iteration: the lake, ClickHouse, the ISCP log and a Spark session."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any

import iscp_dagster.webhooks.tables  # noqa: F401 - a log makes the tables that are imported by then
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.kinds.changes import CALCULATED
from iscp_dagster.clickhouse.kinds.kind import IndexKind
from iscp_dagster.clickhouse.tables.ddl import IndexShape
from iscp_dagster.clickhouse.tables.generations import IndexGenerations
from iscp_dagster.clickhouse.tables.index_store import IndexStore
from iscp_dagster.clickhouse.tables.ownership import read_definition
from iscp_dagster.clickhouse.types.nulls import check_table_null_rules
from iscp_dagster.delta.expressions import analyze_expressions
from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.events.ids import DEFAULT_IDS, IdScheme
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.clock import Clock, get_utc_now
from iscp_dagster.model.declared.images import IMAGE_FIELDS, ImageSource
from iscp_dagster.model.declared.schema import DeltaField, parse_schema
from iscp_dagster.model.declared.sharding import get_shard, strip_shard_suffix
from iscp_dagster.model.declared.tables import Index, SourceTable
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.specs import ConsumerInfo
from iscp_dagster.serviceconsumers.runtime_protocol import InvocationRuntime
from iscp_dagster.sync.bounds import DEFAULT_BOUNDS, IterationBounds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from iscp_dagster.batchstates.protocol import StateStore


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """The services of one deployment. `spark` connects only at its first call."""

    endpoint: ClickHouseEndpoint
    """The first ClickHouse server; it holds all that is not sharded."""
    log: SqlLog
    spark: Callable[[], SparkSession]
    """The session that all processes share, for the project's own reads."""
    lake: str
    """The root folder of tables without a path; each is at `database/table` below it."""
    open_state_store: Callable[[], StateStore] | None = None
    """Opens the store of batch states beside the job rows; None: only the rows keep them."""
    clock: Clock = get_utc_now
    tolerate_state_mismatch: bool = False
    """Whether to skip a range that lies before the recorded batch instead of stopping the job."""
    private_spark: Callable[[], SparkSession] | None = None
    """Makes a new session for user code; None: no user code runs here."""
    event_ids: IdScheme = DEFAULT_IDS
    """How the ids of triggers' events are made."""
    bounds: IterationBounds = DEFAULT_BOUNDS
    """How much one iteration takes on, unless its jobs set bounds."""
    analyzed: dict[Any, Sequence[DeltaField]] = field(
        default_factory=dict, compare=False, repr=False
    )
    """Spark's analysis of views over a schema, since each index and trigger of a scan needs it."""
    open_runtime: Callable[[], InvocationRuntime] | None = None
    """Opens the runtime that invokes service consumers' handlers; None: no runtime."""
    shards: tuple[ClickHouseEndpoint, ...] = ()
    """All ClickHouse servers, `endpoint` first; empty: `endpoint` is the only one."""

    @property
    def endpoints(self) -> tuple[ClickHouseEndpoint, ...]:
        """The ClickHouse servers by shard."""
        return self.shards or (self.endpoint,)

    @contextmanager
    def open_private_session(self) -> Iterator[SparkSession]:
        """A private session for the block. Raises ConfigError if none can be made."""
        if self.private_spark is None:
            raise ConfigError("This deployment cannot run user code: give it `private_spark`.")
        session = self.private_spark()
        try:
            yield session
        finally:
            session.stop()

    def join_spark_early(self) -> Deployment:
        """A copy that is already joining its Spark session, for the first call of `spark`.

        That call raises what joining raised; without it nothing waits for the session.
        """
        joined: Future[SparkSession] = Future()

        def join() -> None:
            try:
                joined.set_result(self.spark())
            except BaseException as error:  # noqa: BLE001 - raised when the session is used
                joined.set_exception(error)

        Thread(target=join, name="joining Spark", daemon=True).start()
        pending = [joined]
        return replace(self, spark=lambda: pending.pop().result() if pending else self.spark())

    def get_table_path(self, source: SourceTable) -> str:
        """The path of the Delta table."""
        return source.path or f"{self.lake.rstrip('/')}/{source.database}/{source.table}"

    def make_delta_log(self, source: SourceTable) -> DeltaLog:
        """The Delta log of the table, read without Spark."""
        return DeltaLog(
            self.get_table_path(source),
            source.tenant,
            tenant_in_rows=source.buckets is not None,
        )

    def make_index_store(
        self,
        source: SourceTable,
        index: IndexKind,
        schema: tuple[DeltaField, ...],
        generation: int = 0,
        *,
        calculated: Sequence[DeltaField] | None = None,
    ) -> IndexStore:
        """The index's ClickHouse tables of a generation, for a source with that `schema`.

        `calculated` are a view's own columns; None: as its table has them, or as Spark finds them.
        """
        check_table_null_rules(source, schema)
        selected = source.select_columns(index, [field.name for field in schema])
        fields = [field for field in schema if field.name in selected]
        endpoint = self.get_endpoint(index)
        make_table = partial(
            IndexShape, source=source, generation=generation, database=endpoint.database
        )
        if index.image_source is not None:
            if calculated is None:
                # Its types and rules may name columns that are still unknown.
                bare_table = make_table(index=replace(index, types={}, nulls=None), fields=fields)
                stored = read_definition(endpoint, bare_table).get(CALCULATED)
                owner = f"Index {source.name}/{index.name}"
                calculated = self._get_stored_columns(owner, index.image_source, schema, stored)
            fields += [*calculated, *IMAGE_FIELDS]
        return IndexStore(endpoint=endpoint, shape=make_table(index=index, fields=fields))

    def _get_stored_columns(
        self, owner: str, image_source: ImageSource, schema: Sequence[DeltaField], stored: Any
    ) -> Sequence[DeltaField]:
        """The view's own columns, as its table was made with them if they are the same."""
        fields = parse_schema(json.dumps({"type": "struct", "fields": stored or []}))
        if tuple(column.name for column in fields) == image_source.calculated:
            return fields
        return self.analyze_view_columns(owner, schema, image_source)

    def analyze_view_columns(
        self, owner: str, schema: Sequence[DeltaField], image_source: ImageSource
    ) -> Sequence[DeltaField]:
        """A view's own columns, as Spark analyzes them. Raises ConfigError; see `analyzed`."""
        if not (image_source.stages or image_source.conditions):
            return ()
        key = tuple(schema), image_source
        if key not in self.analyzed:
            self.analyzed[key] = analyze_expressions(self.spark(), owner, schema, image_source)
        return self.analyzed[key]

    def get_index_data(self, info: ConsumerInfo) -> IndexGenerations | None:
        """What ClickHouse holds of a job's index, even if it is no longer declared.

        None for a shard whose server CLICKHOUSE_URLS no longer names.
        """
        shard = get_shard(info.options)
        if (shard or 0) >= len(self.endpoints):
            return None
        endpoint = self.endpoints[shard or 0]
        view = f"{info.table}_{strip_shard_suffix(info.job, shard)}"
        return IndexGenerations(
            endpoint=endpoint, database=endpoint.resolve_database(info.db), view=view
        )

    def get_endpoint(self, index: Index) -> ClickHouseEndpoint:
        """The ClickHouse server of the index. Raises ConfigError for a wrong number of shards."""
        sharding = index.placement
        if sharding is not None and sharding.shards != len(self.endpoints):
            raise ConfigError(
                f"Index {index.name!r} is spread over {sharding.shards} servers, and "
                f"CLICKHOUSE_URLS names {len(self.endpoints)}; load the declared tables again."
            )
        return self.endpoints[index.shard]
