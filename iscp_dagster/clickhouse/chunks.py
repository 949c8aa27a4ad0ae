"""Arrow rows cut into chunks whose content alone decides their identity."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import pyarrow as pa

ROWS_PER_CHUNK = 100_000
BYTES_PER_CHUNK = 32 * 1024 * 1024
MOST_ROWS_PER_CHUNK = 400_000


def chunks(batches: Iterable[pa.RecordBatch], rows: int = ROWS_PER_CHUNK) -> Iterator[pa.Table]:
    """Cut the stream of `batches` every `rows` rows, wherever its batches end.

    The same rows in the same order give the same chunks. No empty chunk is given.
    """
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


def sized_chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Cut the stream near 32 MiB, judged by its first batch: fewer parts where rows are small.

    Where it is cut depends on the batches, so these chunks are for staging only.
    """
    stream = iter(batches)
    first = next(stream, None)
    if first is None:
        return
    row = max(first.nbytes // max(first.num_rows, 1), BYTES_PER_CHUNK // MOST_ROWS_PER_CHUNK)
    yield from chunks(chain([first], stream), max(BYTES_PER_CHUNK // row, 1))


def digest(table: pa.Table) -> str:
    """A hash of the rows' values, the same however the chunk's batches were cut."""
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
        """Nothing is held back."""

    def close(self) -> None:
        self.closed = True
