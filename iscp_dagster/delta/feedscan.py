"""The change feed's Parquet files, read with Arrow: in a Spark task, or in the run's process.

The log names the files that hold a range's changes, which saves Spark's planning: that costs more
than reading a few thousand rows (ADR 29). `plan_feed` gives the same rows in the same order as
`reader.changes`, and `plan_rows` those of `reader.feed`, where they can. Imports neither pyspark
nor deltalake.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING, Any

from iscp_dagster.delta import checks, filescan
from iscp_dagster.delta.log.commit import FeedFile
from iscp_dagster.delta.log.facts import TableFacts, Unheld
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
    kind: str
    slice_: filescan.Slice


@dataclass(frozen=True, kw_only=True)
class FeedRows:
    """The rows of a range of the feed; picklable."""

    files: filescan.Files
    parts: tuple[CommitFile, ...]

    def whole(self) -> pa.Table:
        """All rows in memory, with their version, time and kind of change, in no order.

        Raises as `Files.read` does.
        """
        import pyarrow as pa

        found = [self._stamped(part) for part in self.parts]
        return pa.concat_tables(found).combine_chunks()

    def few(self, most: int) -> pa.Table | None:
        """`whole`; None for more than `most` bytes, or for rows that Spark would read differently.

        Its feed has U+FFFD for what is not UTF-8. Raises as `Files.read` does otherwise.
        """
        import pyarrow as pa

        try:
            rows = self.whole()
            rows.validate(full=True)
        except (filescan.NotPlainError, pa.ArrowInvalid):
            return None
        return rows if rows.nbytes <= most else None

    def _stamped(self, part: CommitFile) -> pa.Table:
        """The rows of a file."""
        import pyarrow as pa
        import pyarrow.compute as pc

        said = part.kind not in KINDS
        files = replace(self.files, fields=(*self.files.fields, *([_SAID] if said else [])))
        rows = pa.Table.from_batches(files.read(part.slice_), schema=files.schema())
        count = rows.num_rows
        if said:
            kinds = rows[checks.CHANGE_TYPE].combine_chunks()
            rows = rows.drop_columns([checks.CHANGE_TYPE])
        else:
            kinds = pa.repeat(KINDS[part.kind], count)
        return (
            rows.append_column(schema.VERSION, pa.repeat(part.version, count))
            .append_column(schema.TIMESTAMP, pa.repeat(part.micros, count))
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
    tenant: str | None = None
    keyed: bool = True

    def rows(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: a batch of one number in, batches of rows out."""
        for batch in numbers if self.parts else ():
            for _ in range(batch.num_rows):
                yield from self._changes().to_batches(max_chunksize=filescan.ROWS_PER_BATCH)

    def _changes(self) -> pa.Table:
        """Raises as `Files.read` does, before any row is handed on."""
        whole = self.whole()
        return _latest(whole, self) if self.keyed else _added(whole, self)


_SAID = schema.DeltaField(name=checks.CHANGE_TYPE, type=schema.Primitive("string"))


def plan_feed(
    location: str,
    facts: TableFacts,
    feed: Sequence[tuple[Moment, FeedFile]],
    *,
    output: Sequence[str],
    identity: Sequence[str],
    tenant: str | None,
    keyed: bool,
) -> FeedScan | None:
    """The scan of these files of the feed, or None where Spark must read them.

    It runs in one task, in memory: for few rows. Spark must read files that do not hold the rows as
    they are (`filescan.plain_files`), and rows that it orders or compares differently.
    """
    found = plan_rows(location, facts, feed, [*output, *identity], tenant)
    if found is None:
        return None
    types = {each.name: each.type for each in found.files.fields}
    if not all(_is_sorted(types[name]) for name in identity):
        return None
    return FeedScan(
        files=found.files,
        parts=found.parts,
        output=tuple(output),
        identity=tuple(identity),
        tenant=tenant,
        keyed=keyed,
    )


def plan_rows(
    location: str,
    facts: TableFacts,
    feed: Sequence[tuple[Moment, FeedFile]],
    columns: Sequence[str],
    tenant: str | None,
) -> FeedRows | None:
    """How to read these columns of these files of the feed; None where Spark must read them."""
    files = filescan.plain_files(location, facts, list(dict.fromkeys(columns)))
    if files is None or any(filescan.lies_elsewhere(file.path) for _, file in feed):
        return None
    partitioned = [f for f in files.fields if f.name in facts.metadata.partition_columns]
    parts = tuple(_part(at, file, partitioned, tenant) for at, file in feed)
    if any(isinstance(value, Unheld) for p in parts for value in p.slice_.partition.values()):
        return None
    return FeedRows(files=files, parts=parts)


def _is_sorted(type_: Any) -> bool:
    return isinstance(type_, schema.Decimal) or str(type_) in SORTED


def _part(
    at: Moment, file: FeedFile, partitioned: Collection[schema.DeltaField], tenant: str | None
) -> CommitFile:
    values = dict(file.place)
    known = {f.name: _typed(values.get(f.physical or f.name), str(f.type)) for f in partitioned}
    if tenant is not None and known.get(tenant) == Unheld(""):
        known[tenant] = None
    slice_ = filescan.Slice(path=file.path, partition=known, bytes=file.bytes)
    return CommitFile(version=at.version, micros=at.micros, kind=file.kind, slice_=slice_)


def _typed(value: str | None, type_: str) -> Any:
    """A partition value (Delta protocol, "Partition Value Serialization"), of `TENANT_TYPES`."""
    assert type_ in checks.TENANT_TYPES, type_
    if value is None or type_ == "string":
        return Unheld("") if value == "" else value
    try:
        return _read(value, type_) if value else None
    except ValueError:
        return Unheld(value)


def _read(value: str, type_: str) -> Any:
    if type_ == "date":
        return date.fromisoformat(value)
    return value == "true" if type_ == "boolean" else int(value)


def _latest(rows: pa.Table, scan: FeedScan) -> pa.Table:
    """The last change of every key, sorted by key and marked as in `reader.changes`."""
    import numpy as np
    import pyarrow as pa

    by = [(name, "ascending") for name in scan.identity]
    newest = [(schema.VERSION, "descending"), (checks.UPSERT, "descending")]
    rows = _sorted(rows, [*by, *newest])
    count = rows.num_rows
    first = _begins(rows, scan.identity)
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
    found = rows.take(pa.array(starts)).select([*scan.output, schema.VERSION, schema.TIMESTAMP])
    return (
        found.append_column(schema.DELETED, pa.array(~upsert[starts]))
        .append_column(checks.REPEATS, pa.array(repeats))
        .append_column(checks.FRESH, pa.array(upsert[ends] if count else twin))
    )


def _added(rows: pa.Table, scan: FeedScan) -> pa.Table:
    """All changes, by tenant, version and values; any that is not an insert has `_repeats` set."""
    import pyarrow as pa
    import pyarrow.compute as pc

    by = (*filter(None, [scan.tenant]), schema.VERSION, *scan.identity)
    rows = _sorted(rows, [(name, "ascending") for name in by])
    found = rows.select([*scan.output, schema.VERSION, schema.TIMESTAMP])
    return found.append_column(schema.DELETED, pa.repeat(False, rows.num_rows)).append_column(
        checks.REPEATS, pc.invert(rows[checks.INSERT])
    )


def _sorted(rows: pa.Table, keys: list[tuple[str, str]]) -> pa.Table:
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


def _begins(rows: pa.Table, identity: Sequence[str]) -> Any:
    """Where a new key begins in sorted rows; nulls are equal."""
    import numpy as np
    import pyarrow.compute as pc

    begins = np.zeros(rows.num_rows, dtype=bool)
    begins[:1] = True
    for name in identity:
        one, other = rows[name].slice(1), rows[name].slice(0, max(rows.num_rows - 1, 0))
        unlike = pc.fill_null(pc.not_equal(one, other), False)
        nulls = pc.not_equal(one.is_null(), other.is_null())
        begins[1:] |= pc.or_(unlike, nulls).to_numpy().astype(bool)
    return begins
