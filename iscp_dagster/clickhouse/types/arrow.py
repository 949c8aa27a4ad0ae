"""Columns of Arrow tables in ClickHouse's types, by way of Delta's."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from deltalake import Schema

from iscp_dagster.clickhouse.types.default_types import to_clickhouse_type
from iscp_dagster.model.declared.schema import parse_schema
from iscp_dagster.model.errors import SchemaError

WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}
"""The signed types that hold all values of unsigned ones, which Delta's types lack."""
_MAY_BE_NOTHING = ("Nullable(", "Array(", "Map(", "LowCardinality(Nullable(")


def widen_types(rows: pa.Table) -> pa.Table:
    """The rows in types that Delta has: signed numbers, microseconds in UTC, no dictionaries.

    Raises SchemaError for a timestamp that has nanoseconds.
    """
    schema = pa.schema([field.with_type(_widen_type(field.type)) for field in rows.schema])
    try:
        return rows.cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaError(f"The frame has a value that cannot be kept: {error}.") from error


def derive_column_types(rows: pa.Table, existing: Mapping[str, str]) -> dict[str, str]:
    """The columns' ClickHouse types; a column without values has the table's type.

    Raises SchemaError for a type that ClickHouse lacks, or if none is known.
    """
    void = [field.name for field in rows.schema if field.type == pa.null()]
    if len(void) == rows.num_columns and (rows.num_rows or not void):
        raise SchemaError("The frame has no columns that have values. Return one that has some.")
    typed = rows.drop_columns(void)
    try:
        fields = parse_schema(Schema.from_arrow(typed.schema).to_json())
    except Exception as error:
        raise SchemaError(f"The frame has a column of an unknown type: {error}.") from error
    types = {
        field.name: to_clickhouse_type(field.type, nullable=field.nullable, column=field.name)
        for field in fields
    }
    types |= {
        name: _get_existing_type(name, existing.get(name, ""), rows.num_rows) for name in void
    }
    return {name: types[name] for name in rows.column_names}


def _get_existing_type(name: str, existing: str, rows: int) -> str:
    if not existing or (rows and not existing.startswith(_MAY_BE_NOTHING)):
        raise SchemaError(
            f"The frame's column {name!r} has no values, and so no type. Cast it to "
            f"{existing or 'one'}, or leave it out."
        )
    return existing


def _widen_type(type_: pa.DataType) -> pa.DataType:
    """The type that holds all values, also within lists, maps and structs."""
    if pa.types.is_dictionary(type_):
        return _widen_type(type_.value_type)
    if pa.types.is_timestamp(type_):
        return pa.timestamp("us", type_.tz and "UTC")
    if pa.types.is_map(type_):
        return pa.map_(
            _widen_type(type_.key_type), type_.item_field.with_type(_widen_type(type_.item_type))
        )
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_widen_type(field.type)) for field in type_])
    if (
        pa.types.is_list(type_)
        or pa.types.is_large_list(type_)
        or pa.types.is_fixed_size_list(type_)
    ):
        return pa.list_(type_.value_field.with_type(_widen_type(type_.value_type)))
    return WIDER.get(type_, type_)
