"""How an index stores a column: by its Delta type's default, or as declared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from iscp_dagster.clickhouse.types.cells import CELLS, Cell, find_cell, get_family
from iscp_dagster.clickhouse.types.default_types import to_clickhouse_type
from iscp_dagster.clickhouse.types.nulls import EMPTY, FLAG, JSON, is_composite
from iscp_dagster.clickhouse.types.type_parser import (
    ClickHouseType,
    TypeTextError,
    build_type,
    parse_type,
)
from iscp_dagster.model.declared.schema import Array, Decimal, DeltaType, Map, Primitive, Struct
from iscp_dagster.model.errors import SchemaError

DYNAMIC_TYPES = ("Dynamic", "Variant")
"""Types that store each value's type with it, and hold nulls."""
UNORDERED = (*DYNAMIC_TYPES, "JSON")
"""Types that no key may have."""
LOW_CARDINALITY = (
    *("String", "FixedString", "UUID", "IPv4", "IPv6", "Date", "Date32", "DateTime", "Bool"),
    *("Int8", "Int16", "Int32", "Int64", "Int128", "Int256"),
    *("UInt8", "UInt16", "UInt32", "UInt64", "UInt128", "UInt256"),
)
"""Types allowed in LowCardinality: a dictionary of floats would turn 0.0 into -0.0."""
NUMBERS = {"FixedString": 1, "Decimal": 2, "DateTime64": 1}
"""How many numeric arguments a type takes."""
OPTIONS = {"max_dynamic_paths", "max_dynamic_types", "max_types"}


@dataclass(frozen=True, kw_only=True)
class StoredType:
    """Values of the Delta type `source`, kept as `type`."""

    source: DeltaType
    type: ClickHouseType
    verbatim: bool = False
    """Whether to hold only values that ClickHouse returns exactly as written."""
    is_key: bool = False
    """Whether it names rows, so that values which Spark considers equal are written alike."""
    nulls: str = EMPTY
    """The rule for null arrays, maps and structs within it."""

    @property
    def can_hold_null(self) -> bool:
        """Whether ClickHouse distinguishes a null here from a value."""
        return can_hold_null(self.type)

    @property
    def is_json_text(self) -> bool:
        """Whether an array, map or struct is kept as JSON text."""
        return self.nulls == JSON and is_composite(self.source)

    @property
    def is_composite(self) -> bool:
        """Whether it is kept as an array, a map or a tuple."""
        return is_composite(self.source) and not self.is_json_text

    @property
    def fills_nulls(self) -> bool:
        """Whether an empty value stands for a null."""
        return self.is_composite and self.nulls in {EMPTY, FLAG}

    @property
    def leaf(self) -> tuple[Cell, ClickHouseType]:
        """How values of a type without parts are kept; Dynamic and Variant keep the default."""
        bare = self.type.bare
        if bare.name in DYNAMIC_TYPES:
            bare = get_default_type(self.source)
        cell = find_cell(self.source, bare)
        if cell is None:
            raise SchemaError(f"{self.source} is not kept as {bare}.")
        return cell, bare

    @property
    def members(self) -> tuple[StoredType, ...]:
        """The parts of an array, a map (key, value) or a struct, in order; else none."""
        parts = self.type.structure.parts
        return tuple(
            StoredType(source=inner, type=part, nulls=self.nulls)
            for inner, part in zip(_list_inner_types(self.source), parts, strict=False)
        )


def resolve_stored_type(
    type_: DeltaType,
    requested: str | None,
    *,
    nullable: bool,
    column: str,
    ordered: bool = False,
    nulls: str = EMPTY,
) -> StoredType:
    """Return how `column` is stored: as `requested`, or by default.

    `nullable` says whether the source has nulls in it; an `ordered` column needs a type with an
    order and without nulls. Raises SchemaError, which names the alternatives, for a type that
    cannot hold the source's.
    """
    if nulls == JSON and is_composite(type_):
        return _make_json_type(type_, requested, nullable=nullable, column=column)
    if requested is None:
        default = to_clickhouse_type(type_, nullable=nullable, column=column)
        return StoredType(source=type_, type=parse_type(default), nulls=nulls)
    try:
        resolved = _resolve_override(
            type_, parse_type(requested), nullable=nullable, ordered=ordered
        )
    except (_TypeRefused, TypeTextError) as error:
        raise SchemaError(
            f"Column {column!r} is {type_} and cannot be kept as {requested!r}: {error}. "
            f"{_format_remedy(type_)}"
        ) from error
    return StoredType(source=type_, type=resolved, nulls=nulls)


def _make_json_type(
    type_: DeltaType, requested: str | None, *, nullable: bool, column: str
) -> StoredType:
    """Return the column as JSON text. Raises SchemaError if another type is requested."""
    if requested is not None:
        raise SchemaError(
            f"Column {column!r} is to be kept as {requested!r} by types={{...}} and as JSON text "
            f"by "
            f"nulls='json'; leave out one of them, or give nulls={{{column!r}: 'empty'}} for it."
        )
    text = parse_type("String")
    return StoredType(
        source=type_, type=build_type("Nullable", text) if nullable else text, nulls=JSON
    )


def get_default_type(type_: DeltaType) -> ClickHouseType:
    """Return a type's default, without Nullable."""
    return parse_type(to_clickhouse_type(type_, nullable=False, column=str(type_)))


def can_hold_null(type_: ClickHouseType) -> bool:
    inner = type_.parts[0] if type_.name == "LowCardinality" else type_
    return inner.name in {"Nullable", *DYNAMIC_TYPES}


def _format_remedy(type_: DeltaType) -> str:
    allowed = _describe_allowed_types(type_)
    return f"{type_} can be kept as {allowed}." if allowed else "Leave it out with exclude=[...]."


def _describe_allowed_types(type_: DeltaType) -> str:
    """Describe the types that can keep a Delta type; empty: none."""
    if isinstance(type_, Array):
        return "Array(T), Nested(...) for structs, and the geo types for points"
    if isinstance(type_, Map):
        return "Map(K, V)"
    if isinstance(type_, Struct):
        return "Tuple(...) of its fields in order, and Point for two doubles"
    cells = CELLS.get(get_family(type_) or "", ())
    if not cells:
        return ""
    names = [cell.label.replace("`", "") for cell in cells]
    return ", ".join([*names, "LowCardinality(...) of them", "Dynamic", "Variant(...)"])


class _TypeRefused(Exception):  # noqa: N818 - never leaves this module
    """Why a type cannot be used."""


def _resolve_override(
    type_: DeltaType, requested: ClickHouseType, *, nullable: bool, ordered: bool
) -> ClickHouseType:
    if ordered and (requested.bare.name in UNORDERED or can_hold_null(requested)):
        raise _TypeRefused("a key needs an ordered type without nulls")
    return _add_nullable(type_, requested, nullable=nullable, top=True)


def _add_nullable(
    type_: DeltaType, requested: ClickHouseType, *, nullable: bool, top: bool = False
) -> ClickHouseType:
    """Return `requested`, with Nullable where the source has nulls. Raises _TypeRefused."""
    if isinstance(type_, Primitive | Decimal):
        return _add_leaf_nullable(type_, requested, nullable=nullable, top=top)
    inner_types, structure = _list_inner_types(type_), requested.structure
    expected = {Array: "Array", Map: "Map", Struct: "Tuple"}[type(type_)]
    if structure.name != expected or len(structure.parts) != len(inner_types):
        raise _TypeRefused(f"{requested} does not have the same parts")
    if isinstance(type_, Struct) and structure.names not in {(), _list_field_names(type_)}:
        raise _TypeRefused(f"its members must be named {', '.join(_list_field_names(type_))}")
    # The members of a null struct are null.
    in_null_struct = nullable and isinstance(type_, Struct)
    parts = tuple(
        _add_nullable(inner, part, nullable=null or in_null_struct)
        for inner, part, null in zip(
            inner_types, structure.parts, _list_nullability(type_), strict=True
        )
    )
    if requested.name == "Nested":
        return replace(requested, parts=parts[0].parts)
    # A geo type stays as requested: its numbers are never null.
    return replace(requested, parts=parts) if requested.parts else requested


def _add_leaf_nullable(
    type_: DeltaType, requested: ClickHouseType, *, nullable: bool, top: bool
) -> ClickHouseType:
    if requested.name == "Nullable" and len(requested.parts) == 1:
        return _add_leaf_nullable(type_, requested.parts[0], nullable=True, top=top)
    if requested.name == "LowCardinality" and len(requested.parts) == 1:
        inner = _add_leaf_nullable(type_, requested.parts[0], nullable=nullable, top=top)
        if inner.bare.name not in LOW_CARDINALITY:
            raise _TypeRefused(f"LowCardinality does not take {inner.bare.name}")
        return build_type("LowCardinality", inner)
    if requested.name in DYNAMIC_TYPES:
        return _check_open_type(type_, requested)
    cell = find_cell(type_, requested)
    if cell is None:
        raise _TypeRefused(f"{requested} does not hold it")
    _check_arguments(type_, requested, top=top)
    return build_type("Nullable", requested) if nullable else requested


def _check_open_type(type_: DeltaType, requested: ClickHouseType) -> ClickHouseType:
    default = get_default_type(type_)
    if requested.name == "Variant" and default not in requested.parts:
        raise _TypeRefused(f"{default} is not among its members")
    return requested


def _check_arguments(type_: DeltaType, requested: ClickHouseType, *, top: bool) -> None:
    numbers = NUMBERS.get(requested.name, len(requested.names))
    if len(requested.numbers) != numbers or requested.parts:
        raise _TypeRefused(f"{requested.name} takes {numbers or 'no'} numeric argument(s)")
    if not OPTIONS.issuperset(name for name, _ in requested.options):
        raise _TypeRefused(
            f"its only options that keep all values are {', '.join(sorted(OPTIONS))}"
        )
    if requested.name == "JSON" and not top:
        raise _TypeRefused("JSON within another type cannot be compared with its source")
    zoned = requested.name.startswith("DateTime") and requested.zone != "UTC"
    if zoned and type_ == Primitive("timestamp_ntz"):
        raise _TypeRefused("a time without zone must be kept in 'UTC', where it shows unchanged")


def _list_inner_types(type_: DeltaType) -> Sequence[DeltaType]:
    if isinstance(type_, Array):
        return (type_.element,)
    if isinstance(type_, Map):
        return (type_.key, type_.value)
    return [field.type for field in type_.fields] if isinstance(type_, Struct) else ()


def _list_nullability(type_: DeltaType) -> Sequence[bool]:
    if isinstance(type_, Array):
        return (type_.nullable,)
    if isinstance(type_, Map):
        return (False, type_.nullable)
    return [field.nullable for field in type_.fields] if isinstance(type_, Struct) else ()


def _list_field_names(type_: Struct) -> tuple[str, ...]:
    return tuple(field.name for field in type_.fields)
