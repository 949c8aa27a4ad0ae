"""A table's Parquet files, read with Arrow inside Spark's Python workers.

Spark plans and runs the tasks; each reads its files itself, because the JVM hands rows to Python
one at a time, which costs more than the rest of a snapshot (ADR 8). Only where that gives the
same rows as Spark's own reader: see `is_plain`. Imports neither pyspark nor deltalake.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from iscp_dagster.delta.checks import TENANT_TYPES
from iscp_dagster.delta.log.facts import DataFile, TableFacts
from iscp_dagster.delta.log.files import local_path
from iscp_dagster.delta.log.unreadable import unreadable
from iscp_dagster.model.declared.schema import Array, Decimal, DeltaField, DeltaType, Primitive
from iscp_dagster.model.errors import FeedGoneError, IscpError, SourceError

if TYPE_CHECKING:
    import pyarrow as pa

BYTES_PER_TASK = 64 * 1024 * 1024
ROWS_PER_BATCH = 65_536
READAHEAD = 2
PLAIN_FEATURES = frozenset({"timestampNtz"})
MAPPING = "delta.columnMapping.mode"
LEGACY = {b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"}
PRIMITIVES = {
    "string": "string",
    "byte": "int8",
    "short": "int16",
    "integer": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "boolean": "bool_",
    "binary": "binary",
    "date": "date32",
}


class NotPlainError(IscpError):
    """A file that only Spark reads as Spark does; met by reading through Spark."""

    code = 1_210


@dataclass(frozen=True, kw_only=True)
class Slice:
    """Every `parts`-th row group of a file, from the `part`-th on."""

    path: str
    partition: Mapping[str, Any]
    part: int = 0
    parts: int = 1


@dataclass(frozen=True, kw_only=True)
class Files:
    """The `fields` of the Parquet files of the table in `folder`."""

    folder: str
    fields: tuple[DeltaField, ...]

    def schema(self) -> pa.Schema:
        """Of what is read."""
        import pyarrow as pa

        return pa.schema([(each.name, arrow_type(each.type)) for each in self.fields])

    def read(self, slice_: Slice) -> Iterator[pa.RecordBatch]:
        """Raises FeedGoneError for a file that VACUUM took, SourceError for one that is broken,
        NotPlainError for one that Spark would read otherwise.
        """
        import pyarrow as pa

        schema = self.schema()
        try:
            for piece in _pieces(self.folder, slice_):
                self._refuse_unlike(piece, slice_)
                scanner = piece.scanner(
                    schema=schema,
                    columns=schema.names,
                    batch_size=ROWS_PER_BATCH,
                    batch_readahead=READAHEAD,
                    use_threads=False,
                )
                yield from scanner.to_batches()
        except FileNotFoundError as error:
            raise FeedGoneError(
                f"{self.folder}: {slice_.path} is gone, so this version can no longer be read; the "
                "next iteration reads a newer one."
            ) from error
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                # The system's own: of a broken file Arrow gives no number.
                raise unreadable(f"{self.folder}/{slice_.path}", error) from error
            raise SourceError(
                f"{self.folder}: {slice_.path} cannot be read: {error}. Restore the file, or "
                "RESTORE the table to a version without it."
            ) from error

    def _refuse_unlike(self, piece: Any, slice_: Slice) -> None:
        """Raises NotPlainError for a file that Spark would read otherwise.

        Spark finds a column whatever its case, where Arrow would take it for missing, so null; and
        it corrects dates and times of the calendar that Spark 2 wrote.
        """
        held = piece.physical_schema.names
        lower = {name.lower() for name in held}
        missing = [f.name for f in self.fields if f.name not in held and f.name.lower() in lower]
        if missing:
            raise NotPlainError(f"{self.folder}: {slice_.path} has {missing[0]!r} in another case.")
        if any(_has_times(f.type) for f in self.fields) and LEGACY & set(
            piece.metadata.metadata or ()
        ):
            raise NotPlainError(f"{self.folder}: {slice_.path} holds times of the old calendar.")


@dataclass(frozen=True, kw_only=True)
class FileScan:
    """What the tasks of a snapshot read; picklable."""

    files: Files
    tasks: tuple[tuple[Slice, ...], ...]

    def rows(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: batches of task numbers in column `id` in, batches of rows out."""
        for batch in numbers:
            for number in batch["id"].to_pylist():
                for slice_ in self.tasks[number]:
                    yield from self.files.read(slice_)


def plan_tasks(
    location: str, facts: TableFacts, files: Sequence[DataFile], columns: Sequence[str], least: int
) -> FileScan | None:
    """The scan of `files` in `least` tasks or more; None where Spark must read the table."""
    found = plain_files(location, facts, columns)
    if found is None or any(lies_elsewhere(each.path) for each in files):
        return None
    return FileScan(files=found, tasks=_dealt(_slices(files, columns), least))


def plain_files(location: str, facts: TableFacts, columns: Sequence[str]) -> Files | None:
    """How to read the table's files; None where Spark must."""
    folder = local_path(location)
    fields = tuple(next(f for f in facts.fields if f.name == name) for name in columns)
    if folder is None or not is_plain(facts, fields):
        return None
    return Files(folder=folder, fields=fields)


def is_plain(facts: TableFacts, fields: Sequence[DeltaField]) -> bool:
    """Whether the files hold the rows just as they are: no deletion vectors, no mapped or widened
    columns, no structs or maps, which gain fields inside.
    """
    partitioned = set(facts.metadata.partition_columns)
    return (
        facts.reader_features <= PLAIN_FEATURES
        and facts.metadata.configuration.get(MAPPING, "none") == "none"
        and all(_is_known(f.type) for f in fields)
        and all(str(f.type) in TENANT_TYPES for f in fields if f.name in partitioned)
    )


def arrow_type(type_: DeltaType) -> pa.DataType:
    """The Arrow type in which Spark hands over a column of this type."""
    import pyarrow as pa

    if isinstance(type_, Decimal):
        return pa.decimal128(type_.precision, type_.scale)
    if isinstance(type_, Array):
        return pa.list_(arrow_type(type_.element))
    name = str(type_)
    if name in PRIMITIVES:
        made: pa.DataType = getattr(pa, PRIMITIVES[name])()
        return made
    return pa.timestamp("us", tz="UTC" if name == "timestamp" else None)


def _has_times(type_: DeltaType) -> bool:
    element = type_.element if isinstance(type_, Array) else type_
    return str(element) in {"date", "timestamp", "timestamp_ntz"}


def _is_known(type_: DeltaType) -> bool:
    if isinstance(type_, Array):
        return _is_known(type_.element) and not isinstance(type_.element, Array)
    known = {*PRIMITIVES, "timestamp", "timestamp_ntz"}
    return isinstance(type_, Decimal) or (isinstance(type_, Primitive) and type_.name in known)


def lies_elsewhere(path: str) -> bool:
    """A shallow clone's files have URLs of their own."""
    return path.startswith("/") or ":" in path.partition("/")[0]


def _slices(files: Sequence[DataFile], columns: Sequence[str]) -> Iterator[tuple[int, Slice]]:
    """Large files in several slices, with the bytes of each."""
    for file in files:
        partition = {name: value for name, value in file.partition.items() if name in columns}
        parts = max(ceil(file.bytes / BYTES_PER_TASK), 1)
        for part in range(parts):
            slice_ = Slice(path=file.path, partition=partition, part=part, parts=parts)
            yield file.bytes // parts, slice_


def _dealt(slices: Iterable[tuple[int, Slice]], least: int) -> tuple[tuple[Slice, ...], ...]:
    """The largest first, each to the task with the fewest bytes."""
    import heapq

    sized = sorted(slices, key=lambda each: (-each[0], each[1].path, each[1].part))
    number = max(least, ceil(sum(size for size, _ in sized) / BYTES_PER_TASK))
    held: list[list[Slice]] = [[] for _ in range(number)]
    loads = [(0, task) for task in range(number)]
    for size, slice_ in sized:
        load, task = heapq.heappop(loads)
        held[task].append(slice_)
        heapq.heappush(loads, (load + size, task))
    return tuple(tuple(task) for task in held)


def _pieces(folder: str, slice_: Slice) -> Iterator[Any]:
    """The file as one Arrow fragment, or its slice of row groups as several."""
    import pyarrow.dataset as ds
    from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

    # Spark writes timestamps as INT96, which Arrow would take for nanoseconds.
    options = ds.ParquetReadOptions(coerce_int96_timestamp_unit="us")
    fragment = ds.ParquetFileFormat(read_options=options).make_fragment(
        unquote(slice_.path),
        filesystem=SubTreeFileSystem(folder, LocalFileSystem()),
        partition_expression=_known_values(slice_.partition),
    )
    if slice_.parts == 1:
        return iter([fragment])
    return iter(fragment.split_by_row_group()[slice_.part :: slice_.parts])


def _known_values(partition: Mapping[str, Any]) -> Any:
    """What the folder says of every row in the file, as Arrow's datasets state it."""
    from functools import reduce
    from operator import and_

    import pyarrow.compute as pc

    known = [
        pc.field(name).is_null() if value is None else pc.field(name) == value
        for name, value in sorted(partition.items())
    ]
    return reduce(and_, known) if known else None
