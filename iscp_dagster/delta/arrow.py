"""Arrow's types for Delta's, and casts of a file's values to the table's current type."""

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
"""By Delta type, the Arrow types of a file's column that Spark reads as it."""


def is_known(type_: DeltaType) -> bool:
    """Whether Arrow has the type, and reads it from Parquet as Spark does."""
    if isinstance(type_, Decimal):
        return True
    if isinstance(type_, Primitive):
        return type_.name in PRIMITIVES or type_.name in TIMES
    return all(map(is_known, parts(type_)))


def parts(type_: DeltaType) -> tuple[DeltaType, ...]:
    """The types directly within a type."""
    if isinstance(type_, Struct):
        return tuple(each.type for each in type_.fields)
    if isinstance(type_, Map):
        return type_.key, type_.value
    return (type_.element,) if isinstance(type_, Array) else ()


def is_flat(type_: DeltaType) -> bool:
    """Whether nothing inside it can gain or lose fields."""
    return not isinstance(type_, Struct | Map) and all(map(is_flat, parts(type_)))


def has_times(type_: DeltaType) -> bool:
    """Whether there are dates or times in it."""
    if isinstance(type_, Primitive):
        return type_.name == "date" or type_.name in TIMES
    return any(map(has_times, parts(type_)))


def arrow_type(type_: DeltaType) -> pa.DataType:
    """The Arrow type in which Spark hands over a column of this type."""
    import pyarrow as pa

    if isinstance(type_, Decimal):
        return pa.decimal128(type_.precision, type_.scale)
    if isinstance(type_, Array):
        return pa.list_(arrow_type(type_.element))
    if isinstance(type_, Map):
        return pa.map_(arrow_type(type_.key), arrow_type(type_.value))
    if isinstance(type_, Struct):
        return pa.struct([(each.name, arrow_type(each.type)) for each in type_.fields])
    name = str(type_)
    if name in PRIMITIVES:
        made: pa.DataType = getattr(pa, PRIMITIVES[name])()
        return made
    return pa.timestamp("us", tz="UTC" if name == "timestamp" else None)


def is_stored_as(type_: DeltaType, held: pa.DataType) -> bool:
    """Whether Spark reads a column of this type from a file that stores it as `held`.

    Arrow also casts what Spark refuses: numbers to text, times to dates.
    """
    from pyarrow import types

    held = held.value_type if types.is_dictionary(held) else held
    if isinstance(type_, Decimal):
        return bool(held == arrow_type(type_))
    name = type_.name if isinstance(type_, Primitive) else type(type_).__name__
    if name in TIMES:
        return bool(types.is_timestamp(held) and held.unit in {"us", "ms"})
    if name in NARROW:
        return bool(types.is_signed_integer(held) and held.bit_width <= NARROW_BITS)
    return any(getattr(types, f"is_{stored}")(held) for stored in STORED[name])


def fitted(column: pa.Array, type_: DeltaType) -> pa.Array:
    """A file's values as `type_`: fields matched by physical name, null where missing."""
    import pyarrow as pa

    wanted = arrow_type(type_)
    if is_flat(type_):
        return column if column.type == wanted else column.cast(wanted)
    if column.offset:
        # Arrow cannot build lists from the offsets of a slice.
        column = pa.concat_arrays([column])
    if isinstance(type_, Struct):
        return _struct(column, type_, wanted)
    mask = column.is_null() if column.null_count else None
    if isinstance(type_, Map):
        keys, items = fitted(column.keys, type_.key), fitted(column.items, type_.value)
        return pa.MapArray.from_arrays(column.offsets, keys, items, wanted, mask=mask)
    assert isinstance(type_, Array)
    if not pa.types.is_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    values = fitted(column.values, type_.element)
    return pa.ListArray.from_arrays(column.offsets, values, wanted, mask=mask)


def _struct(column: pa.StructArray, type_: Struct, wanted: Any) -> pa.StructArray:
    import pyarrow as pa

    held = {each.name: number for number, each in enumerate(column.type)}
    children = [
        fitted(column.field(held[each.physical or each.name]), each.type)
        if (each.physical or each.name) in held
        else pa.nulls(len(column), arrow_type(each.type))
        for each in type_.fields
    ]
    mask = column.is_null() if column.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(wanted), mask=mask)
