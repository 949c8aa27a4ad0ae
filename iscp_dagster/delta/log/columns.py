"""What readers see of a table's columns, as a value. Pure.

Two schemas with the same value show the same rows in the same way; a comment, a property or a
constraint is no part of it. Where it differs, also rows that no commit has touched may read
otherwise: under another name, as null, as another type.
"""

from __future__ import annotations

from collections.abc import Collection

from iscp_dagster.model.declared.schema import Array, DeltaField, DeltaType, Map, Struct

VisibleColumns = frozenset[tuple[str, str, str, bool]]
"""Of each column: its name, its name in the files, its type with names in the files, and whether
Spark pads it. Without their order, and without whether they may be null: a row that stays shows
neither."""


def visible_columns(fields: Collection[DeltaField]) -> VisibleColumns:
    """What a reader sees of these columns, nested ones too."""
    return frozenset(map(_visible, fields))


def _visible(field: DeltaField) -> tuple[str, str, str, bool]:
    return field.name, field.physical or field.name, visible_type(field.type), field.padded


def visible_type(type_: DeltaType) -> str:
    """The type as readers see it, as text; a struct's fields in the order that an index keeps."""
    if isinstance(type_, Struct):
        return f"struct<{','.join(repr(_visible(each)) for each in type_.fields)}>"
    if isinstance(type_, Array):
        return f"array<{visible_type(type_.element)}>"
    if isinstance(type_, Map):
        return f"map<{visible_type(type_.key)},{visible_type(type_.value)}>"
    return str(type_)
