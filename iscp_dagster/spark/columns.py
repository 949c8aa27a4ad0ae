"""Columns of Spark frames by their names, whatever characters those hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from iscp_dagster.spark.quoting import quote_identifier

Mapped = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What `mapInArrow` takes."""

_PLAIN = re.compile(r"\w+", re.ASCII)


def get_column(*path: str) -> Any:
    """The column of that name; for a nested field, give the path of names."""
    from pyspark.sql.connect import functions as F  # noqa: N812 - the name everyone knows

    return F.col(quote_identifier(*path))


def get_columns(names: Sequence[str]) -> list[Any]:
    """The columns of these names."""
    return [get_column(name) for name in names]


def to_spark_schema(schema: pa.Schema) -> Any:
    """The Spark schema for an Arrow one; the server would have to parse a schema given as text."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def build_respelled_schema(
    schema: Any, texts: Collection[str] = (), flags: Collection[str] = ()
) -> Any:
    """The Spark schema with nulls allowed at any depth; the columns `texts` are text.

    Boolean columns `flags` come after the others.
    """
    from pyspark.sql.types import BooleanType, StringType, StructField, StructType

    return StructType(
        [
            StructField(
                field.name,
                StringType() if field.name in texts else _make_type_nullable(field.dataType),
            )
            for field in schema.fields
        ]
        + [StructField(flag, BooleanType()) for flag in flags]
    )


def _make_type_nullable(type_: Any) -> Any:
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    if isinstance(type_, ArrayType):
        return ArrayType(_make_type_nullable(type_.elementType))
    if isinstance(type_, MapType):
        return MapType(_make_type_nullable(type_.keyType), _make_type_nullable(type_.valueType))
    if isinstance(type_, StructType):
        return StructType(
            [StructField(field.name, _make_type_nullable(field.dataType)) for field in type_.fields]
        )
    return type_


def map_in_arrow(
    frame: Any, function: Mapped, schema: Any, names: Sequence[str] | None = None
) -> Any:
    """Call `frame.mapInArrow`, which by itself takes names as expressions: `a.b` as a field of `a`.

    Giving the `names` of its columns saves asking the server for them.
    """
    names = list(frame.columns if names is None else names)
    if all(map(_PLAIN.fullmatch, names)):
        return frame.mapInArrow(function, schema)
    numbered = frame.toDF(*(f"c{number}" for number, _ in enumerate(names)))
    return numbered.mapInArrow(_restore_names(function, names), schema)


def _restore_names(function: Mapped, names: list[str]) -> Mapped:
    """`function`, given batches renamed back to these names."""

    def map_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return function(batch.rename_columns(names) for batch in batches)

    return map_batches
