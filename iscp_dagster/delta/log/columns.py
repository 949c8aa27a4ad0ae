"""What readers see of a table's columns, as a value. Pure.

Two schemas with the same value show the same rows in the same way; comments, properties and
constraints are not part of it. If it differs, even rows that no commit touched may read
differently: under another name, as null, as another type.
"""

from __future__ import annotations

from collections.abc import Collection

from iscp_dagster.model.declared.schema import Array, DeltaField, DeltaType, Map, Struct

VisibleColumns = frozenset[tuple[str, str, str, bool]]
"""For each column: its name, its name in the files, its type with names in the files, and whether
Spark pads it. Without order and nullability: an existing row shows neither."""


def get_visible_columns(fields: Collection[DeltaField]) -> VisibleColumns:
    """What a reader sees of these columns, nested ones too."""
    return frozenset(map(_describe_column, fields))


def _describe_column(field: DeltaField) -> tuple[str, str, str, bool]:
    return field.name, field.physical or field.name, format_visible_type(field.type), field.padded


def format_visible_type(type_: DeltaType) -> str:
    """The type as readers see it, as text; a struct's fields in the order that an index keeps."""
    if isinstance(type_, Struct):
        return f"struct<{','.join(repr(_describe_column(field)) for field in type_.fields)}>"
    if isinstance(type_, Array):
        return f"array<{format_visible_type(type_.element)}>"
    if isinstance(type_, Map):
        return f"map<{format_visible_type(type_.key)},{format_visible_type(type_.value)}>"
    return str(type_)
