"""One source table as an iteration reads it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from iscp_dagster.clickhouse.kinds.index_kind import resolve_index
from iscp_dagster.clickhouse.tables.index_store import IndexStore
from iscp_dagster.clickhouse.types.nulls import REFUSE, get_null_rule, is_composite
from iscp_dagster.clickhouse.write.chunks import (
    FEWEST_TASKS,
    MOST_CHUNKS,
    MOST_TASKS,
    ROWS_PER_CHUNK,
    compute_chunks_per_task,
)
from iscp_dagster.delta import feedscan, filescan
from iscp_dagster.delta import images as delta_transitions
from iscp_dagster.delta import reader as delta_reader
from iscp_dagster.delta.checks import CHANGE_COLUMNS, check_source, is_reserved
from iscp_dagster.delta.feed import plan_read
from iscp_dagster.delta.images import ViewRead
from iscp_dagster.delta.log.commit import FeedFile
from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.delta.read_plans import ReadKind, ReadPlan, group_by_plan, select_tenants
from iscp_dagster.delta.spark_errors import wrap_spark_errors
from iscp_dagster.model.batch import BatchRecord, Layout, Phase, Range
from iscp_dagster.model.consumers.kinds import get_consumer_kind, is_index
from iscp_dagster.model.declared.images import ImageSource
from iscp_dagster.model.declared.linking.attach import CHANGES
from iscp_dagster.model.declared.schema import DeltaField
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import ConfigError, IscpError, UnavailableError
from iscp_dagster.model.moment import Moment
from iscp_dagster.model.specs import ConsumerInfo
from iscp_dagster.spark.columns import Mapped, to_spark_schema
from iscp_dagster.spark.session import count_cores
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.executors.rows import pass_through
from iscp_dagster.sync.reading.requests import ReadRequest
from iscp_dagster.sync.reading.views import (
    check_timestamps,
    get_image_source,
    list_image_columns,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL_BYTES = 32 * 1024 * 1024
"""Ranges and tenants with fewer bytes in the lake are read in one task; a task of a larger range
reads about as many."""
MOST_ROWS = 500_000
"""The most changes that one task holds in memory; Spark sorts more."""
FEW_BYTES, FEW_ROWS = 1024 * 1024, 20_000
"""The most changes of a view that the run itself reads from the lake; Spark reads more."""
MOST_SENT = 1_000_000
"""The most bytes of rows that Spark gets with a request; it would keep larger ones."""
NUMBERS = pa.schema([("id", pa.int64())])
"""The input of tasks that read files themselves."""


SNAPSHOT = "snapshot"
"""Marks the layout of a batch that is read as a snapshot."""
PARTITIONS = "partitions"
"""The layout's number of tasks that the changes are spread over."""
MOST_TASKS_OF_IMAGES = 10
"""As each may write MOST_CHUNKS: ClickHouse remembers the tokens of all of them together."""


def can_be_partial(record: BatchRecord) -> bool:
    """Whether a run may have died after it wrote some of the batch to the served table."""
    staged = record.range.initial or bool(record.layout.get(SNAPSHOT, False))
    return record.phase is Phase.BEFORE and not staged


def make_build_name() -> str:
    """A name that no other batch has."""
    return secrets.token_hex(8)


def get_rows_per_chunk(request: ReadRequest) -> int:
    """The rows of each chunk but the last, as recorded with the batch."""
    return int(request.layout.get("rows_per_chunk", ROWS_PER_CHUNK))


def get_max_chunks(request: ReadRequest) -> int:
    """The most chunks of changes of one task."""
    if request.image_source is not None:
        # A tenant's images are in one task, and changes read as a snapshot leave a gap.
        return MOST_CHUNKS
    return compute_chunks_per_task(int(request.layout.get(PARTITIONS, 1)))


def get_build_name(request: ReadRequest) -> str:
    """The batch's name, which is part of its chunks' tokens."""
    return str(request.layout.get("build", ""))


@dataclass(frozen=True)
class MappedFrame:
    """A frame, and the function that turns its batches into rows in the executors."""

    frame: Any
    unpack: Mapped = pass_through
    names: tuple[str, ...] | None = None
    """The frame's columns; None: Spark knows them."""
    is_small: bool = False
    """Whether the run itself takes the rows, since that is less work than a task in Python."""


def _explain_readded(readded: Mapping[str, str], tenants: frozenset[str]) -> str:
    """Why some of the tenants' changes cannot be read; empty: all can."""
    for column in sorted(readded[tenant] for tenant in tenants & readded.keys()):
        return f"column {column!r} was added again, and rows have its earlier values"
    return ""


def _make_task_frame(spark: SparkSession, tasks: int, unpack: Mapped) -> MappedFrame:
    """One number per task, by which the task finds what to read."""
    # With a schema, pyspark does not request it from Spark.
    return MappedFrame(
        spark.range(0, tasks, 1, tasks).to(to_spark_schema(NUMBERS)), unpack, ("id",)
    )


@dataclass(frozen=True)
class SourceReader:
    """Reads the tenants' rows of `source`."""

    deployment: Deployment
    source: SourceTable
    tenants: frozenset[str]
    delta_log: DeltaLog
    consumers: tuple[ConsumerInfo, ...] = ()
    """The consumers of the jobs that take part."""

    def get_schema(self, version: int) -> tuple[DeltaField, ...]:
        """The table's columns as of `version`."""
        return self.delta_log.get_facts(version).fields

    def plan_reads_by_tenant(self, range_: Range) -> Mapping[ReadPlan, frozenset[str]]:
        """Every plan, with its tenants and the reason: changes if the table still has them, else a
        snapshot.

        Raises SourceError, KeyColumnError for a table that cannot be read as declared.
        """
        check_source(
            self.delta_log,
            keys=self.source.keys,
            columns=self._list_read_columns(range_.to.version),
        )
        find_readded = cache(lambda: self._find_readded(range_))
        return group_by_plan(
            self.tenants, lambda tenants: self._plan_read(range_, tenants, find_readded)
        )

    def _plan_read(
        self, range_: Range, tenants: frozenset[str], find_readded: Callable[[], Mapping[str, str]]
    ) -> ReadPlan:
        plan = self._plan_range(range_, tenants)
        if plan.kind is ReadKind.SNAPSHOT:
            return plan
        if reason := self._explain_not_null(range_) or _explain_readded(find_readded(), tenants):
            return ReadPlan(kind=ReadKind.SNAPSHOT, reason=reason)
        after, upto = range_.from_.version, range_.to.version
        if not self.source.keys and not self.delta_log.has_only_adds(after, upto, tenants):
            reason = "rows of an append-only index were changed or deleted"
            return ReadPlan(kind=ReadKind.SNAPSHOT, reason=reason)
        return plan

    def _plan_range(self, range_: Range, tenants: frozenset[str]) -> ReadPlan:
        after = range_.from_
        # Not in an object store: it takes requests, and the look that found the range did it.
        if self.delta_log.files.local and not self.delta_log.has_moment(after):
            reason = f"commit {after.version} of the table is not the one that was last followed"
            return ReadPlan(kind=ReadKind.SNAPSHOT, reason=reason)
        return plan_read(self.delta_log, after.version, range_.to.version, tenants)

    def _list_read_columns(self, version: int) -> list[str]:
        """The columns that some consumer gets and that the latest version still has."""
        latest = {field.name for field in self.delta_log.get_facts().fields}
        names = [field.name for field in self.get_schema(version) if field.name in latest]
        read_columns = {self.source.tenant, *self.source.keys}
        for info in self.consumers:
            # A consumer that needs a missing column fails on its own.
            with suppress(ConfigError):
                read_columns |= set(self.list_columns(info, version))
        return [name for name in names if name in read_columns]

    def _explain_not_null(self, range_: Range) -> str:
        """Why unchanged rows would not be null in an added column; empty: they would.

        It concerns only indexes.
        """
        if self.consumers and not any(map(is_index, self.consumers)):
            return ""
        for column in self._list_added_columns(range_):
            if not all(self._is_null_for_old_rows(info, column) for info in self.consumers):
                return f"column {column.name!r} was added, and ClickHouse has no null for old rows"
        return ""

    def _is_null_for_old_rows(self, info: ConsumerInfo, column: DeltaField) -> bool:
        """Whether an index has null, or its substitute, for rows from before the column."""
        if not is_composite(column.type) or not is_index(info):
            return True
        # An index that cannot be loaded fails on its own.
        with suppress(IscpError):
            index = resolve_index(self.source, info)
            declared = column.name in index.types or column.name in index.needed_columns
            return not declared and get_null_rule(self.source, index, column.name) != REFUSE
        return True

    def _find_readded(self, range_: Range) -> Mapping[str, str]:
        """By tenant, a column added in the range that an index has earlier values of."""
        columns: dict[str, str] = {}
        for info in filter(is_index, self.consumers):
            # An index that does not answer fails on its own, in `find_readd_errors`.
            with suppress(IscpError):
                columns |= self._find_kept_columns(info, range_)
        return columns

    def find_unrepeatable(self, range_: Range, to: Moment) -> frozenset[str]:
        """The tenants whose changes in `range_` can no longer be read, while later ones up to `to`
        can. Raises like `plan_reads_by_tenant`.

        The others can be read as before, or are due for a snapshot anyway.
        """
        plans = group_by_plan(self.tenants, lambda tenants: self._plan_range(range_, tenants))
        unreadable = select_tenants(ReadKind.SNAPSHOT, plans)
        if not unreadable or range_.to.version >= to.version:
            return unreadable
        rest = Range(from_=range_.to, to=to)
        return select_tenants(
            ReadKind.TAIL, replace(self, tenants=unreadable).plan_reads_by_tenant(rest)
        )

    def find_readd_errors(
        self, info: ConsumerInfo, range_: Range
    ) -> Mapping[str, UnavailableError]:
        """Errors of the tenants whose changes add a column that has earlier values in the index.

        The index did not answer when the reading was planned.
        """
        return {
            tenant: UnavailableError(
                f"Index {self.source.name}/{info.job} has values of an earlier column {column!r}; "
                "the next iteration builds it from a snapshot."
            )
            for tenant, column in self._find_kept_columns(info, range_).items()
        }

    def _find_kept_columns(self, info: ConsumerInfo, range_: Range) -> Mapping[str, str]:
        if info.type == CHANGES:
            # Its rows keep the values that they had in an earlier column.
            return {}
        added = [column.name for column in self._list_added_columns(range_)]
        return (
            self.make_index_store(info, range_.to.version).find_filled_columns(added, self.tenants)
            if added
            else {}
        )

    def _list_added_columns(self, range_: Range) -> list[DeltaField]:
        """The columns added within the range, even with the name of an earlier one."""
        earlier = {column.physical for column in self.get_schema(range_.from_.version)}
        return [
            column
            for column in self.get_schema(range_.to.version)
            if column.physical not in earlier
        ]

    def list_columns(self, info: ConsumerInfo, version: int) -> tuple[str, ...]:
        """The columns that a consumer gets, the source's in its order. Raises ConfigError."""
        available = [field.name for field in self.get_schema(version)]
        image_source = get_image_source(self.source, info)
        if image_source is not None:
            return list_image_columns(self.source, info, image_source, available)
        return get_consumer_kind(info.type).list_columns(self.source, info, available)

    def make_index_store(self, info: ConsumerInfo, version: int) -> IndexStore:
        """The ClickHouse tables of an index, for the schema at `version`."""
        index, schema = resolve_index(self.source, info), self.get_schema(version)
        calculated = None
        if index.image_source is not None:
            calculated = self.get_view_columns(info, index.image_source, version)
        store = self.deployment.make_index_store
        return store(self.source, index, schema, info.generation, calculated=calculated)

    def make_index_store_if_any(self, info: ConsumerInfo, version: int) -> IndexStore | None:
        """The same, but None for a consumer that keeps no index."""
        return self.make_index_store(info, version) if is_index(info) else None

    def get_view_columns(
        self, info: ConsumerInfo, image_source: ImageSource, version: int
    ) -> Sequence[DeltaField]:
        """The view's own columns. Raises ConfigError for expressions that cannot be used."""
        owner = f"Job {self.source.name}/{info.job}"
        return self.deployment.analyze_view_columns(owner, self.get_schema(version), image_source)

    def check_images(self, info: ConsumerInfo, request: ReadRequest) -> None:
        """Refuse to read image rows that would have no time, or that cannot be evaluated.

        Raises SourceError and ConfigError.
        """
        image_source = get_image_source(self.source, info)
        if image_source is not None:
            check_timestamps(self.delta_log, request.range, staged=request.is_snapshot)
            self.get_view_columns(info, image_source, request.range.to.version)

    def plan_layout(self, range_: Range) -> Layout:
        """How the changes of a range are cut into chunks; a replay must cut them the same way."""
        layout: dict[str, Any] = {
            "rows_per_chunk": ROWS_PER_CHUNK,
            "build": make_build_name(),
        }
        # A source that cannot be read fails its jobs later, once they are claimed.
        with suppress(IscpError):
            # The latest version first: the table opened for it serves the earlier ones too.
            self.delta_log.get_latest_moment()
            if not range_.initial:
                layout[PARTITIONS] = self._count_new_tasks(range_)
        return layout

    def plan_snapshot_layouts(self, range_: Range, layout: Layout) -> Mapping[str, Layout]:
        """By tenant, the layouts of tenants read as a snapshot; `layout` is the others'.

        They record that a run that dies leaves nothing in the served table.
        """
        # This only matters for setting batches aside; batches with keys never are.
        if range_.initial or self.source.keys:
            return {}
        # A source that cannot be read fails its jobs later, once they are claimed.
        with suppress(IscpError):
            snapshot_layout = {**layout, SNAPSHOT: True}
            return dict.fromkeys(
                select_tenants(ReadKind.SNAPSHOT, self.plan_reads_by_tenant(range_)),
                snapshot_layout,
            )
        return {}

    def make_frame(
        self,
        spark: SparkSession,
        request: ReadRequest,
        columns: Sequence[str],
        *,
        through_spark: bool,
    ) -> MappedFrame:
        """The rows of the range; changes have the system columns, a snapshot does not.

        With `through_spark`, Spark reads even files that the tasks could read themselves.
        """
        plan, range_ = request.plan, request.range
        if request.image_source is not None:
            return self._make_image_frame(
                spark, request, request.image_source, through_spark=through_spark
            )
        if plan.kind is ReadKind.SNAPSHOT:
            return self._make_snapshot_frame(spark, range_.to, columns, through_spark=through_spark)
        selection = self._make_selection(columns, range_.to.version)
        partitions = self._get_recorded_tasks(request)
        feed_scan = self._plan_feed(range_, selection) if partitions == 1 else None
        if feed_scan is not None and not through_spark:
            return _make_task_frame(spark, 1, feed_scan.read_batches)
        return MappedFrame(
            delta_reader.read_changes(
                spark, selection, range_.from_, range_.to, partitions=partitions
            )
        )

    def _make_image_frame(
        self,
        spark: SparkSession,
        request: ReadRequest,
        image_source: ImageSource,
        *,
        through_spark: bool,
    ) -> MappedFrame:
        """The image rows of the range, or the rows with which a history begins."""
        range_, end = request.range, request.range.to
        schema = self.get_schema(end.version)
        read = ViewRead.from_schema(
            self._make_selection((), end.version),
            schema,
            image_source,
            self.deployment.analyze_view_columns(self.source.name, schema, image_source),
        )
        if request.is_snapshot:
            files = self.delta_log.list_data_files(end.version, self.tenants)
            is_small = sum(file.bytes for file in files) < SMALL_BYTES
            frame = delta_transitions.read_base(spark, read, end).drop(*CHANGE_COLUMNS)
            return MappedFrame(
                frame.coalesce(1) if is_small else frame, names=tuple(read.base_columns)
            )
        partitions = min(self._get_recorded_tasks(request), MOST_TASKS_OF_IMAGES)
        rows = (
            None if through_spark or partitions > 1 else self._read_few_rows(range_, read.selection)
        )
        if rows is not None:
            frame = delta_transitions.build_images(spark, read, rows)
            return MappedFrame(frame, names=tuple(read.image_columns), is_small=True)
        frame = delta_transitions.read_images(spark, read, range_.from_, end, partitions=partitions)
        return MappedFrame(frame, names=tuple(read.image_columns))

    def _read_few_rows(
        self, range_: Range, selection: delta_reader.TableSelection
    ) -> pa.Table | None:
        """The feed's rows; None if Spark must read them, or there are too many."""
        feed = self._list_feed_files(range_, FEW_ROWS, FEW_BYTES)
        if not feed:
            return None
        scan = feedscan.plan_rows(
            self.delta_log.location,
            self.delta_log.get_facts(range_.to.version),
            feed,
            selection.output,
            self._make_tenant_filter(),
        )
        return None if scan is None else scan.read_if_small(MOST_SENT)

    def _plan_feed(
        self, range_: Range, selection: delta_reader.TableSelection
    ) -> feedscan.FeedScan | None:
        """How one task reads the changes itself; None if Spark must, or there are too many."""
        feed = None if selection.folded else self._list_feed_files(range_, MOST_ROWS, SMALL_BYTES)
        if feed is None:
            return None
        return feedscan.plan_feed(
            self.delta_log.location,
            self.delta_log.get_facts(range_.to.version),
            feed,
            output=selection.output,
            identity=selection.identity if selection.keys else selection.ordering,
            tenant_filter=self._make_tenant_filter(),
            keyed=bool(selection.keys),
        )

    def _make_tenant_filter(self) -> filescan.TenantFilter | None:
        """Selects the tenants' rows in files that have rows of others; None without tenants."""
        column = self.source.tenant
        return filescan.TenantFilter(column=column, tenants=self.tenants) if column else None

    def _list_feed_files(
        self, range_: Range, rows: int, size: int
    ) -> list[tuple[Moment, FeedFile]] | None:
        """The files of the feed; None if they are incomplete, or hold more than this."""
        after, upto = range_.from_.version, range_.to.version
        volumes = self.delta_log.list_written_volumes(after, upto, self.tenants)
        files = self.delta_log.list_feed_files(after, upto, self.tenants)
        if volumes is None or files is None:
            return None
        # `rows` counts what was written; the files of deleted rows are read as well.
        row_count = sum(volume.rows for _, volume in volumes)
        if row_count > rows or sum(file.weight for _, file in files) > size:
            return None
        return [(self.delta_log.get_moment(version), file) for version, file in files]

    def _make_snapshot_frame(
        self, spark: SparkSession, moment: Moment, columns: Sequence[str], *, through_spark: bool
    ) -> MappedFrame:
        selection = self._make_selection(columns, moment.version)
        files = self.delta_log.list_data_files(moment.version, self.tenants)
        # One task for a small tenant makes one part and builds one graph, instead of merges.
        is_small = sum(file.bytes for file in files) < SMALL_BYTES
        facts = self.delta_log.get_facts(moment.version)
        location, tasks = self.delta_log.location, 1 if is_small else FEWEST_TASKS
        file_scan = filescan.plan_tasks(
            location,
            facts,
            files,
            selection.output,
            tasks,
            tenant_filter=self._make_tenant_filter(),
        )
        if file_scan is not None and not through_spark:
            return _make_task_frame(spark, len(file_scan.tasks), file_scan.read_batches)
        frame = delta_reader.read_snapshot(spark, selection, moment).drop(*CHANGE_COLUMNS)
        return MappedFrame(frame.coalesce(1) if is_small else frame)

    def _make_selection(self, columns: Sequence[str], version: int) -> delta_reader.TableSelection:
        types = {field.name: field.type for field in self.get_schema(version)}
        return delta_reader.TableSelection(
            path=self.deployment.get_table_path(self.source),
            columns=columns,
            keys=self.source.keys,
            tenant_column=self.source.tenant,
            types=types,
            tenants=self.tenants,
            # The same for every consumer, so that a replay for one is cut the same way.
            order=() if self.source.keys else [name for name in types if not is_reserved(name)],
            folded=self._list_folded_keys(),
        )

    def _list_folded_keys(self) -> list[str]:
        """The key columns that some index keeps as UUID, where two texts may be one value."""
        indexes = list(self.source.indexes)
        for info in filter(is_index, self.consumers):
            with suppress(ConfigError):
                indexes.append(resolve_index(self.source, info))
        return [
            key
            for key in self.source.keys
            if any("UUID" in index.types.get(key, "") for index in indexes)
        ]

    def _get_recorded_tasks(self, request: ReadRequest) -> int:
        """The tasks that changes are spread over: a replay's as recorded, wherever it runs.

        A layout without the number, since the log could not be read, leaves it to the size.
        """
        recorded = request.layout.get(PARTITIONS)
        return int(recorded) if recorded else min(self._estimate_tasks(request.range), FEWEST_TASKS)

    def _count_new_tasks(self, range_: Range) -> int:
        """The tasks of a new batch: by its size, up to Spark's cores. Raises UnavailableError."""
        work = self._estimate_tasks(range_)
        if work <= FEWEST_TASKS:
            return work
        with wrap_spark_errors(self.delta_log.location):
            cores = count_cores(self.deployment.spark())
        return max(min(work, cores), FEWEST_TASKS)

    def _estimate_tasks(self, range_: Range) -> int:
        """How many tasks the range has work for."""
        by_tenant = self.delta_log.get_bytes_written(range_.from_.version, range_.to.version)
        size = sum(by_tenant.get(tenant, 0) for tenant in self.tenants)
        if size < SMALL_BYTES:
            return 1
        return max(min(ceil(size / SMALL_BYTES), MOST_TASKS), FEWEST_TASKS)
