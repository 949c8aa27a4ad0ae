"""Rewrites values that Spark cannot compare or order into a form that it can.

Text does not work: `to_json` writes map keys of bytes or arrays as Java addresses, which differ
each time, and a cast turns {'a': 'b', 'c': 'd'} into {'a': 'b, c -> d'}.
"""

from __future__ import annotations

from typing import Any

from iscp_dagster.delta.variants import VARIANT
from iscp_dagster.model.declared.schema import Array, DeltaType, Map, Primitive, Struct

FLOATS = frozenset({Primitive("float"), Primitive("double")})


def to_comparable(column: Any, type_: DeltaType) -> Any:
    """The Spark column, with each map in it as the array of its entries; nulls stay null.

    Two values are equal if Spark considers their parts equal: 0.0 is -0.0, and NaN is NaN.
    """
    return _rewrite(column, type_, exact=False)


def to_orderable(column: Any, type_: DeltaType) -> Any:
    """The same, in a total order: different values never compare as equal.

    Floats and variants become text, since Spark orders 0.0 and -0.0 as equal, and variants not at
    all.
    """
    return _rewrite(column, type_, exact=True)


def _rewrite(column: Any, type_: DeltaType, *, exact: bool) -> Any:
    from pyspark.sql.connect import functions as F  # noqa: N812 - the name everyone knows

    if not _needs_rewrite(type_, exact=exact):
        return column
    if isinstance(type_, Array):
        element_type = type_.element
        return F.transform(column, lambda element: _rewrite(element, element_type, exact=exact))
    if isinstance(type_, Map):
        parts = {"key": type_.key, "value": type_.value}
        entries = F.map_entries(column)
        if not any(_needs_rewrite(part, exact=exact) for part in parts.values()):
            return entries
        return F.transform(entries, lambda entry: _rewrite_parts(entry, parts, exact=exact))
    if isinstance(type_, Struct):
        fields = {field.name: field.type for field in type_.fields}
        return F.when(column.isNotNull(), _rewrite_parts(column, fields, exact=exact))
    return F.to_json(column) if type_ == VARIANT else column.cast("string")


def _rewrite_parts(column: Any, types: dict[str, DeltaType], *, exact: bool) -> Any:
    from pyspark.sql.connect import functions as F  # noqa: N812 - the name everyone knows

    parts = ((name, _rewrite(column[name], part, exact=exact)) for name, part in types.items())
    return F.struct(*(part.alias(name) for name, part in parts))


def _needs_rewrite(type_: DeltaType, *, exact: bool) -> bool:
    """Whether a value of the type may contain something that Spark cannot compare, or order."""
    if isinstance(type_, Array):
        return _needs_rewrite(type_.element, exact=exact)
    if isinstance(type_, Struct):
        return any(_needs_rewrite(field.type, exact=exact) for field in type_.fields)
    return isinstance(type_, Map) or (exact and (type_ == VARIANT or type_ in FLOATS))
