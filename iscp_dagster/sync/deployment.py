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

import iscp_dagster.webhooks.tables  # noqa: F401 - a log makes the tables that are known by then
from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.clickhouse.kinds.changes import CALCULATED
from iscp_dagster.clickhouse.kinds.kind import IndexKind
from iscp_dagster.clickhouse.tables.ddl import IndexTable
from iscp_dagster.clickhouse.tables.generations import IndexData
from iscp_dagster.clickhouse.tables.indexes import IndexStore
from iscp_dagster.clickhouse.tables.owned import stored_definition
from iscp_dagster.clickhouse.types.nulls import check_table_nulls
from iscp_dagster.delta.expressions import analyzed
from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.events.ids import DEFAULT_IDS, IdScheme
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.clock import Clock, utc_now
from iscp_dagster.model.declared.images import IMAGE_FIELDS, Transitions
from iscp_dagster.model.declared.schema import DeltaField, parse_schema
from iscp_dagster.model.declared.sharding import base_name, shard_of
from iscp_dagster.model.declared.tables import Index, SourceTable
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.specs import ConsumerInfo
from iscp_dagster.serviceconsumers.services import Services
from iscp_dagster.sync.bounds import DEFAULT_BOUNDS, Bounds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from iscp_dagster.batches.protocol import StateStore


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """The services of one deployment. `spark` connects only at its first call."""

    endpoint: Endpoint
    """The first ClickHouse server; it holds all that is not sharded."""
    log: SqlLog
    spark: Callable[[], SparkSession]
    """The session that all processes share, for the project's own reads."""
    lake: str
    """The root folder of tables without a path; each is at `database/table` below it."""
    states: Callable[[], StateStore] | None = None
    """Opens the store of batch states beside the job rows; None: only the rows keep them."""
    clock: Clock = utc_now
    tolerate_state_mismatch: bool = False
    """Whether to skip a range that lies before the recorded batch instead of stopping the job."""
    private_spark: Callable[[], SparkSession] | None = None
    """Makes a new session for user code; None: no user code runs here."""
    event_ids: IdScheme = DEFAULT_IDS
    """How the ids of triggers' events are made."""
    bounds: Bounds = DEFAULT_BOUNDS
    """How much one iteration takes on, unless its jobs set bounds."""
    analyzed: dict[Any, Sequence[DeltaField]] = field(
        default_factory=dict, compare=False, repr=False
    )
    """What Spark said of views over a schema, since each index and trigger of a scan asks again."""
    services: Callable[[], Services] | None = None
    """Opens the runtime that invokes service consumers' handlers; None: there is none."""
    shards: tuple[Endpoint, ...] = ()
    """All ClickHouse servers, `endpoint` first; empty: `endpoint` is the only one."""

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The ClickHouse servers by shard."""
        return self.shards or (self.endpoint,)

    @contextmanager
    def users_session(self) -> Iterator[SparkSession]:
        """A private session for the block. Raises ConfigError if none can be made."""
        if self.private_spark is None:
            raise ConfigError("This deployment cannot run user code: give it `private_spark`.")
        session = self.private_spark()
        try:
            yield session
        finally:
            session.stop()

    def joining_spark(self) -> Deployment:
        """The same, but already joining its Spark session, for the first call of `spark`.

        That call raises what joining raised; if it never comes, nobody waits.
        """
        joined: Future[SparkSession] = Future()

        def join() -> None:
            try:
                joined.set_result(self.spark())
            except BaseException as error:  # noqa: BLE001 - raised where the session is asked for
                joined.set_exception(error)

        Thread(target=join, name="joining Spark", daemon=True).start()
        first = [joined]
        return replace(self, spark=lambda: first.pop().result() if first else self.spark())

    def path(self, source: SourceTable) -> str:
        """The path of the Delta table."""
        return source.path or f"{self.lake.rstrip('/')}/{source.database}/{source.table}"

    def delta_log(self, source: SourceTable) -> DeltaLog:
        """The Delta log of the table, read without Spark."""
        return DeltaLog(self.path(source), source.tenant)

    def store(
        self,
        source: SourceTable,
        index: IndexKind,
        schema: tuple[DeltaField, ...],
        generation: int = 0,
        *,
        calculated: Sequence[DeltaField] | None = None,
    ) -> IndexStore:
        """The index's ClickHouse tables of a generation, for a source with that `schema`.

        `calculated` are a view's own columns; None: as its table has them, or else as Spark says.
        """
        check_table_nulls(source, schema)
        wanted = source.columns_of(index, [field.name for field in schema])
        fields = [field for field in schema if field.name in wanted]
        endpoint = self.endpoint_of(index)
        made = partial(IndexTable, source=source, generation=generation, database=endpoint.database)
        if index.transitions is not None:
            if calculated is None:
                # Its types and rules may name columns that are not known yet.
                bare = made(index=replace(index, types={}, nulls=None), fields=fields)
                held = stored_definition(endpoint, bare).get(CALCULATED)
                owner = f"Index {source.name}/{index.name}"
                calculated = self._calculated(owner, index.transitions, schema, held)
            fields += [*calculated, *IMAGE_FIELDS]
        return IndexStore(endpoint=endpoint, shape=made(index=index, fields=fields))

    def _calculated(
        self, owner: str, transitions: Transitions, schema: Sequence[DeltaField], held: Any
    ) -> Sequence[DeltaField]:
        """The view's own columns, as its table was made with if they are still the same."""
        fields = parse_schema(json.dumps({"type": "struct", "fields": held or []}))
        if tuple(each.name for each in fields) == transitions.calculated:
            return fields
        return self.calculated(owner, schema, transitions)

    def calculated(
        self, owner: str, schema: Sequence[DeltaField], transitions: Transitions
    ) -> Sequence[DeltaField]:
        """A view's own columns, as Spark analyzes them. Raises ConfigError; see `analyzed`."""
        if not (transitions.stages or transitions.conditions):
            return ()
        asked = tuple(schema), transitions
        if asked not in self.analyzed:
            self.analyzed[asked] = analyzed(self.spark(), owner, schema, transitions)
        return self.analyzed[asked]

    def data(self, info: ConsumerInfo) -> IndexData | None:
        """What ClickHouse holds of a job's index, even if it is no longer declared.

        None for a shard whose server CLICKHOUSE_URLS no longer names.
        """
        shard = shard_of(info.options)
        if (shard or 0) >= len(self.endpoints):
            return None
        endpoint = self.endpoints[shard or 0]
        view = f"{info.table}_{base_name(info.job, shard)}"
        return IndexData(endpoint=endpoint, database=endpoint.holds(info.db), view=view)

    def endpoint_of(self, index: Index) -> Endpoint:
        """The ClickHouse server of the index. Raises ConfigError for a wrong number of shards."""
        held = index.placement
        if held is not None and held.shards != len(self.endpoints):
            raise ConfigError(
                f"Index {index.name!r} is spread over {held.shards} servers, and CLICKHOUSE_URLS "
                f"names {len(self.endpoints)}; load the declared tables again."
            )
        return self.endpoints[index.shard]
