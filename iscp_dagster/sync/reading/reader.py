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

from iscp_dagster.clickhouse.kinds.indexes import index_of
from iscp_dagster.clickhouse.tables.indexes import IndexStore
from iscp_dagster.clickhouse.types.nulls import REFUSE, has_parts, null_rule
from iscp_dagster.clickhouse.write.chunks import (
    FEWEST_TASKS,
    MOST_CHUNKS,
    MOST_TASKS,
    ROWS_PER_CHUNK,
    chunks_per_task,
)
from iscp_dagster.delta import feedscan, filescan
from iscp_dagster.delta import reader as delta_reader
from iscp_dagster.delta import transitions as delta_transitions
from iscp_dagster.delta.checks import CHANGE_COLUMNS, check_source, is_reserved
from iscp_dagster.delta.failures import reading
from iscp_dagster.delta.feed import read_range
from iscp_dagster.delta.log.commit import FeedFile
from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.delta.plans import ReadKind, ReadPlan, by_plan, read_as
from iscp_dagster.delta.transitions import ViewRead
from iscp_dagster.model.batch import BatchRecord, Layout, Phase, Range
from iscp_dagster.model.consumers.kinds import consumer_kind, is_index
from iscp_dagster.model.declared.images import Transitions
from iscp_dagster.model.declared.schema import DeltaField
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.declared.together.attach import CHANGES
from iscp_dagster.model.errors import ConfigError, IscpError, UnavailableError
from iscp_dagster.model.moment import Moment
from iscp_dagster.model.specs import ConsumerInfo
from iscp_dagster.spark.columns import Mapped, spark_schema
from iscp_dagster.spark.session import count_cores
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.executors.rows import as_they_are
from iscp_dagster.sync.reading.readings import Reading
from iscp_dagster.sync.reading.transitions import (
    check_timestamps,
    columns_of_images,
    transitions_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL_BYTES = 32 * 1024 * 1024
"""Ranges and tenants of fewer bytes in the lake than this are read in one task; a task of a larger
range reads about as many."""
MOST_ROWS = 500_000
"""The most changes that one task holds in memory; Spark sorts more."""
FEW_BYTES, FEW_ROWS = 1024 * 1024, 20_000
"""Changes of a view that the run itself reads from the lake; more are read by Spark."""
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


def may_be_partial(record: BatchRecord) -> bool:
    """Whether a run may have died after it wrote some of the batch to the served table."""
    staged = record.range.initial or bool(record.layout.get(SNAPSHOT, False))
    return record.phase is Phase.BEFORE and not staged


def new_build() -> str:
    """A name that no other batch has."""
    return secrets.token_hex(8)


def rows_per_chunk(reading: Reading) -> int:
    """The rows of each chunk but the last, as recorded with the batch."""
    return int(reading.layout.get("rows_per_chunk", ROWS_PER_CHUNK))


def most_chunks(reading: Reading) -> int:
    """The most chunks of changes of one task."""
    if reading.transitions is not None:
        # A tenant's images are in one task, and what is not read as changes is a gap.
        return MOST_CHUNKS
    return chunks_per_task(int(reading.layout.get(PARTITIONS, 1)))


def build_of(reading: Reading) -> str:
    """The batch's name, which is part of its chunks' tokens."""
    return str(reading.layout.get("build", ""))


@dataclass(frozen=True)
class MappedFrame:
    """A frame, and the function that turns its batches into rows in the executors."""

    frame: Any
    unpack: Mapped = as_they_are
    names: tuple[str, ...] | None = None
    """The frame's columns; None: Spark knows them."""
    few: bool = False
    """Whether the run itself takes the rows, since that is less work than a task in Python."""


def _earlier(given_again: Mapping[str, str], tenants: frozenset[str]) -> str:
    """Why some of the tenants cannot be read as changes; empty: all can."""
    for column in sorted(given_again[tenant] for tenant in tenants & given_again.keys()):
        return f"column {column!r} was added again, and rows have its earlier values"
    return ""


def _numbers(spark: SparkSession, tasks: int, unpack: Mapped) -> MappedFrame:
    """One number per task, which tells the task what to read."""
    # With its schema given, pyspark does not ask Spark for it.
    return MappedFrame(spark.range(0, tasks, 1, tasks).to(spark_schema(NUMBERS)), unpack, ("id",))


@dataclass(frozen=True)
class Reader:
    """Reads the tenants' rows of `source`."""

    deployment: Deployment
    source: SourceTable
    tenants: frozenset[str]
    delta_log: DeltaLog
    consumers: tuple[ConsumerInfo, ...] = ()
    """The consumers of the jobs that take part."""

    def schema(self, version: int) -> tuple[DeltaField, ...]:
        """The table's columns as of `version`."""
        return self.delta_log.facts(version).fields

    def plans(self, range_: Range) -> Mapping[ReadPlan, frozenset[str]]:
        """Every plan, with its tenants: changes where the table still holds theirs, else a
        snapshot; says why.

        Raises SourceError, KeyColumnError for a table that cannot be read as declared.
        """
        check_source(
            self.delta_log, keys=self.source.keys, columns=self._carried(range_.to.version)
        )
        given_again = cache(lambda: self._given_again(range_))
        return by_plan(self.tenants, lambda tenants: self._plan(range_, tenants, given_again))

    def _plan(
        self, range_: Range, tenants: frozenset[str], given_again: Callable[[], Mapping[str, str]]
    ) -> ReadPlan:
        plan = self._range_plan(range_, tenants)
        if plan.kind is ReadKind.SNAPSHOT:
            return plan
        if reason := self._filled_by_none(range_) or _earlier(given_again(), tenants):
            return ReadPlan(kind=ReadKind.SNAPSHOT, reason=reason)
        after, upto = range_.from_.version, range_.to.version
        if not self.source.keys and not self.delta_log.only_adds(after, upto, tenants):
            reason = "rows of an append-only index were changed or deleted"
            return ReadPlan(kind=ReadKind.SNAPSHOT, reason=reason)
        return plan

    def _range_plan(self, range_: Range, tenants: frozenset[str]) -> ReadPlan:
        after = range_.from_
        # Not in an object store: it takes requests, and the look that found the range did it.
        if self.delta_log.files.local and not self.delta_log.has(after):
            reason = f"commit {after.version} of the table is not the one that was last followed"
            return ReadPlan(kind=ReadKind.SNAPSHOT, reason=reason)
        return read_range(self.delta_log, after.version, range_.to.version, tenants)

    def _carried(self, version: int) -> list[str]:
        """The columns that some consumer gets, of those that the latest version still has."""
        latest = {field.name for field in self.delta_log.facts().fields}
        names = [field.name for field in self.schema(version) if field.name in latest]
        wanted = {self.source.tenant, *self.source.keys}
        for info in self.consumers:
            # A consumer that asks for a missing column fails on its own.
            with suppress(ConfigError):
                wanted |= set(self.columns(info, version))
        return [name for name in names if name in wanted]

    def _filled_by_none(self, range_: Range) -> str:
        """Why unchanged rows would not be null in an added column; empty: they would.

        It concerns indexes alone.
        """
        if self.consumers and not any(map(is_index, self.consumers)):
            return ""
        for each in self._gained(range_):
            if not all(self._adds_nulls(info, each) for info in self.consumers):
                return f"column {each.name!r} was added, and ClickHouse has no null for old rows"
        return ""

    def _adds_nulls(self, info: ConsumerInfo, added: DeltaField) -> bool:
        """Whether rows from before the column was added have in an index what stands for null."""
        if not has_parts(added.type) or not is_index(info):
            return True
        # An index that cannot be had fails on its own.
        with suppress(IscpError):
            index = index_of(self.source, info)
            own = added.name in index.types or added.name in index.needed_columns
            return not own and null_rule(self.source, index, added.name) != REFUSE
        return True

    def _given_again(self, range_: Range) -> Mapping[str, str]:
        """By tenant, a column added in the range that an index has earlier values of."""
        found: dict[str, str] = {}
        for info in filter(is_index, self.consumers):
            # An index that does not answer fails on its own, in `refused_kept`.
            with suppress(IscpError):
                found |= self._kept(info, range_)
        return found

    def unrepeatable(self, range_: Range, to: Moment) -> frozenset[str]:
        """The tenants whose changes in `range_` can no longer be read, while later ones up to `to`
        can. Raises as `plans` does.

        The others can be read as before, or are due for a snapshot anyway.
        """
        plans = by_plan(self.tenants, lambda tenants: self._range_plan(range_, tenants))
        gone = read_as(ReadKind.SNAPSHOT, plans)
        if not gone or range_.to.version >= to.version:
            return gone
        rest = Range(from_=range_.to, to=to)
        return read_as(ReadKind.TAIL, replace(self, tenants=gone).plans(rest))

    def refused_kept(self, info: ConsumerInfo, range_: Range) -> Mapping[str, UnavailableError]:
        """The tenants whose changes add a column in which the index has their earlier values.

        The index did not answer when the reading was planned.
        """
        return {
            tenant: UnavailableError(
                f"Index {self.source.name}/{info.job} has values of an earlier column {kept!r}; "
                "the next iteration builds it from a snapshot."
            )
            for tenant, kept in self._kept(info, range_).items()
        }

    def _kept(self, info: ConsumerInfo, range_: Range) -> Mapping[str, str]:
        if info.type == CHANGES:
            # What its rows had in an earlier column is what they had.
            return {}
        gained = [each.name for each in self._gained(range_)]
        return self.store(info, range_.to.version).kept(gained, self.tenants) if gained else {}

    def _gained(self, range_: Range) -> list[DeltaField]:
        """The columns added within the range, also those with the name of an earlier one."""
        before = {each.physical for each in self.schema(range_.from_.version)}
        return [f for f in self.schema(range_.to.version) if f.physical not in before]

    def columns(self, info: ConsumerInfo, version: int) -> tuple[str, ...]:
        """The columns that a consumer gets, the source's in its order. Raises ConfigError."""
        available = [field.name for field in self.schema(version)]
        transitions = transitions_of(self.source, info)
        if transitions is not None:
            return columns_of_images(self.source, info, transitions, available)
        return consumer_kind(info.type).columns(self.source, info, available)

    def store(self, info: ConsumerInfo, version: int) -> IndexStore:
        """The ClickHouse tables of an index, for the schema at `version`."""
        index, schema = index_of(self.source, info), self.schema(version)
        calculated = None
        if index.transitions is not None:
            calculated = self.calculated(info, index.transitions, version)
        store = self.deployment.store
        return store(self.source, index, schema, info.generation, calculated=calculated)

    def index_store(self, info: ConsumerInfo, version: int) -> IndexStore | None:
        """The same, but None for a consumer that keeps no index."""
        return self.store(info, version) if is_index(info) else None

    def calculated(
        self, info: ConsumerInfo, transitions: Transitions, version: int
    ) -> Sequence[DeltaField]:
        """The view's own columns. Raises ConfigError for expressions that cannot be used."""
        owner = f"Job {self.source.name}/{info.job}"
        return self.deployment.calculated(owner, self.schema(version), transitions)

    def check_images(self, info: ConsumerInfo, wanted: Reading) -> None:
        """Refuse to read image rows that would have no time, or of what cannot be evaluated.

        Raises SourceError and ConfigError.
        """
        transitions = transitions_of(self.source, info)
        if transitions is not None:
            check_timestamps(self.delta_log, wanted.range, staged=wanted.staged)
            self.calculated(info, transitions, wanted.range.to.version)

    def layout(self, range_: Range) -> Layout:
        """How the changes of a range are cut into chunks; a replay must cut them the same way."""
        layout: dict[str, Any] = {
            "rows_per_chunk": ROWS_PER_CHUNK,
            "build": new_build(),
        }
        # A source that cannot be read fails its jobs later, once they are claimed.
        with suppress(IscpError):
            # The latest version first: the table opened for it serves the earlier ones too.
            self.delta_log.latest()
            if not range_.initial:
                layout[PARTITIONS] = self._new_tasks(range_)
        return layout

    def snapshot_layouts(self, range_: Range, layout: Layout) -> Mapping[str, Layout]:
        """By tenant, the layouts of those that are read as a snapshot; `layout` is the others'.

        They record that a run that dies leaves nothing in the served table.
        """
        # This only matters for setting batches aside; batches with keys never are.
        if range_.initial or self.source.keys:
            return {}
        # A source that cannot be read fails its jobs later, once they are claimed.
        with suppress(IscpError):
            whole = {**layout, SNAPSHOT: True}
            return dict.fromkeys(read_as(ReadKind.SNAPSHOT, self.plans(range_)), whole)
        return {}

    def rows(
        self, spark: SparkSession, wanted: Reading, columns: Sequence[str], *, through_spark: bool
    ) -> MappedFrame:
        """The rows of the range; changes with the system columns, a snapshot without.

        With `through_spark`, Spark reads even files that the tasks could read themselves.
        """
        plan, range_ = wanted.plan, wanted.range
        if wanted.transitions is not None:
            return self._images(spark, wanted, wanted.transitions, through_spark=through_spark)
        if plan.kind is ReadKind.SNAPSHOT:
            return self._snapshot(spark, range_.to, columns, through_spark=through_spark)
        selection = self._selection(columns, range_.to.version)
        partitions = self._recorded_tasks(wanted)
        direct = self._feed(range_, selection) if partitions == 1 else None
        if direct is not None and not through_spark:
            return _numbers(spark, 1, direct.rows)
        return MappedFrame(
            delta_reader.changes(spark, selection, range_.from_, range_.to, partitions=partitions)
        )

    def _images(
        self,
        spark: SparkSession,
        wanted: Reading,
        transitions: Transitions,
        *,
        through_spark: bool,
    ) -> MappedFrame:
        """The image rows of the range, or the rows with which a history begins."""
        range_, at = wanted.range, wanted.range.to
        schema = self.schema(at.version)
        read = ViewRead.of(
            self._selection((), at.version),
            schema,
            transitions,
            self.deployment.calculated(self.source.name, schema, transitions),
        )
        if wanted.staged:
            files = self.delta_log.data_files(at.version, self.tenants)
            small = sum(each.bytes for each in files) < SMALL_BYTES
            frame = delta_transitions.base(spark, read, at).drop(*CHANGE_COLUMNS)
            return MappedFrame(frame.coalesce(1) if small else frame, names=tuple(read.based))
        partitions = min(self._recorded_tasks(wanted), MOST_TASKS_OF_IMAGES)
        rows = None if through_spark or partitions > 1 else self._few(range_, read.selection)
        if rows is not None:
            frame = delta_transitions.images_of(spark, read, rows)
            return MappedFrame(frame, names=tuple(read.imaged), few=True)
        frame = delta_transitions.images(spark, read, range_.from_, at, partitions=partitions)
        return MappedFrame(frame, names=tuple(read.imaged))

    def _few(self, range_: Range, selection: delta_reader.Selection) -> pa.Table | None:
        """The feed's rows; None where Spark must read them, or there are too many."""
        feed = self._feed_files(range_, FEW_ROWS, FEW_BYTES)
        if not feed:
            return None
        found = feedscan.plan_rows(
            self.delta_log.location,
            self.delta_log.facts(range_.to.version),
            feed,
            selection.output,
            selection.tenant_column,
        )
        return None if found is None else found.few(MOST_SENT)

    def _feed(self, range_: Range, selection: delta_reader.Selection) -> feedscan.FeedScan | None:
        """How one task reads the changes itself; None where Spark must, or there are too many."""
        feed = None if selection.folded else self._feed_files(range_, MOST_ROWS, SMALL_BYTES)
        if feed is None:
            return None
        return feedscan.plan_feed(
            self.delta_log.location,
            self.delta_log.facts(range_.to.version),
            feed,
            output=selection.output,
            identity=selection.identity if selection.keys else selection.ordering,
            tenant=selection.tenant_column,
            keyed=bool(selection.keys),
        )

    def _feed_files(
        self, range_: Range, rows: int, size: int
    ) -> list[tuple[Moment, FeedFile]] | None:
        """The files of the feed; None where they do not make it up, or hold more than this."""
        after, upto = range_.from_.version, range_.to.version
        written = self.delta_log.written(after, upto, self.tenants)
        files = self.delta_log.feed_files(after, upto, self.tenants)
        if written is None or files is None:
            return None
        # `rows` counts what was written; the files of deleted rows are read as well.
        changed = sum(volume.rows for _, volume in written)
        if changed > rows or sum(file.weight for _, file in files) > size:
            return None
        return [(self.delta_log.moment(version), file) for version, file in files]

    def _snapshot(
        self, spark: SparkSession, at: Moment, columns: Sequence[str], *, through_spark: bool
    ) -> MappedFrame:
        selection = self._selection(columns, at.version)
        files = self.delta_log.data_files(at.version, self.tenants)
        # One task for a small tenant makes one part and builds one graph, instead of merges.
        small = sum(each.bytes for each in files) < SMALL_BYTES
        facts = self.delta_log.facts(at.version)
        location, tasks = self.delta_log.location, 1 if small else FEWEST_TASKS
        direct = filescan.plan_tasks(location, facts, files, selection.output, tasks)
        if direct is not None and not through_spark:
            return _numbers(spark, len(direct.tasks), direct.rows)
        frame = delta_reader.snapshot(spark, selection, at).drop(*CHANGE_COLUMNS)
        return MappedFrame(frame.coalesce(1) if small else frame)

    def _selection(self, columns: Sequence[str], version: int) -> delta_reader.Selection:
        types = {field.name: field.type for field in self.schema(version)}
        return delta_reader.Selection(
            path=self.deployment.path(self.source),
            columns=columns,
            keys=self.source.keys,
            tenant_column=self.source.tenant,
            types=types,
            tenants=self.tenants,
            # The same for every consumer, so that a replay for one is cut the same way.
            order=() if self.source.keys else [n for n in types if not is_reserved(n)],
            folded=self._folded(),
        )

    def _folded(self) -> list[str]:
        """The key columns that some index keeps as UUID, where two texts may be one value."""
        kept = list(self.source.indexes)
        for info in filter(is_index, self.consumers):
            with suppress(ConfigError):
                kept.append(index_of(self.source, info))
        return [
            n for n in self.source.keys if any("UUID" in each.types.get(n, "") for each in kept)
        ]

    def _recorded_tasks(self, wanted: Reading) -> int:
        """The tasks that changes are spread over: a replay's as recorded, wherever it runs.

        A layout that does not say, as of a log that could not be read, leaves it to the size alone.
        """
        recorded = wanted.layout.get(PARTITIONS)
        return int(recorded) if recorded else min(self._wanted_tasks(wanted.range), FEWEST_TASKS)

    def _new_tasks(self, range_: Range) -> int:
        """The tasks of a new batch: by its size, up to Spark's cores. Raises UnavailableError."""
        work = self._wanted_tasks(range_)
        if work <= FEWEST_TASKS:
            return work
        with reading(self.delta_log.location):
            cores = count_cores(self.deployment.spark())
        return max(min(work, cores), FEWEST_TASKS)

    def _wanted_tasks(self, range_: Range) -> int:
        """The tasks that the range has work for."""
        by_tenant = self.delta_log.bytes_written(range_.from_.version, range_.to.version)
        written = sum(by_tenant.get(tenant, 0) for tenant in self.tenants)
        if written < SMALL_BYTES:
            return 1
        return max(min(ceil(written / SMALL_BYTES), MOST_TASKS), FEWEST_TASKS)
