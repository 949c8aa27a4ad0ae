"""A table's Parquet files, read with Arrow inside Spark's Python workers.

Spark plans and runs the tasks; each reads its files itself, because the JVM hands rows to Python
one at a time, which costs more than the rest of a snapshot (ADR 8). Used only where that gives the
same rows as Spark's own reader: see `can_arrow_read`. Imports neither pyspark nor deltalake.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from iscp_dagster.delta import arrow
from iscp_dagster.delta.checks import TENANT_TYPES
from iscp_dagster.delta.log.facts import (
    VECTORS,
    DataFile,
    RowNumbers,
    TableFacts,
    UnreadableValue,
    is_outside_table,
)
from iscp_dagster.delta.log.files import STORES, get_store_settings, open_store, to_local_path
from iscp_dagster.delta.log.storage_errors import STORE_FAILED, translate_data_error
from iscp_dagster.model.declared.schema import Array, DeltaField, DeltaType, Map, Struct
from iscp_dagster.model.errors import FeedGoneError, IscpError, SourceError

if TYPE_CHECKING:
    import pyarrow as pa

BYTES_PER_TASK = 64 * 1024 * 1024
BYTES_AT_ONCE = 4 * 1024 * 1024
"""Files up to this size are read in one request instead of several: it takes about as long."""
ROWS_PER_BATCH = 65_536
SCANNING = MappingProxyType(
    {"batch_size": ROWS_PER_BATCH, "batch_readahead": 2, "use_threads": False}
)
PLAIN_FEATURES = frozenset({"timestampNtz", "columnMapping", VECTORS})
MAPPING = "delta.columnMapping.mode"
LEGACY = {b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"}
WRITER, WRITTEN_BY = b"org.apache.spark.version", re.compile(rb"(\d+)\.(\d+)")
NEW_CALENDAR, NEW_INT96 = (3, 0), (3, 1)
"""The first Spark that marks files in the old calendar, and the first that does so for INT96."""


class NotPlainError(IscpError):
    """A file that Arrow would read differently from Spark; it is then read through Spark."""

    code = 1_210


@dataclass(frozen=True, kw_only=True)
class Slice:
    """Every `count`-th row group of a file, from the one at `number` on (from 0)."""

    path: str
    partition: Mapping[str, Any]
    file_bytes: int = 0
    """Size of the whole file; 0 if unknown."""
    number: int = 0
    count: int = 1
    deleted: RowNumbers | None = field(default=None, repr=False)
    """The rows in the file's deletion vector; None without one."""


@dataclass(frozen=True, kw_only=True)
class TenantFilter:
    """Selects the rows of these tenants from files that have rows of others."""

    column: str
    tenants: frozenset[str]

    def select_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa
        import pyarrow.compute as pc

        names = pc.cast(rows[self.column], pa.string())
        return rows.filter(pc.is_in(names, value_set=self._names))

    @cached_property
    def _names(self) -> pa.Array:
        import pyarrow as pa

        return pa.array(sorted(self.tenants), pa.string())


@dataclass(frozen=True, kw_only=True)
class ParquetReader:
    """The `fields` of the Parquet files of the table at `location`, a folder or a store's URL."""

    location: str
    fields: tuple[DeltaField, ...]
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The store's options, as deltalake takes them."""
    tenant_filter: TenantFilter | None = None
    """None: all rows."""

    def build_schema(self) -> pa.Schema:
        """The schema of the batches read."""
        import pyarrow as pa

        return pa.schema([(field.name, arrow.to_arrow_type(field.type)) for field in self.fields])

    @cached_property
    def scans_directly(self) -> bool:
        """Whether Arrow's own scanner can build the columns from a file's."""
        return all(arrow.is_flat(f.type) and _get_stored_name(f) == f.name for f in self.fields)

    def read(self, slice_: Slice) -> Iterator[pa.RecordBatch]:
        """Raises FeedGoneError for a file that VACUUM removed, SourceError for a broken one,
        UnreadableError if it cannot be read now, UnavailableError if its store is down,
        NotPlainError if Spark would read it differently.
        """
        import pyarrow as pa

        plain = self.scans_directly and slice_.deleted is None
        try:
            for piece in _make_fragments(*self._open_slice(slice_), slice_, fill_partition=plain):
                self._check_reads_alike(piece, slice_)
                rows = self._scan_plain(piece) if plain else self._scan_by_column(piece, slice_)
                yield from (
                    rows
                    if self.tenant_filter is None
                    else map(self.tenant_filter.select_rows, rows)
                )
        except FileNotFoundError as error:
            raise FeedGoneError(
                f"{self.location}: {slice_.path} is gone, so this version can no longer be "
                "read; the next iteration reads a newer one. If the latest version lacks it too, "
                "put the file back, or RESTORE the table to a version before it."
            ) from error
        except (pa.ArrowException, OSError) as error:
            numbered = isinstance(error, OSError) and error.errno is not None
            if numbered or STORE_FAILED.search(str(error)):
                # An error of the system or the store: for a broken file Arrow gives no errno.
                raise translate_data_error(f"{self.location}/{slice_.path}", error) from error
            raise SourceError(
                f"{self.location}: {slice_.path} cannot be read: {error}. Restore the file, or "
                "RESTORE the table to a version without it."
            ) from error

    def _open_slice(self, slice_: Slice) -> tuple[Any, Any]:
        """The file and its file system, for Arrow; for a small file in a store, its contents."""
        import pyarrow as pa
        from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

        folder, name = to_local_path(self.location), unquote(slice_.path)
        if folder is not None:
            return name, SubTreeFileSystem(folder, LocalFileSystem())
        store = open_store(
            self.location, self.options, {name: slice_.file_bytes} if slice_.file_bytes else {}
        )
        if slice_.count > 1 or not 0 < slice_.file_bytes <= BYTES_AT_ONCE:
            return name, store
        with store.open_input_file(name) as file:
            return pa.BufferReader(file.read()), None

    def _scan_plain(self, piece: Any) -> Iterator[pa.RecordBatch]:
        schema = self.build_schema()
        yield from piece.scanner(schema=schema, columns=schema.names, **SCANNING).to_batches()

    def _scan_by_column(self, piece: Any, slice_: Slice) -> Iterator[pa.RecordBatch]:
        """The rows converted column by column, without those in the deletion vector."""
        import numpy as np
        import pyarrow as pa

        schema, stored_names = self.build_schema(), set(piece.physical_schema.names)
        names = [_get_stored_name(f) for f in self.fields if _get_stored_name(f) in stored_names]
        deleted = np.frombuffer(slice_.deleted or b"", dtype=np.int64)
        begin = 0
        for batch in piece.scanner(columns=names, **SCANNING).to_batches():
            count = batch.num_rows
            columns = [self._build_column(batch, f, slice_) for f in self.fields]
            rows = pa.record_batch(columns, schema=schema) if columns else batch
            positions = deleted[(deleted >= begin) & (deleted < begin + count)] - begin
            begin += count
            if len(positions):
                mask = np.ones(count, dtype=bool)
                mask[positions] = False
                rows = rows.filter(pa.array(mask))
            yield rows

    def _build_column(self, batch: pa.RecordBatch, field: DeltaField, slice_: Slice) -> pa.Array:
        import pyarrow as pa

        if field.name in slice_.partition:
            value = pa.scalar(slice_.partition[field.name], arrow.to_arrow_type(field.type))
            return pa.repeat(value, batch.num_rows)
        if _get_stored_name(field) in batch.schema.names:
            return arrow.cast_to_type(batch.column(_get_stored_name(field)), field.type)
        return pa.nulls(batch.num_rows, arrow.to_arrow_type(field.type))

    def _check_reads_alike(self, piece: Any, slice_: Slice) -> None:
        """Raises NotPlainError for a file that Spark would read differently.

        Spark finds a column in any case, where Arrow would read nulls; and it corrects dates and
        times in the old calendar, which Spark 2 wrote.
        """
        stored = piece.physical_schema
        difference = _find_difference(self.fields, stored)
        if difference:
            raise NotPlainError(f"{self.location}: {slice_.path} {difference}.")
        time_columns = [
            _get_stored_name(f)
            for f in self.fields
            if arrow.has_times(f.type) and _get_stored_name(f) in stored.names
        ]
        if time_columns and _has_old_calendar(piece.metadata, time_columns):
            raise NotPlainError(f"{self.location}: {slice_.path} holds times of the old calendar.")


@dataclass(frozen=True, kw_only=True)
class FileScan:
    """The slices that each task of a snapshot reads; picklable."""

    reader: ParquetReader
    tasks: tuple[tuple[Slice, ...], ...]

    def read_batches(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: batches of task numbers in column `id` in, batches of rows out."""
        for batch in numbers:
            for number in batch["id"].to_pylist():
                for slice_ in self.tasks[number]:
                    yield from self.reader.read(slice_)


def plan_tasks(
    location: str,
    facts: TableFacts,
    files: Sequence[DataFile],
    columns: Sequence[str],
    least: int,
    *,
    tenant_filter: TenantFilter | None = None,
) -> FileScan | None:
    """The scan of `files` in at least `least` tasks; None where Spark must read the table.

    `files` are those of the tenants, if the table is partitioned by them.
    """
    reader = make_parquet_reader(location, facts, columns, tenant_filter)
    if reader is None or any(is_outside_table(file.path) for file in files):
        return None
    names = set(facts.metadata.partition_columns).intersection(columns)
    if any(
        isinstance(file.partition.get(name), UnreadableValue) for name in names for file in files
    ):
        return None
    if VECTORS in facts.reader_features and any(file.deleted is None for file in files):
        return None
    return FileScan(reader=reader, tasks=_deal_slices(_slice_files(files, columns), least))


def make_parquet_reader(
    location: str,
    facts: TableFacts,
    columns: Sequence[str],
    tenant_filter: TenantFilter | None = None,
) -> ParquetReader | None:
    """How to read the table's files; None where Spark must, also for stores not in `STORES`.

    The filter is left out where partition values name the tenant: then files are selected.
    """
    folder, scheme = to_local_path(location), location.partition("://")[0]
    fields = tuple(next(f for f in facts.fields if f.name == name) for name in columns)
    if not (folder or scheme in STORES) or not can_arrow_read(facts, fields):
        return None
    options = {} if folder else get_store_settings(os.environ)
    if tenant_filter and tenant_filter.column in facts.metadata.partition_columns:
        tenant_filter = None
    return ParquetReader(
        location=folder or location, fields=fields, options=options, tenant_filter=tenant_filter
    )


def can_arrow_read(facts: TableFacts, fields: Sequence[DeltaField]) -> bool:
    """Whether Arrow can build the rows from the files: there are no widened columns, variants or
    texts that Spark pads, and columns are mapped by name if at all.
    """
    partitioned = set(facts.metadata.partition_columns)
    return (
        facts.reader_features <= PLAIN_FEATURES
        and facts.metadata.configuration.get(MAPPING, "none") in {"none", "name"}
        and all(arrow.is_known(f.type) and not f.padded for f in fields)
        and all(str(f.type) in TENANT_TYPES for f in fields if f.name in partitioned)
    )


def _slice_files(files: Sequence[DataFile], columns: Sequence[str]) -> Iterator[tuple[int, Slice]]:
    """The files, large ones in several slices, with the bytes of each slice."""
    for file in files:
        partition = {name: value for name, value in file.partition.items() if name in columns}
        # A deletion vector counts rows from the start of the file, so the file stays whole.
        parts = max(ceil(file.bytes / BYTES_PER_TASK), 1) if not file.deleted else 1
        for part in range(parts):
            slice_ = Slice(
                path=file.path,
                partition=partition,
                file_bytes=file.bytes,
                number=part,
                count=parts,
                deleted=file.deleted or None,
            )
            yield file.bytes // parts, slice_


def _deal_slices(slices: Iterable[tuple[int, Slice]], least: int) -> tuple[tuple[Slice, ...], ...]:
    """Deal the slices out, largest first, each to the task with the fewest bytes."""
    import heapq

    largest_first = sorted(slices, key=lambda pair: (-pair[0], pair[1].path, pair[1].number))
    number = max(least, ceil(sum(size for size, _ in largest_first) / BYTES_PER_TASK))
    tasks: list[list[Slice]] = [[] for _ in range(number)]
    loads = [(0, task) for task in range(number)]
    for size, slice_ in largest_first:
        load, task = heapq.heappop(loads)
        tasks[task].append(slice_)
        heapq.heappush(loads, (load + size, task))
    return tuple(tuple(task) for task in tasks)


def _get_stored_name(field: DeltaField) -> str:
    """The column's name in the files."""
    return field.physical or field.name


def _find_difference(fields: Iterable[DeltaField], arrow_fields: Any) -> str:
    """How Spark would read a file's columns differently from Arrow; empty if it would not."""
    arrow_types = {column.name: column.type for column in arrow_fields}
    for column in fields:
        stored = _get_stored_name(column)
        if sum(name.lower() == stored.lower() for name in arrow_types) > (stored in arrow_types):
            return f"has {stored!r} in another case"
        if stored in arrow_types:
            difference = _find_type_difference(column.type, arrow_types[stored])
            if difference:
                return difference
    return ""


def _find_type_difference(type_: DeltaType, arrow_type: Any) -> str:
    if not arrow.is_stored_as(type_, arrow_type):
        return f"stores {type_} as {arrow_type}"
    if isinstance(type_, Array):
        return _find_type_difference(type_.element, arrow_type.value_type)
    if isinstance(type_, Map):
        key = _find_type_difference(type_.key, arrow_type.key_type)
        return key or _find_type_difference(type_.value, arrow_type.item_type)
    if not isinstance(type_, Struct):
        return ""
    if not {f.name for f in arrow_type} & {_get_stored_name(f) for f in type_.fields}:
        return "has a struct without any of its fields"
    return _find_difference(type_.fields, arrow_type)


def _has_old_calendar(footer: Any, time_columns: Collection[str]) -> bool:
    """Whether the Spark that wrote the file may have used the old calendar in these columns."""
    metadata = footer.metadata or {}
    match = WRITTEN_BY.match(metadata.get(WRITER, b""))
    writer = tuple(map(int, match.groups())) if match else NEW_INT96
    old_int96 = writer < NEW_INT96 and _has_int96(footer.schema, time_columns)
    return writer < NEW_CALENDAR or old_int96 or bool(LEGACY & set(metadata))


def _has_int96(schema: Any, stored: Collection[str]) -> bool:
    """Whether any of these columns holds INT96 times."""
    leaves = (schema.column(number) for number in range(len(schema)))
    prefixes = tuple(f"{name}." for name in stored)
    return any(
        leaf.physical_type == "INT96" and f"{leaf.path}.".startswith(prefixes) for leaf in leaves
    )


def _make_fragments(file: Any, store: Any, slice_: Slice, *, fill_partition: bool) -> Iterator[Any]:
    """The file as one Arrow fragment, or its slice of row groups as one fragment each.

    If `fill_partition`, Arrow fills in the partition columns.
    """
    import pyarrow.dataset as ds

    # Spark writes timestamps as INT96, which Arrow would take for nanoseconds.
    options = ds.ParquetReadOptions(coerce_int96_timestamp_unit="us")
    fragment = ds.ParquetFileFormat(read_options=options).make_fragment(
        file,
        filesystem=store,
        partition_expression=_to_arrow_expression(slice_.partition) if fill_partition else None,
    )
    if slice_.count == 1:
        return iter([fragment])
    return iter(fragment.split_by_row_group()[slice_.number :: slice_.count])


def _to_arrow_expression(partition: Mapping[str, Any]) -> Any:
    """The partition values of every row in the file, as an Arrow expression."""
    from functools import reduce
    from operator import and_

    import pyarrow.compute as pc

    conditions = [
        pc.field(name).is_null() if value is None else pc.field(name) == value
        for name, value in sorted(partition.items())
    ]
    return reduce(and_, conditions) if conditions else None
