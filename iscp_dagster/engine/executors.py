"""The function that Spark ships to its executors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, fields

import pyarrow as pa

from iscp_dagster.clickhouse.writer import Receipt, Writer

_ARROW_TYPES = {"str": pa.string(), "int": pa.int64(), "float": pa.float64()}
# Spark checks integer widths to the bit: `partition` and the like are its 32-bit int.
_NARROW = {"partition", "chunks", "code"}

RECEIPT_SCHEMA = pa.schema(
    [
        (f.name, pa.int32() if f.name in _NARROW else _ARROW_TYPES[str(f.type)])
        for f in fields(Receipt)
    ]
)


def writing(
    writer: Writer,
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """`writer` as `mapInArrow` wants it: batches of rows in, batches of receipts out."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        receipts = writer(context.partitionId() if context else 0, batches)
        columns = zip(*map(astuple, receipts), strict=True)
        arrays = [
            pa.array(values, type=f.type)
            for values, f in zip(columns, RECEIPT_SCHEMA, strict=False)
        ]
        if arrays:
            yield pa.RecordBatch.from_arrays(arrays, schema=RECEIPT_SCHEMA)

    return write
