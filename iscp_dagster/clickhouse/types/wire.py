"""Arrow columns as they go to ClickHouse, part by part, and as they come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from iscp_dagster.clickhouse.connect.quoting import ident, text
from iscp_dagster.clickhouse.types.cells import BLANKS, DEFAULT, family
from iscp_dagster.clickhouse.types.leaves import Misfit
from iscp_dagster.clickhouse.types.stored import Stored, default_type
from iscp_dagster.clickhouse.types.typetext import ChType, of, parsed
from iscp_dagster.model.declared.schema import Array, Map, Struct

Change = Callable[[pa.Array, Stored], pa.Array]


def sent(column: pa.ChunkedArray, stored: Stored) -> pa.ChunkedArray:
    """The column as ClickHouse takes it in. Raises Misfit, which says why."""
    made = [_fitted(chunk, stored) for chunk in column.chunks]
    return pa.chunked_array(made) if made else column


def misfits(column: pa.ChunkedArray, stored: Stored, start: int = 0) -> Iterator[tuple[int, str]]:
    """The rows whose value is not held, one by one, with the reason; found by halving."""
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
    """A value that is held, as the source would have it, for a row that is gone."""
    if stored.takes_nulls:
        return None
    if isinstance(stored.source, Array | Map):
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
    """The expression by which ClickHouse hands the column back as Arrow can take it."""
    read = _read(stored)
    column = ident(name)
    return column if read == stored.type else f"CAST({column}, {text(str(read))}) AS {column}"


def restored(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """What ClickHouse hands back, as the source's types; texts need not be UTF-8."""
    columns = []
    for column, field in zip(table.columns, schema, strict=True):
        options = pc.CastOptions(target_type=_as_text(column.type), allow_invalid_utf8=True)
        columns.append(column.cast(options=options).cast(field.type))
    return pa.table(columns, schema=schema)


def _read(stored: Stored) -> ChType:
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


def _as_text(type_: pa.DataType) -> pa.DataType:
    """Less bytes: Arrow reads dates and the like out of texts only."""
    if pa.types.is_map(type_):
        return pa.map_(_as_text(type_.key_type), _as_text(type_.item_type))
    if pa.types.is_list(type_):
        return pa.list_(_as_text(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([(field.name, _as_text(field.type)) for field in type_])
    binary = pa.types.is_binary(type_) or pa.types.is_fixed_size_binary(type_)
    return pa.string() if binary else type_


def respelled(column: pa.ChunkedArray, stored: Stored) -> pa.ChunkedArray:
    """The column with what ClickHouse gives back otherwise than it was written, written so."""
    made = [_respelled(chunk, stored) for chunk in column.chunks]
    return pa.chunked_array(made) if made else column


def respells(stored: Stored) -> bool:
    """Whether the column, or a part of it, may be given back otherwise than it was written."""
    if _has_parts(stored):
        return any(map(respells, stored.members))
    return stored.leaf[0].respell is not None and not stored.as_written


def _respelled(values: pa.Array, stored: Stored) -> pa.Array:
    if _has_parts(stored):
        return _by_part(values, stored, _respelled)
    respell = stored.leaf[0].respell
    return values if respell is None else respell(values)


def _fitted(values: pa.Array, stored: Stored) -> pa.Array:
    if values.null_count and not stored.takes_nulls:
        raise Misfit(f"{stored.type} holds no null")
    if _has_parts(stored):
        return _by_part(values, stored, _fitted)
    cell, kept = stored.leaf
    holds = f"{kept} holds {cell.holds}"
    try:
        made = cell.fit(values, kept)
    except (Misfit, pa.ArrowException) as error:
        raise Misfit(holds) from error
    if stored.as_written and cell.respell is not None and not made.equals(values):
        raise Misfit(holds)
    return made


def _has_parts(stored: Stored) -> bool:
    return isinstance(stored.source, Array | Map | Struct)


def _by_part(values: pa.Array, stored: Stored, change: Change) -> pa.Array:
    """The values with each part of them changed; the same ones where no part is."""
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
    """From 0 on, also of a slice."""
    return pc.subtract(values.offsets, values.offsets[0])


def _within(values: pa.Array, inner: pa.Array) -> pa.Array:
    """The part of a list's content that a slice of it has."""
    first, last = values.offsets[0].as_py(), values.offsets[-1].as_py()
    return inner.slice(first, last - first)
