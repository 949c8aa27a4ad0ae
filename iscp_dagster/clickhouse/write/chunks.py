"""Arrow rows cut into chunks whose content alone decides their identity."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]

ROWS_PER_CHUNK = 100_000
BYTES_PER_CHUNK = 32 * 1024 * 1024
MOST_ROWS_PER_CHUNK = 400_000
BYTES_AT_ONCE = 512 * 1024 * 1024
"""Limit for the values of one Arrow batch, whose text columns hold 2 GiB at most."""

FEWEST_TASKS, MOST_TASKS = 2, 32
"""Spark tasks that read one iteration, unless it is small; between them, as many as Spark has cores
and the iteration has work for."""
MOST_CHUNKS = 1_000
"""Most chunks of changes that one of the fewest tasks writes; a range with more is read as a
snapshot."""


def chunks_per_task(tasks: int) -> int:
    """Return the most chunks of changes that each of so many tasks writes.

    All of them together write no more than the fewest tasks may: ClickHouse remembers the tokens
    of so many chunks, whatever the cluster.
    """
    return MOST_CHUNKS * FEWEST_TASKS // max(tasks, FEWEST_TASKS)


def chunks(
    batches: Iterable[pa.RecordBatch], rows: int = ROWS_PER_CHUNK, *, apart: str | None = None
) -> Iterator[pa.Table]:
    """Cut the stream of `batches` every `rows` rows, wherever its batches end.

    If they are sorted by a column `apart`, also cut where its value changes: the rows of one value
    are cut as if there were no others. The same rows in the same order give the same chunks, and
    no chunk is empty.
    """
    if apart is not None:
        for _, some in groupby(_runs(batches, apart), key=itemgetter(0)):
            yield from chunks((each for _, each in some), rows)
        return
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        rest = batch
        while count + rest.num_rows >= rows:
            head, rest = rest.slice(0, rows - count), rest.slice(rows - count)
            yield pa.Table.from_batches([*held, head])
            held, count = [], 0
        if rest.num_rows:
            held.append(rest)
            count += rest.num_rows
    if held:
        yield pa.Table.from_batches(held)


def _runs(batches: Iterable[pa.RecordBatch], column: str) -> Iterator[tuple[Any, pa.RecordBatch]]:
    """Yield the batches, cut where the column's value changes, each with that value."""
    for batch in batches:
        found, start = pc.run_end_encode(batch[column]), 0
        for value, end in zip(found.values.to_pylist(), found.run_ends.to_pylist(), strict=True):
            yield value, batch.slice(start, end - start)
            start = end


def pieces(chunk: pa.Table, size: int = BYTES_PER_CHUNK) -> Iterator[tuple[int, pa.Table]]:
    """Cut the chunk into pieces of at most `size` bytes, each with its first row's number.

    A larger row goes alone. The same rows give the same pieces, as only the values' bytes count.
    Each consumer cuts for itself: a replay may be for one of them, and read fewer or more columns.
    """
    ends = np.concatenate([[0], np.cumsum(weights(chunk))])
    start = 0
    while start < chunk.num_rows:
        last = int(np.searchsorted(ends, ends[start] + size, side="right")) - 1
        end = max(last, start + 1)
        yield start, chunk.slice(start, end - start)
        start = end


def weights(rows: pa.Table) -> Numbers:
    """Return the bytes of each row's values, whatever batches they come in."""
    return _added([_of_chunks(column) for column in rows.columns], rows.num_rows)


def _of_chunks(column: pa.ChunkedArray) -> Numbers:
    return np.concatenate([np.zeros(0, np.int64), *map(_weights, column.chunks)])


def combined(rows: pa.Table) -> pa.Table:
    """Combine the rows into one batch if they fit, else return them unchanged."""
    return rows if rows.nbytes > BYTES_AT_ONCE else rows.combine_chunks()


def batches_of(rows: pa.Table) -> Iterator[pa.Table]:
    """Cut rows that are too large for one batch; the same rows give the same cuts."""
    if rows.nbytes * 2 <= BYTES_AT_ONCE:
        yield rows
        return
    yield from (some for _, some in pieces(rows, BYTES_AT_ONCE))


def _weights(values: pa.Array) -> Numbers:
    type_ = values.type
    if any(is_kind(type_) for is_kind in _TEXTS):
        return _numbers(pc.binary_length(values))
    if pa.types.is_struct(type_):
        return _added([_weights(field) for field in values.flatten()], len(values))
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return _summed(values, _weights(values.flatten()), pc.list_value_length(values))
    if pa.types.is_map(type_):
        entries = values.cast(pa.list_(pa.struct([type_.key_field, type_.item_field])))
        return _weights(entries)
    return np.full(len(values), max(_width(type_), 1), np.int64)


_TEXTS = (
    pa.types.is_binary,
    pa.types.is_string,
    pa.types.is_large_binary,
    pa.types.is_large_string,
)


def _summed(values: pa.Array, inner: Numbers, lengths: pa.Array) -> Numbers:
    """Return the sum of each list's members."""
    ends = np.concatenate([[0], np.cumsum(inner)])
    stops = np.cumsum(_numbers(lengths))
    starts = np.concatenate([[0], stops[:-1]]) if len(values) else stops
    return np.asarray(ends[stops] - ends[starts])


def _added(columns: Sequence[Numbers], length: int) -> Numbers:
    return sum(columns, np.zeros(length, np.int64))


def _numbers(values: pa.Array) -> Numbers:
    return np.asarray(pc.fill_null(values, 0).cast(pa.int64()).to_numpy(zero_copy_only=False))


def _width(type_: pa.DataType) -> int:
    return 0 if pa.types.is_null(type_) else type_.bit_width // 8


def sized_chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Cut the stream into chunks near 32 MiB, estimated by its first batch, to make fewer parts.

    The cuts depend on the batches, so these chunks are for staging only.
    """
    stream = iter(batches)
    first = next(stream, None)
    if first is None:
        return
    row = max(first.nbytes // max(first.num_rows, 1), BYTES_PER_CHUNK // MOST_ROWS_PER_CHUNK)
    yield from chunks(chain([first], stream), max(BYTES_PER_CHUNK // row, 1))


def digest(table: pa.Table) -> str:
    """Hash the rows' values, regardless of how the chunk's batches were cut."""
    sink = _HashSink()
    with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), table.schema) as writer:
        writer.write_table(_copied(table))
    return sink.hash.hexdigest()


def _copied(table: pa.Table) -> pa.Table:
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
