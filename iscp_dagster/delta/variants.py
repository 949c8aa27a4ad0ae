"""Variants as JSON text: with Arrow, Spark hands over no null variants, and others as bytes."""

from __future__ import annotations

from typing import Any

from iscp_dagster.model.declared.schema import Array, DeltaType, Map, Primitive, Struct

VARIANT = Primitive("variant")


def has_variant(type_: DeltaType) -> bool:
    """Whether a value of the type may hold a variant."""
    if isinstance(type_, Array):
        return has_variant(type_.element)
    if isinstance(type_, Map):
        return has_variant(type_.value)
    if isinstance(type_, Struct):
        return any(has_variant(field.type) for field in type_.fields)
    return type_ == VARIANT


def render_variants(column: Any, type_: DeltaType) -> Any:
    """The Spark column with `to_json` of each variant in it; nulls stay null."""
    from pyspark.sql.connect import functions as F  # noqa: N812 - the name everyone knows

    if isinstance(type_, Array) and has_variant(type_):
        return F.transform(column, lambda element: render_variants(element, type_.element))
    if isinstance(type_, Map) and has_variant(type_):
        return F.transform_values(column, lambda _, value: render_variants(value, type_.value))
    if isinstance(type_, Struct) and has_variant(type_):
        fields = (render_variants(column[f.name], f.type).alias(f.name) for f in type_.fields)
        return F.when(column.isNotNull(), F.struct(*fields))
    return F.to_json(column) if type_ == VARIANT else column
