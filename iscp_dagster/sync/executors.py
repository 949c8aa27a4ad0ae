"""The functions that Spark ships to its executors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, fields, replace
from typing import Any

import pyarrow as pa

from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.clickhouse.types.stored import Stored
from iscp_dagster.clickhouse.types.texts import canonical
from iscp_dagster.clickhouse.types.wire import respelled, restored
from iscp_dagster.clickhouse.write.chunks import pieces
from iscp_dagster.clickhouse.write.placement import Placement
from iscp_dagster.model.errors import IscpError
from iscp_dagster.spark.columns import Mapped
from iscp_dagster.sync.writer import RECEIPT_DDL, Receipt, Writer, refused

_ARROW_TYPES = {"bool": pa.bool_(), "str": pa.string(), "int": pa.int64(), "float": pa.float64()}
# Spark checks integer widths to the bit: `partition` and the like are its 32-bit int.
_NARROW = {"partition", "chunks", "code"}

RECEIPT_SCHEMA = pa.schema(
    [
        (f.name, pa.int32() if f.name in _NARROW else _ARROW_TYPES[str(f.type)])
        for f in fields(Receipt)
    ]
)

SCAN_SCHEMA = RECEIPT_SCHEMA.append(pa.field("payload", pa.binary()))
SCAN_DDL = f"{RECEIPT_DDL}, payload binary"
"""Spark's schema of what a scan gives: receipts, and rows that are relayed."""
ROWS_PER_RELAY = 20_000


def as_they_are(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Spark's batches are the rows."""
    return iter(batches)


def writing(writer: Writer, rows: Mapped = as_they_are, *, relayed: tuple[str, ...] = ()) -> Mapped:
    """`writer` as `mapInArrow` wants it: batches in, of which `rows` makes rows; receipts out.

    With columns to be `relayed` to the run's process, each chunk of them goes out beside as an
    Arrow stream, before the receipts.
    """

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = context.partitionId() if context else 0
        receipts: list[Receipt] = []
        try:
            for chunk in writer.written(partition, rows(batches), receipts):
                if relayed:
                    yield from _relay(chunk.select(list(relayed)))
            if context and context.attemptNumber():
                receipts = [replace(each, again=True) for each in receipts]
        except IscpError as error:
            failed = [each.name for each in writer.shares] + ([""] if relayed else [])
            receipts = [refused(name, partition, error) for name in failed]
        columns = zip(*map(astuple, receipts), strict=True)
        arrays = [
            pa.array(values, type=f.type)
            for values, f in zip(columns, RECEIPT_SCHEMA, strict=False)
        ]
        if arrays:
            yield _with_payload(arrays, [None] * len(receipts))

    return write


def _relay(chunk: pa.Table) -> Iterator[pa.RecordBatch]:
    for start in range(0, chunk.num_rows, ROWS_PER_RELAY):
        for _, some in pieces(chunk.slice(start, ROWS_PER_RELAY)):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, some.schema) as stream:
                stream.write_table(some)
            arrays = [pa.nulls(1, f.type) for f in RECEIPT_SCHEMA]
            yield _with_payload(arrays, [sink.getvalue().to_pybytes()])


def _with_payload(arrays: list[pa.Array], payloads: list[bytes | None]) -> pa.RecordBatch:
    payload = pa.array(payloads, type=pa.binary())
    return pa.RecordBatch.from_arrays([*arrays, payload], schema=SCAN_SCHEMA)


def relayed_rows(payload: bytes) -> pa.Table:
    """The rows that a task relayed."""
    with pa.ipc.open_stream(payload) as stream:
        return stream.read_all()


@dataclass(frozen=True, kw_only=True)
class IndexRead:
    """A query of an index in slices; all but the tenants are ClickHouse expressions."""

    endpoint: Endpoint
    rows: str
    columns: tuple[str, ...]
    bucket: str
    tenant: str | None
    tenants: tuple[str, ...]
    json: tuple[str, ...] = ()
    """Columns of JSON, which ClickHouse writes in its own order."""

    def batches(self, slice_: int) -> Iterator[pa.RecordBatch]:
        """The rows of one slice; strings come as bytes, which may not be UTF-8."""
        selected = f"SELECT {', '.join(self.columns)} FROM {self.rows}"
        query = f"{selected} WHERE {self.bucket} = {{slice:UInt32}}"
        if self.tenant is not None:
            query += f" AND toString({self.tenant}) IN {{tenants:Array(String)}}"
        parameters = {"slice": slice_, "tenants": list(self.tenants)}
        settings = {"output_format_arrow_string_as_string": 0, **self.endpoint.read_settings}
        with (
            self.endpoint.errors("read the index"),
            self.endpoint.client().query_arrow_stream(
                query, parameters=parameters, settings=settings
            ) as stream,
        ):
            yield from stream


def canonical_rows(json: tuple[str, ...]) -> Mapped:
    """Rows in, the same out, the JSON in these columns written as `reading_index` writes it."""

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from canonical(pa.table(batch), json).to_batches()

    return rows


def respelled_rows(stored: Mapping[str, Stored]) -> Mapped:
    """Rows in, the same out, these columns written as ClickHouse gives them back."""

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            table = pa.table(batch)
            for name, kept in stored.items():
                at = table.schema.get_field_index(name)
                table = table.set_column(at, table.field(at), respelled(table[name], kept))
            yield from table.to_batches()

    return rows


def placed_rows(placement: Placement) -> Mapped:
    """Rows in, those out that are the shard's."""

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from placement.mine(pa.table(batch)).to_batches()

    return rows


def reading_index(read: IndexRead, spark_schema: Any) -> Mapped:
    """`read` as `mapInArrow` wants it: batches of slice numbers in, rows of `spark_schema` out."""

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(spark_schema, timezone="UTC")
        for batch in batches:
            for slice_ in batch["id"].to_pylist():
                for found in map(pa.table, read.batches(slice_)):
                    yield from canonical(restored(found, schema), read.json).to_batches()

    return rows
