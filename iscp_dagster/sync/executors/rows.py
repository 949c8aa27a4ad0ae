"""How Spark's executors convert rows on their way, and read them from an index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.clickhouse.types.stored import Stored
from iscp_dagster.clickhouse.types.texts import canonical
from iscp_dagster.clickhouse.types.wire import respelled, restored
from iscp_dagster.clickhouse.write.placement import Placement
from iscp_dagster.spark.columns import Mapped


def as_they_are(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches as Spark gives them: they already are the rows."""
    return iter(batches)


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
    """A function that rewrites the JSON in these columns as `reading_index` writes it."""

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from canonical(pa.table(batch), json).to_batches()

    return rows


def respelled_rows(stored: Mapping[str, Stored], flags: Mapping[str, str]) -> Mapped:
    """A function that rewrites these columns as ClickHouse gives them back.

    It adds the `flags`: by name, of which column they tell whether it is null.
    """

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            table = pa.table(batch)
            nulls = {flag: table[name].is_null() for flag, name in flags.items()}
            for name, kept in stored.items():
                at = table.schema.get_field_index(name)
                table = table.set_column(at, name, respelled(table[name], kept))
            for flag, column in nulls.items():
                table = table.append_column(flag, column)
            yield from table.to_batches()

    return rows


def placed_rows(placement: Placement) -> Mapped:
    """A function that keeps only the shard's rows."""

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
