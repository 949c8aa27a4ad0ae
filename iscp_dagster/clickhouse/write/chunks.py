"""Arrow rows cut into chunks, which are identified only by their content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Int64Array = np.ndarray[tuple[int], np.dtype[np.int64]]

ROWS_PER_CHUNK = 100_000
BYTES_PER_PIECE = 32 * 1024 * 1024
MOST_ROWS_PER_STAGING_CHUNK = 400_000
BYTES_AT_ONCE = 512 * 1024 * 1024
"""Limit for the values of one Arrow batch, whose text columns hold 2 GiB at most."""

FEWEST_TASKS, MOST_TASKS = 2, 32
"""Spark tasks that read one iteration, unless it is small; between them, as many as Spark has cores
and the iteration has work for."""
MOST_CHUNKS = 1_000
"""Most chunks of changes that one of the fewest tasks writes; a range with more is read as a
snapshot."""


def compute_chunks_per_task(tasks: int) -> int:
    """Return the most chunks of changes that each of so many tasks writes.

    Together they write no more than the fewest tasks may: ClickHouse remembers the tokens
    of so many chunks, whatever the cluster.
    """
    return MOST_CHUNKS * FEWEST_TASKS // max(tasks, FEWEST_TASKS)


def cut_chunks(
    batches: Iterable[pa.RecordBatch], rows: int = ROWS_PER_CHUNK, *, apart: str | None = None
) -> Iterator[pa.Table]:
    """Cut the stream of `batches` every `rows` rows, wherever its batches end.

    If they are sorted by a column `apart`, also cut where its value changes: the rows of one value
    are cut as if there were no others. The same rows in the same order give the same chunks, and
    no chunk is empty.
    """
    if apart is not None:
        for _, run in groupby(_split_runs(batches, apart), key=itemgetter(0)):
            yield from cut_chunks((batch for _, batch in run), rows)
        return
    pending: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        rest = batch
        while count + rest.num_rows >= rows:
            head, rest = rest.slice(0, rows - count), rest.slice(rows - count)
            yield pa.Table.from_batches([*pending, head])
            pending, count = [], 0
        if rest.num_rows:
            pending.append(rest)
            count += rest.num_rows
    if pending:
        yield pa.Table.from_batches(pending)


def _split_runs(
    batches: Iterable[pa.RecordBatch], column: str
) -> Iterator[tuple[Any, pa.RecordBatch]]:
    """Yield the batches, cut where the column's value changes, each with that value."""
    for batch in batches:
        runs, start = pc.run_end_encode(batch[column]), 0
        for value, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            yield value, batch.slice(start, end - start)
            start = end


def cut_pieces(chunk: pa.Table, size: int = BYTES_PER_PIECE) -> Iterator[tuple[int, pa.Table]]:
    """Cut the chunk into pieces of at most `size` bytes, each with its first row's number.

    A larger row goes by itself. The same rows give the same pieces: only the values' bytes count.
    Each consumer cuts for itself: a replay may be for one of them, and read fewer or more columns.
    """
    ends = np.concatenate([[0], np.cumsum(compute_row_sizes(chunk))])
    start = 0
    while start < chunk.num_rows:
        last = int(np.searchsorted(ends, ends[start] + size, side="right")) - 1
        end = max(last, start + 1)
        yield start, chunk.slice(start, end - start)
        start = end


def compute_row_sizes(rows: pa.Table) -> Int64Array:
    """Return the bytes of each row's values, whatever batches they come in."""
    return _add_columns([_compute_column_sizes(column) for column in rows.columns], rows.num_rows)


def _compute_column_sizes(column: pa.ChunkedArray) -> Int64Array:
    return np.concatenate([np.zeros(0, np.int64), *map(_compute_value_sizes, column.chunks)])


def combine_batches(rows: pa.Table) -> pa.Table:
    """Combine the rows into one batch if they fit, else return them unchanged."""
    return rows if rows.nbytes > BYTES_AT_ONCE else rows.combine_chunks()


def cut_batches(rows: pa.Table) -> Iterator[pa.Table]:
    """Cut rows that are too large for one batch; the same rows give the same cuts."""
    if rows.nbytes * 2 <= BYTES_AT_ONCE:
        yield rows
        return
    yield from (piece for _, piece in cut_pieces(rows, BYTES_AT_ONCE))


def _compute_value_sizes(values: pa.Array) -> Int64Array:
    type_ = values.type
    if any(is_kind(type_) for is_kind in _TEXT_CHECKS):
        return _to_numbers(pc.binary_length(values))
    if pa.types.is_struct(type_):
        return _add_columns(
            [_compute_value_sizes(field) for field in values.flatten()], len(values)
        )
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return _sum_lists(
            values, _compute_value_sizes(values.flatten()), pc.list_value_length(values)
        )
    if pa.types.is_map(type_):
        entries = values.cast(pa.list_(pa.struct([type_.key_field, type_.item_field])))
        return _compute_value_sizes(entries)
    return np.full(len(values), max(_get_width(type_), 1), np.int64)


_TEXT_CHECKS = (
    pa.types.is_binary,
    pa.types.is_string,
    pa.types.is_large_binary,
    pa.types.is_large_string,
)


def _sum_lists(values: pa.Array, inner: Int64Array, lengths: pa.Array) -> Int64Array:
    """Return the sum of each list's members."""
    ends = np.concatenate([[0], np.cumsum(inner)])
    stops = np.cumsum(_to_numbers(lengths))
    starts = np.concatenate([[0], stops[:-1]]) if len(values) else stops
    return np.asarray(ends[stops] - ends[starts])


def _add_columns(columns: Sequence[Int64Array], length: int) -> Int64Array:
    return sum(columns, np.zeros(length, np.int64))


def _to_numbers(values: pa.Array) -> Int64Array:
    return np.asarray(pc.fill_null(values, 0).cast(pa.int64()).to_numpy(zero_copy_only=False))


def _get_width(type_: pa.DataType) -> int:
    return 0 if pa.types.is_null(type_) else type_.bit_width // 8


def cut_staging_chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Cut the stream into chunks near 32 MiB, estimated by its first batch, to make fewer parts.

    The cuts depend on the batches, so these chunks are for staging only.
    """
    stream = iter(batches)
    first = next(stream, None)
    if first is None:
        return
    row = max(
        first.nbytes // max(first.num_rows, 1), BYTES_PER_PIECE // MOST_ROWS_PER_STAGING_CHUNK
    )
    yield from cut_chunks(chain([first], stream), max(BYTES_PER_PIECE // row, 1))


def hash_rows(table: pa.Table) -> str:
    """Hash the rows' values, regardless of how the chunk's batches were cut."""
    sink = _HashSink()
    with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), table.schema) as writer:
        writer.write_table(_copy_rows(table))
    return sink.hash.hexdigest()


def _copy_rows(table: pa.Table) -> pa.Table:
    # A slice's validity bitmap ends in bits of its neighbours; a copy's does not.
    return pa.concat_tables([table, table.slice(0, 0)]).combine_chunks()


class _HashSink:
    """A file that keeps only the hash of what is written to it."""

    closed = False

    def __init__(self) -> None:
        self.hash = hashlib.blake2b(digest_size=16)
        self._at = 0

    def write(self, data: Any) -> int:
        self.hash.update(data)
        self._at += len(data)
        return len(data)

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        """Do nothing: no data is buffered."""

    def close(self) -> None:
        self.closed = True
