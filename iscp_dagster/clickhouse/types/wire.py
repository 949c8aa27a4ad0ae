"""Converts Arrow columns for ClickHouse, part by part, and converts them back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from iscp_dagster.clickhouse.connect.quoting import quote_identifier, quote_string
from iscp_dagster.clickhouse.types.cells import DEFAULT, FILLERS, get_family
from iscp_dagster.clickhouse.types.jsontext import to_json_texts, to_json_texts_or_null
from iscp_dagster.clickhouse.types.leaves import Misfit, unify_floats
from iscp_dagster.clickhouse.types.storage import StoredType, get_default_type
from iscp_dagster.clickhouse.types.type_parser import ClickHouseType, build_type, parse_type
from iscp_dagster.model.declared.schema import Array, Map, Struct

Change = Callable[[pa.Array, StoredType], pa.Array]
NO_NULL = "holds no null"
"""Follows the type in a Misfit's message."""


def encode_column(column: pa.ChunkedArray, stored: StoredType) -> pa.ChunkedArray:
    """Convert the column to what ClickHouse accepts. Raises Misfit, which says why."""
    chunks = [_encode_values(chunk, stored) for chunk in column.chunks]
    return pa.chunked_array(chunks) if chunks else column


def find_misfits(
    column: pa.ChunkedArray, stored: StoredType, start: int = 0
) -> Iterator[tuple[int, str]]:
    """Yield each row whose value is not held, with the reason; search by halving."""
    try:
        encode_column(column, stored)
    except Misfit as error:
        rows = len(column)
        if rows == 1:
            yield start, str(error)
            return
        half = rows // 2
        yield from find_misfits(column.slice(0, half), stored, start)
        yield from find_misfits(column.slice(half), stored, start + half)


def make_filler(stored: StoredType) -> Any:
    """Return a value of the source's type that is held, as filler for a deleted row."""
    if stored.can_hold_null:
        return None
    if stored.is_json_text or isinstance(stored.source, Array | Map):
        return []
    if isinstance(stored.source, Struct):
        fields = stored.source.fields
        return {
            f.name: make_filler(member) for f, member in zip(fields, stored.members, strict=True)
        }
    cell, type_ = stored.leaf
    if type_.name == "FixedString":
        return b"\0" * type_.numbers[0]
    if type_.names:
        return type_.names[0]
    return FILLERS.get(get_family(stored.source) or "", 0) if cell.filler is None else cell.filler


def render_select_item(name: str, stored: StoredType) -> str:
    """Return the expression that selects the column in a form that Arrow can read."""
    read = _get_read_type(stored)
    column = quote_identifier(name)
    # A structure may have more fields in the table than in the source.
    as_it_is = read == stored.type and not _has_fields(read)
    return column if as_it_is else f"CAST({column}, {quote_string(str(read))}) AS {column}"


def decode_rows(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Convert ClickHouse's result to the source's types; texts need not be UTF-8."""
    columns = []
    for column, field in zip(table.columns, schema, strict=True):
        options = pc.CastOptions(target_type=_to_text_type(column.type), allow_invalid_utf8=True)
        columns.append(column.cast(options=options).cast(field.type))
    return pa.table(columns, schema=schema)


def _get_read_type(stored: StoredType) -> ClickHouseType:
    if stored.is_json_text:
        return stored.type
    members = stored.members
    if isinstance(stored.source, Array | Map):
        return build_type(
            "Array" if isinstance(stored.source, Array) else "Map", *map(_get_read_type, members)
        )
    if isinstance(stored.source, Struct):
        names = tuple(field.name for field in stored.source.fields)
        return ClickHouseType(name="Tuple", parts=tuple(map(_get_read_type, members)), names=names)
    cell, type_ = stored.leaf
    if cell.read_type == DEFAULT:
        type_ = get_default_type(stored.source)
    elif cell.read_type is not None:
        type_ = parse_type(cell.read_type)
    return build_type("Nullable", type_) if stored.can_hold_null else type_


def _has_fields(type_: ClickHouseType) -> bool:
    return type_.name == "Tuple" or any(map(_has_fields, type_.parts))


def _to_text_type(type_: pa.DataType) -> pa.DataType:
    """Replace binary by string: Arrow parses dates and the like from strings only."""
    if pa.types.is_map(type_):
        return pa.map_(_to_text_type(type_.key_type), _to_text_type(type_.item_type))
    if pa.types.is_list(type_):
        return pa.list_(_to_text_type(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([(field.name, _to_text_type(field.type)) for field in type_])
    binary = pa.types.is_binary(type_) or pa.types.is_fixed_size_binary(type_)
    return pa.string() if binary else type_


def respell_column(column: pa.ChunkedArray, stored: StoredType) -> pa.ChunkedArray:
    """Rewrite the column's values as ClickHouse returns them, where that differs."""
    chunks = [_respell_values(chunk, stored) for chunk in column.chunks]
    return pa.chunked_array(chunks) if chunks else column


def needs_respelling(stored: StoredType) -> bool:
    """Whether ClickHouse may return the column, or a part of it, written differently."""
    if stored.is_composite:
        return stored.fills_nulls or any(map(needs_respelling, stored.members))
    if stored.is_json_text:
        return True
    return stored.leaf[0].respell is not None and not stored.verbatim


def _respell_values(values: pa.Array, stored: StoredType) -> pa.Array:
    if stored.is_json_text:
        # A value without a JSON text is in no index, so it is not compared.
        return to_json_texts_or_null(values, stored.source)
    if stored.is_composite:
        return _map_parts(_fill_nulls(values, stored), stored, _respell_values)
    respell = stored.leaf[0].respell
    return values if respell is None else respell(values)


def _encode_values(values: pa.Array, stored: StoredType) -> pa.Array:
    values = _fill_nulls(values, stored)
    if values.null_count and not stored.can_hold_null:
        raise Misfit(f"{stored.type} {NO_NULL}")
    if stored.is_json_text:
        return to_json_texts(values, stored.source)
    if stored.is_composite:
        return _map_parts(values, stored, _encode_values)
    cell, type_ = stored.leaf
    holds = f"{type_} holds {cell.domain}"
    values = unify_floats(values) if stored.is_key else values
    try:
        encoded = cell.fit_values(values, type_)
    except (Misfit, pa.ArrowException) as error:
        raise Misfit(holds) from error
    if stored.verbatim and cell.respell is not None and not encoded.equals(values):
        raise Misfit(holds)
    return encoded


def _fill_nulls(values: pa.Array, stored: StoredType) -> pa.Array:
    """Put empty arrays and maps, and structs of nulls, in place of nulls, where `stored` does."""
    if not (values.null_count and stored.fills_nulls):
        return values
    empty: Any = {} if isinstance(stored.source, Struct) else []
    rows = pa.array(range(len(values)), pa.int64())
    row_numbers = pc.if_else(values.is_null(), len(values), rows)
    return pa.concat_arrays([values, pa.array([empty], values.type)]).take(row_numbers)


def _map_parts(values: pa.Array, stored: StoredType, change: Change) -> pa.Array:
    """Apply `change` to each part of the values; return the same values if no part changed."""
    old = _list_parts(values)
    new = [change(part, member) for part, member in zip(old, stored.members, strict=True)]
    if all(changed is part for changed, part in zip(new, old, strict=True)):
        return values
    nulls = values.is_null() if values.null_count else None
    if isinstance(stored.source, Struct):
        return pa.StructArray.from_arrays(new, [field.name for field in values.type], mask=nulls)
    kind = pa.MapArray if isinstance(stored.source, Map) else pa.ListArray
    return kind.from_arrays(_compute_offsets(values), *new, mask=nulls)


def _list_parts(values: pa.Array) -> list[pa.Array]:
    if pa.types.is_struct(values.type):
        return list(values.flatten())
    contents = [values.keys, values.items] if pa.types.is_map(values.type) else [values.values]
    return [_slice_content(values, content) for content in contents]


def _compute_offsets(values: pa.Array) -> pa.Array:
    """Return offsets that start at 0, even for a slice."""
    return pc.subtract(values.offsets, values.offsets[0])


def _slice_content(values: pa.Array, inner: pa.Array) -> pa.Array:
    """Return the part of a list's content that belongs to a slice of it."""
    first, last = values.offsets[0].as_py(), values.offsets[-1].as_py()
    return inner.slice(first, last - first)
