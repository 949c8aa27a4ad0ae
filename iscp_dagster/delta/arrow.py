"""Arrow types for Delta types, and casts of a file's values to the table's current type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iscp_dagster.model.declared.schema import Array, Decimal, DeltaType, Map, Primitive, Struct

if TYPE_CHECKING:
    import pyarrow as pa

PRIMITIVES = {
    "string": "string",
    "byte": "int8",
    "short": "int16",
    "integer": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "boolean": "bool_",
    "binary": "binary",
    "date": "date32",
}
TIMES = frozenset({"timestamp", "timestamp_ntz"})
NARROW, NARROW_BITS = frozenset({"byte", "short", "integer"}), 32
"""Parquet stores all of these as one integer type."""
STORED = {
    "Array": ("list", "large_list", "fixed_size_list", "list_view", "large_list_view"),
    "Map": ("map",),
    "Struct": ("struct",),
    "string": ("string", "large_string", "string_view"),
    "binary": ("binary", "large_binary", "binary_view"),
    "long": ("int64",),
    "float": ("float32",),
    "double": ("float64",),
    "boolean": ("boolean",),
    "date": ("date32",),
}
"""By Delta type, the Arrow types of a file's column that Spark reads as this type."""


def is_known(type_: DeltaType) -> bool:
    """Whether Arrow has the type, and reads it from Parquet as Spark does."""
    if isinstance(type_, Decimal):
        return True
    if isinstance(type_, Primitive):
        return type_.name in PRIMITIVES or type_.name in TIMES
    return all(map(is_known, list_inner_types(type_)))


def list_inner_types(type_: DeltaType) -> tuple[DeltaType, ...]:
    """The types nested directly in a type."""
    if isinstance(type_, Struct):
        return tuple(field.type for field in type_.fields)
    if isinstance(type_, Map):
        return type_.key, type_.value
    return (type_.element,) if isinstance(type_, Array) else ()


def is_flat(type_: DeltaType) -> bool:
    """Whether no part of the type can gain or lose fields."""
    return not isinstance(type_, Struct | Map) and all(map(is_flat, list_inner_types(type_)))


def has_times(type_: DeltaType) -> bool:
    """Whether the type contains dates or times."""
    if isinstance(type_, Primitive):
        return type_.name == "date" or type_.name in TIMES
    return any(map(has_times, list_inner_types(type_)))


def to_arrow_type(type_: DeltaType) -> pa.DataType:
    """The Arrow type in which Spark hands over a column of this type."""
    import pyarrow as pa

    if isinstance(type_, Decimal):
        return pa.decimal128(type_.precision, type_.scale)
    if isinstance(type_, Array):
        return pa.list_(to_arrow_type(type_.element))
    if isinstance(type_, Map):
        return pa.map_(to_arrow_type(type_.key), to_arrow_type(type_.value))
    if isinstance(type_, Struct):
        return pa.struct([(field.name, to_arrow_type(field.type)) for field in type_.fields])
    name = str(type_)
    if name in PRIMITIVES:
        arrow_type: pa.DataType = getattr(pa, PRIMITIVES[name])()
        return arrow_type
    return pa.timestamp("us", tz="UTC" if name == "timestamp" else None)


def is_stored_as(type_: DeltaType, arrow_type: pa.DataType) -> bool:
    """Whether Spark reads a column of this type from a file that stores it as `arrow_type`.

    Arrow also casts what Spark refuses: numbers to text, times to dates.
    """
    from pyarrow import types

    arrow_type = arrow_type.value_type if types.is_dictionary(arrow_type) else arrow_type
    if isinstance(type_, Decimal):
        return bool(arrow_type == to_arrow_type(type_))
    name = type_.name if isinstance(type_, Primitive) else type(type_).__name__
    if name in TIMES:
        return bool(types.is_timestamp(arrow_type) and arrow_type.unit in {"us", "ms"})
    if name in NARROW:
        return bool(types.is_signed_integer(arrow_type) and arrow_type.bit_width <= NARROW_BITS)
    return any(getattr(types, f"is_{stored}")(arrow_type) for stored in STORED[name])


def cast_to_type(column: pa.Array, type_: DeltaType) -> pa.Array:
    """A file's values as `type_`: fields matched by physical name, null where missing."""
    import pyarrow as pa

    target = to_arrow_type(type_)
    if is_flat(type_):
        return column if column.type == target else column.cast(target)
    if column.offset:
        # Arrow cannot build lists from the offsets of a slice.
        column = pa.concat_arrays([column])
    if isinstance(type_, Struct):
        return _cast_struct(column, type_, target)
    mask = column.is_null() if column.null_count else None
    if isinstance(type_, Map):
        keys, items = cast_to_type(column.keys, type_.key), cast_to_type(column.items, type_.value)
        return pa.MapArray.from_arrays(column.offsets, keys, items, target, mask=mask)
    assert isinstance(type_, Array)
    if not pa.types.is_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    values = cast_to_type(column.values, type_.element)
    return pa.ListArray.from_arrays(column.offsets, values, target, mask=mask)


def _cast_struct(column: pa.StructArray, type_: Struct, target: Any) -> pa.StructArray:
    import pyarrow as pa

    indices = {field.name: index for index, field in enumerate(column.type)}
    children = [
        cast_to_type(column.field(indices[field.physical or field.name]), field.type)
        if (field.physical or field.name) in indices
        else pa.nulls(len(column), to_arrow_type(field.type))
        for field in type_.fields
    ]
    mask = column.is_null() if column.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)
