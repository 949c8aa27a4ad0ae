"""The change feed's Parquet files, read with Arrow: in a Spark task, or in the run's process.

The log names the files that hold a range's changes, which saves Spark's planning: that costs more
than reading a few thousand rows (ADR 29). `plan_feed` gives the same rows in the same order as
`reader.read_changes`, and `plan_rows` those of `reader.read_feed`, where they can. Imports neither
pyspark nor deltalake.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING, Any

from iscp_dagster.delta import checks, filescan
from iscp_dagster.delta.log.commit import FeedFile
from iscp_dagster.delta.log.facts import TableFacts, UnreadableValue, is_outside_table
from iscp_dagster.model.declared import schema
from iscp_dagster.model.moment import Moment

if TYPE_CHECKING:
    import pyarrow as pa

UPSERTS = ("insert", "update_postimage")
KINDS = {"add": "insert", "remove": "delete"}
"""The change type of all rows of a file that does not record it per row."""
SORTED = frozenset(
    {
        *("string", "byte", "short", "integer", "long", "boolean", "binary"),
        *("date", "timestamp", "timestamp_ntz"),
    }
)
"""Types that Arrow orders and compares as Spark does."""


@dataclass(frozen=True, kw_only=True)
class CommitFile:
    """One file of the feed, with its commit."""

    version: int
    micros: int
    action: str
    slice_: filescan.Slice


@dataclass(frozen=True, kw_only=True)
class FeedRows:
    """The rows of a range of the feed; picklable."""

    reader: filescan.ParquetReader
    files: tuple[CommitFile, ...]

    def read_table(self) -> pa.Table:
        """All rows in memory, with their version, time and kind of change, in no order.

        Raises as `ParquetReader.read` does.
        """
        import pyarrow as pa

        tables = [self._read_file(file) for file in self.files]
        return pa.concat_tables(tables).combine_chunks()

    def read_if_small(self, most: int) -> pa.Table | None:
        """All rows; None if they exceed `most` bytes, or if Spark would read them differently.

        Spark's feed has U+FFFD for what is not UTF-8. Else raises as `ParquetReader.read` does.
        """
        import pyarrow as pa

        try:
            rows = self.read_table()
            rows.validate(full=True)
        except (filescan.NotPlainError, pa.ArrowInvalid):
            return None
        return rows if rows.nbytes <= most else None

    def _read_file(self, file: CommitFile) -> pa.Table:
        """The rows of a file."""
        import pyarrow as pa
        import pyarrow.compute as pc

        has_kinds = file.action not in KINDS
        reader = replace(
            self.reader,
            fields=(*self.reader.fields, *([_CHANGE_TYPE_FIELD] if has_kinds else [])),
        )
        rows = pa.Table.from_batches(reader.read(file.slice_), schema=reader.build_schema())
        count = rows.num_rows
        if has_kinds:
            kinds = rows[checks.CHANGE_TYPE].combine_chunks()
            rows = rows.drop_columns([checks.CHANGE_TYPE])
        else:
            kinds = pa.repeat(KINDS[file.action], count)
        return (
            rows.append_column(schema.VERSION, pa.repeat(file.version, count))
            .append_column(schema.TIMESTAMP, pa.repeat(file.micros, count))
            .append_column(checks.UPSERT, pc.is_in(kinds, value_set=pa.array(UPSERTS)))
            .append_column(checks.INSERT, pc.equal(kinds, "insert"))
        )


@dataclass(frozen=True, kw_only=True)
class FeedScan(FeedRows):
    """A range of the feed that one task reads.

    `identity` (the tenant and the key) identifies rows; if not `keyed`, rows are ordered by tenant,
    version and then these columns.
    """

    output: tuple[str, ...]
    identity: tuple[str, ...]
    tenant_column: str | None = None
    keyed: bool = True

    def read_batches(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: a batch of one number in, batches of rows out."""
        for batch in numbers if self.files else ():
            for _ in range(batch.num_rows):
                yield from self._read_changes().to_batches(max_chunksize=filescan.ROWS_PER_BATCH)

    def _read_changes(self) -> pa.Table:
        """Raises as `ParquetReader.read` does, before any row is handed on."""
        rows = self.read_table()
        return _keep_latest(rows, self) if self.keyed else _sort_changes(rows, self)


_CHANGE_TYPE_FIELD = schema.DeltaField(name=checks.CHANGE_TYPE, type=schema.Primitive("string"))


def plan_feed(
    location: str,
    facts: TableFacts,
    feed: Sequence[tuple[Moment, FeedFile]],
    *,
    output: Sequence[str],
    identity: Sequence[str],
    tenant_filter: filescan.TenantFilter | None,
    keyed: bool,
) -> FeedScan | None:
    """The scan of these files of the feed, or None where Spark must read them.

    It runs in one task, in memory: for few rows. Spark must read files that do not hold the rows as
    they are (`filescan.can_arrow_read`), and rows that it orders or compares differently.
    """
    feed_rows = plan_rows(location, facts, feed, [*output, *identity], tenant_filter)
    if feed_rows is None:
        return None
    types = {field.name: field.type for field in feed_rows.reader.fields}
    if not all(_is_sortable(types[name]) for name in identity):
        return None
    return FeedScan(
        reader=feed_rows.reader,
        files=feed_rows.files,
        output=tuple(output),
        identity=tuple(identity),
        tenant_column=tenant_filter.column if tenant_filter else None,
        keyed=keyed,
    )


def plan_rows(
    location: str,
    facts: TableFacts,
    feed: Sequence[tuple[Moment, FeedFile]],
    columns: Sequence[str],
    tenant_filter: filescan.TenantFilter | None,
) -> FeedRows | None:
    """How to read these columns of these files of the feed; None where Spark must read them."""
    names = list(dict.fromkeys(columns))
    reader = filescan.make_parquet_reader(location, facts, names, tenant_filter)
    if reader is None or any(is_outside_table(file.path) for _, file in feed):
        return None
    partitioned = [f for f in reader.fields if f.name in facts.metadata.partition_columns]
    tenant_column = tenant_filter.column if tenant_filter else None
    commit_files = tuple(
        _build_commit_file(at, file, partitioned, tenant_column) for at, file in feed
    )
    if any(
        isinstance(value, UnreadableValue)
        for p in commit_files
        for value in p.slice_.partition.values()
    ):
        return None
    return FeedRows(reader=reader, files=commit_files)


def _is_sortable(type_: Any) -> bool:
    return isinstance(type_, schema.Decimal) or str(type_) in SORTED


def _build_commit_file(
    at: Moment, file: FeedFile, partitioned: Collection[schema.DeltaField], tenant: str | None
) -> CommitFile:
    values = dict(file.partition)
    partition = {
        f.name: _parse_partition_value(values.get(f.physical or f.name), str(f.type))
        for f in partitioned
    }
    if tenant is not None and partition.get(tenant) == UnreadableValue(""):
        partition[tenant] = None
    slice_ = filescan.Slice(path=file.path, partition=partition, file_bytes=file.bytes)
    return CommitFile(version=at.version, micros=at.micros, action=file.action, slice_=slice_)


def _parse_partition_value(value: str | None, type_: str) -> Any:
    """A partition value (Delta protocol, "Partition Value Serialization"), of `TENANT_TYPES`."""
    assert type_ in checks.TENANT_TYPES, type_
    if value is None or type_ == "string":
        return UnreadableValue("") if value == "" else value
    try:
        return _parse_value(value, type_) if value else None
    except ValueError:
        return UnreadableValue(value)


def _parse_value(value: str, type_: str) -> Any:
    if type_ == "date":
        return date.fromisoformat(value)
    return value == "true" if type_ == "boolean" else int(value)


def _keep_latest(rows: pa.Table, scan: FeedScan) -> pa.Table:
    """The last change of every key, sorted by key and marked as in `reader.read_changes`."""
    import numpy as np
    import pyarrow as pa

    by = [(name, "ascending") for name in scan.identity]
    newest = [(schema.VERSION, "descending"), (checks.UPSERT, "descending")]
    rows = _sort_rows(rows, [*by, *newest])
    count = rows.num_rows
    first = _find_key_starts(rows, scan.identity)
    upsert, insert, version = (
        rows[name].to_numpy().astype(kind)
        for name, kind in ((checks.UPSERT, bool), (checks.INSERT, bool), (schema.VERSION, np.int64))
    )
    twin = np.zeros(count, dtype=bool)
    if count:
        newer_alike = (version[:-1] == version[1:]) | insert[:-1]
        twin[1:] = ~first[1:] & upsert[1:] & upsert[:-1] & newer_alike
    starts = np.flatnonzero(first)
    ends = np.append(starts[1:], count) - 1
    repeats = np.logical_or.reduceat(twin, starts) if count else twin
    latest = rows.take(pa.array(starts)).select([*scan.output, schema.VERSION, schema.TIMESTAMP])
    return (
        latest.append_column(schema.DELETED, pa.array(~upsert[starts]))
        .append_column(checks.REPEATS, pa.array(repeats))
        .append_column(checks.FRESH, pa.array(upsert[ends] if count else twin))
    )


def _sort_changes(rows: pa.Table, scan: FeedScan) -> pa.Table:
    """All changes, by tenant, version and values; any that is not an insert has `_repeats` set."""
    import pyarrow as pa
    import pyarrow.compute as pc

    by = (*filter(None, [scan.tenant_column]), schema.VERSION, *scan.identity)
    rows = _sort_rows(rows, [(name, "ascending") for name in by])
    changes = rows.select([*scan.output, schema.VERSION, schema.TIMESTAMP])
    return changes.append_column(schema.DELETED, pa.repeat(False, rows.num_rows)).append_column(
        checks.REPEATS, pc.invert(rows[checks.INSERT])
    )


def _sort_rows(rows: pa.Table, keys: list[tuple[str, str]]) -> pa.Table:
    """The rows sorted with nulls first, as Spark sorts them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns: list[Any] = []
    orders: list[str] = []
    for name, order in keys:
        column = rows[name]
        if column.null_count:
            columns.append(column.is_valid())
            orders.append("ascending")
        columns.append(column)
        orders.append(order)
    by = pa.table(columns, names=[str(number) for number in range(len(columns))])
    ranks = [(str(number), order) for number, order in enumerate(orders)]
    return rows.take(pc.sort_indices(by, sort_keys=ranks))


def _find_key_starts(rows: pa.Table, identity: Sequence[str]) -> Any:
    """Where a new key begins in sorted rows; nulls are equal."""
    import numpy as np
    import pyarrow.compute as pc

    begins = np.zeros(rows.num_rows, dtype=bool)
    begins[:1] = True
    for name in identity:
        current, previous = rows[name].slice(1), rows[name].slice(0, max(rows.num_rows - 1, 0))
        values_differ = pc.fill_null(pc.not_equal(current, previous), False)
        nulls_differ = pc.not_equal(current.is_null(), previous.is_null())
        begins[1:] |= pc.or_(values_differ, nulls_differ).to_numpy().astype(bool)
    return begins
