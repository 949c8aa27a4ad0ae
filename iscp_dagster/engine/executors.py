"""The functions that Spark ships to its executors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass, fields
from typing import Any

import pyarrow as pa

from iscp_dagster.clickhouse.endpoint import Endpoint
from iscp_dagster.clickhouse.quoting import ident
from iscp_dagster.clickhouse.writer import Receipt, Writer, refused
from iscp_dagster.core.errors import IscpError

_ARROW_TYPES = {"str": pa.string(), "int": pa.int64(), "float": pa.float64()}
# Spark checks integer widths to the bit: `partition` and the like are its 32-bit int.
_NARROW = {"partition", "chunks", "code"}

RECEIPT_SCHEMA = pa.schema(
    [
        (f.name, pa.int32() if f.name in _NARROW else _ARROW_TYPES[str(f.type)])
        for f in fields(Receipt)
    ]
)


Mapped = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What `mapInArrow` takes."""


def as_they_are(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Spark's batches are the rows."""
    return iter(batches)


def writing(writer: Writer, rows: Mapped = as_they_are) -> Mapped:
    """`writer` as `mapInArrow` wants it: batches in, of which `rows` makes rows; receipts out."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = context.partitionId() if context else 0
        try:
            receipts = writer(partition, rows(batches))
        except IscpError as error:
            receipts = [refused(target, partition, error) for target in writer.targets]
        columns = zip(*map(astuple, receipts), strict=True)
        arrays = [
            pa.array(values, type=f.type)
            for values, f in zip(columns, RECEIPT_SCHEMA, strict=False)
        ]
        if arrays:
            yield pa.RecordBatch.from_arrays(arrays, schema=RECEIPT_SCHEMA)

    return write


@dataclass(frozen=True, kw_only=True)
class IndexRead:
    """A query of an index in slices; `view`, `bucket` and `tenant` are ClickHouse expressions."""

    endpoint: Endpoint
    view: str
    columns: tuple[str, ...]
    bucket: str
    tenant: str | None
    tenants: tuple[str, ...]

    def batches(self, slice_: int) -> Iterator[pa.RecordBatch]:
        """The rows of one slice; strings come as bytes, which may not be UTF-8."""
        selected = ", ".join(map(ident, self.columns))
        query = f"SELECT {selected} FROM {self.view} WHERE {self.bucket} = {{slice:UInt32}}"
        if self.tenant is not None:
            query += f" AND toString({self.tenant}) IN {{tenants:Array(String)}}"
        parameters = {"slice": slice_, "tenants": list(self.tenants)}
        settings = {"output_format_arrow_string_as_string": 0}
        with (
            self.endpoint.errors("read the index"),
            self.endpoint.client().query_arrow_stream(
                query, parameters=parameters, settings=settings
            ) as stream,
        ):
            yield from stream


def reading_index(read: IndexRead, spark_schema: Any) -> Mapped:
    """`read` as `mapInArrow` wants it: batches of slice numbers in, rows of `spark_schema` out."""

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(spark_schema, timezone="UTC")
        for batch in batches:
            for slice_ in batch["id"].to_pylist():
                for found in read.batches(slice_):
                    yield from pa.table(found).cast(schema).to_batches()

    return rows
