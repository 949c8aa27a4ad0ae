"""How Spark's executors convert rows, and read them from an index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.types.storage import StoredType
from iscp_dagster.clickhouse.types.texts import normalize_json_columns
from iscp_dagster.clickhouse.types.wire import decode_rows, respell_column
from iscp_dagster.clickhouse.write.shard_selection import ShardSelector
from iscp_dagster.spark.columns import Mapped


def pass_through(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches as Spark gives them: they already are the rows."""
    return iter(batches)


@dataclass(frozen=True, kw_only=True)
class IndexRead:
    """A query of an index in slices; all but the tenants are ClickHouse expressions."""

    endpoint: ClickHouseEndpoint
    from_clause: str
    columns: tuple[str, ...]
    bucket: str
    tenant_expression: str | None
    tenants: tuple[str, ...]
    json: tuple[str, ...] = ()
    """Columns of JSON, which ClickHouse writes in its own order."""

    def read_slice(self, slice_: int) -> Iterator[pa.RecordBatch]:
        """The rows of one slice; strings come as bytes, which may not be UTF-8."""
        selected = f"SELECT {', '.join(self.columns)} FROM {self.from_clause}"
        query = f"{selected} WHERE {self.bucket} = {{slice:UInt32}}"
        if self.tenant_expression is not None:
            query += f" AND toString({self.tenant_expression}) IN {{tenants:Array(String)}}"
        parameters = {"slice": slice_, "tenants": list(self.tenants)}
        settings = {"output_format_arrow_string_as_string": 0, **self.endpoint.read_settings}
        with (
            self.endpoint.translate_errors("read the index"),
            self.endpoint.get_client().query_arrow_stream(
                query, parameters=parameters, settings=settings
            ) as stream,
        ):
            yield from stream


def make_json_rewriter(json: tuple[str, ...]) -> Mapped:
    """A function that rewrites the JSON in these columns as `make_index_reader` writes it."""

    def rewrite_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from normalize_json_columns(pa.table(batch), json).to_batches()

    return rewrite_batches


def make_value_rewriter(stored: Mapping[str, StoredType], flags: Mapping[str, str]) -> Mapped:
    """A function that rewrites these columns as ClickHouse gives them back.

    It adds the `flags`: by name, the column whose nulls the flag marks.
    """

    def rewrite_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            table = pa.table(batch)
            nulls = {flag: table[name].is_null() for flag, name in flags.items()}
            for name, stored_type in stored.items():
                position = table.schema.get_field_index(name)
                table = table.set_column(position, name, respell_column(table[name], stored_type))
            for flag, column in nulls.items():
                table = table.append_column(flag, column)
            yield from table.to_batches()

    return rewrite_batches


def make_shard_filter(placement: ShardSelector) -> Mapped:
    """A function that keeps only the shard's rows."""

    def filter_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from placement.select_rows(pa.table(batch)).to_batches()

    return filter_batches


def make_index_reader(read: IndexRead, spark_schema: Any) -> Mapped:
    """`read` for `mapInArrow`: batches of slice numbers in, rows of `spark_schema` out."""

    def read_slices(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(spark_schema, timezone="UTC")
        for batch in batches:
            for slice_ in batch["id"].to_pylist():
                for table in map(pa.table, read.read_slice(slice_)):
                    yield from normalize_json_columns(
                        decode_rows(table, schema), read.json
                    ).to_batches()

    return read_slices
