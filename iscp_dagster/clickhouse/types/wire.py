"""Converts Arrow columns for ClickHouse, part by part, and converts them back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from iscp_dagster.clickhouse.connect.quoting import ident, text
from iscp_dagster.clickhouse.types.cells import BLANKS, DEFAULT, family
from iscp_dagster.clickhouse.types.jsontext import json_texts, json_texts_or_null
from iscp_dagster.clickhouse.types.leaves import Misfit, one_per_key
from iscp_dagster.clickhouse.types.stored import Stored, default_type
from iscp_dagster.clickhouse.types.typetext import ChType, of, parsed
from iscp_dagster.model.declared.schema import Array, Map, Struct

Change = Callable[[pa.Array, Stored], pa.Array]
NO_NULL = "holds no null"
"""Said of a type, in a Misfit."""


def sent(column: pa.ChunkedArray, stored: Stored) -> pa.ChunkedArray:
    """Convert the column to what ClickHouse accepts. Raises Misfit, which says why."""
    made = [_fitted(chunk, stored) for chunk in column.chunks]
    return pa.chunked_array(made) if made else column


def misfits(column: pa.ChunkedArray, stored: Stored, start: int = 0) -> Iterator[tuple[int, str]]:
    """Yield each row whose value is not held, with the reason; search by halving."""
    try:
        sent(column, stored)
    except Misfit as error:
        rows = len(column)
        if rows == 1:
            yield start, str(error)
            return
        half = rows // 2
        yield from misfits(column.slice(0, half), stored, start)
        yield from misfits(column.slice(half), stored, start + half)


def blank(stored: Stored) -> Any:
    """Return a value of the source's type that is held, as filler for a deleted row."""
    if stored.takes_nulls:
        return None
    if stored.is_text or isinstance(stored.source, Array | Map):
        return []
    if isinstance(stored.source, Struct):
        fields = stored.source.fields
        return {f.name: blank(each) for f, each in zip(fields, stored.members, strict=True)}
    cell, kept = stored.leaf
    if kept.name == "FixedString":
        return b"\0" * kept.numbers[0]
    if kept.names:
        return kept.names[0]
    return BLANKS.get(family(stored.source) or "", 0) if cell.blank is None else cell.blank


def selected(name: str, stored: Stored) -> str:
    """Return the expression that selects the column in a form that Arrow can read."""
    read = _read(stored)
    column = ident(name)
    # A structure may have more fields in the table than in the source.
    as_it_is = read == stored.type and not _has_fields(read)
    return column if as_it_is else f"CAST({column}, {text(str(read))}) AS {column}"


def restored(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Convert ClickHouse's result to the source's types; texts need not be UTF-8."""
    columns = []
    for column, field in zip(table.columns, schema, strict=True):
        options = pc.CastOptions(target_type=_as_text(column.type), allow_invalid_utf8=True)
        columns.append(column.cast(options=options).cast(field.type))
    return pa.table(columns, schema=schema)


def _read(stored: Stored) -> ChType:
    if stored.is_text:
        return stored.type
    members = stored.members
    if isinstance(stored.source, Array | Map):
        return of("Array" if isinstance(stored.source, Array) else "Map", *map(_read, members))
    if isinstance(stored.source, Struct):
        names = tuple(each.name for each in stored.source.fields)
        return ChType(name="Tuple", parts=tuple(map(_read, members)), names=names)
    cell, kept = stored.leaf
    if cell.read == DEFAULT:
        kept = default_type(stored.source)
    elif cell.read is not None:
        kept = parsed(cell.read)
    return of("Nullable", kept) if stored.takes_nulls else kept


def _has_fields(type_: ChType) -> bool:
    return type_.name == "Tuple" or any(map(_has_fields, type_.parts))


def _as_text(type_: pa.DataType) -> pa.DataType:
    """Replace binary by string: Arrow parses dates and the like from strings only."""
    if pa.types.is_map(type_):
        return pa.map_(_as_text(type_.key_type), _as_text(type_.item_type))
    if pa.types.is_list(type_):
        return pa.list_(_as_text(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([(field.name, _as_text(field.type)) for field in type_])
    binary = pa.types.is_binary(type_) or pa.types.is_fixed_size_binary(type_)
    return pa.string() if binary else type_


def respelled(column: pa.ChunkedArray, stored: Stored) -> pa.ChunkedArray:
    """Rewrite the column's values as ClickHouse returns them, where that differs."""
    made = [_respelled(chunk, stored) for chunk in column.chunks]
    return pa.chunked_array(made) if made else column


def respells(stored: Stored) -> bool:
    """Whether ClickHouse may return the column, or a part of it, written differently."""
    if stored.has_parts:
        return stored.fills or any(map(respells, stored.members))
    if stored.is_text:
        return True
    return stored.leaf[0].respell is not None and not stored.as_written


def _respelled(values: pa.Array, stored: Stored) -> pa.Array:
    if stored.is_text:
        # What no text holds is in no index, so it is not compared.
        return json_texts_or_null(values, stored.source)
    if stored.has_parts:
        return _by_part(_filled(values, stored), stored, _respelled)
    respell = stored.leaf[0].respell
    return values if respell is None else respell(values)


def _fitted(values: pa.Array, stored: Stored) -> pa.Array:
    values = _filled(values, stored)
    if values.null_count and not stored.takes_nulls:
        raise Misfit(f"{stored.type} {NO_NULL}")
    if stored.is_text:
        return json_texts(values, stored.source)
    if stored.has_parts:
        return _by_part(values, stored, _fitted)
    cell, kept = stored.leaf
    holds = f"{kept} holds {cell.holds}"
    values = one_per_key(values) if stored.key else values
    try:
        made = cell.fit(values, kept)
    except (Misfit, pa.ArrowException) as error:
        raise Misfit(holds) from error
    if stored.as_written and cell.respell is not None and not made.equals(values):
        raise Misfit(holds)
    return made


def _filled(values: pa.Array, stored: Stored) -> pa.Array:
    """Put empty arrays and maps, and structs of nulls, in place of nulls, where `stored` does."""
    if not (values.null_count and stored.fills):
        return values
    empty: Any = {} if isinstance(stored.source, Struct) else []
    rows = pa.array(range(len(values)), pa.int64())
    places = pc.if_else(values.is_null(), len(values), rows)
    return pa.concat_arrays([values, pa.array([empty], values.type)]).take(places)


def _by_part(values: pa.Array, stored: Stored, change: Change) -> pa.Array:
    """Apply `change` to each part of the values; return the same values if no part changed."""
    old = _parts(values)
    new = [change(part, each) for part, each in zip(old, stored.members, strict=True)]
    if all(made is part for made, part in zip(new, old, strict=True)):
        return values
    nulls = values.is_null() if values.null_count else None
    if isinstance(stored.source, Struct):
        return pa.StructArray.from_arrays(new, [each.name for each in values.type], mask=nulls)
    kind = pa.MapArray if isinstance(stored.source, Map) else pa.ListArray
    return kind.from_arrays(_offsets(values), *new, mask=nulls)


def _parts(values: pa.Array) -> list[pa.Array]:
    if pa.types.is_struct(values.type):
        return list(values.flatten())
    inside = [values.keys, values.items] if pa.types.is_map(values.type) else [values.values]
    return [_within(values, each) for each in inside]


def _offsets(values: pa.Array) -> pa.Array:
    """Return offsets that start at 0, even for a slice."""
    return pc.subtract(values.offsets, values.offsets[0])


def _within(values: pa.Array, inner: pa.Array) -> pa.Array:
    """Return the part of a list's content that belongs to a slice of it."""
    first, last = values.offsets[0].as_py(), values.offsets[-1].as_py()
    return inner.slice(first, last - first)
