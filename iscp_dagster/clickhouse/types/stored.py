"""How an index stores a column: by its Delta type's default, or as the declaration asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from iscp_dagster.clickhouse.types.cells import CELLS, Cell, cell_of, family
from iscp_dagster.clickhouse.types.nulls import EMPTY, FLAG, JSON, has_parts
from iscp_dagster.clickhouse.types.types import clickhouse_type
from iscp_dagster.clickhouse.types.typetext import ChType, TypeTextError, of, parsed
from iscp_dagster.model.declared.schema import Array, Decimal, DeltaType, Map, Primitive, Struct
from iscp_dagster.model.errors import SchemaError

OPEN = ("Dynamic", "Variant")
"""Types that store each value's type with it, and hold nulls."""
UNORDERED = (*OPEN, "JSON")
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
class Stored:
    """Values of the Delta type `source`, kept as `type`."""

    source: DeltaType
    type: ChType
    as_written: bool = False
    """Whether to hold only values that ClickHouse returns exactly as written."""
    key: bool = False
    """Whether it names rows, so that values which Spark holds equal are written alike."""
    nulls: str = EMPTY
    """What there is for null arrays, maps and structs within it."""

    @property
    def takes_nulls(self) -> bool:
        """Whether ClickHouse can tell a null here from a value."""
        return takes_nulls(self.type)

    @property
    def is_text(self) -> bool:
        """Whether an array, map or struct is kept as JSON text."""
        return self.nulls == JSON and has_parts(self.source)

    @property
    def has_parts(self) -> bool:
        """Whether it is kept as an array, a map or a tuple."""
        return has_parts(self.source) and not self.is_text

    @property
    def fills(self) -> bool:
        """Whether an empty value stands for a null."""
        return self.has_parts and self.nulls in {EMPTY, FLAG}

    @property
    def leaf(self) -> tuple[Cell, ChType]:
        """How values of a type without parts are kept; Dynamic and Variant keep the default."""
        bare = self.type.bare
        if bare.name in OPEN:
            bare = default_type(self.source)
        cell = cell_of(self.source, bare)
        if cell is None:
            raise SchemaError(f"{self.source} is not kept as {bare}.")
        return cell, bare

    @property
    def members(self) -> tuple[Stored, ...]:
        """The parts of an array, a map (key, value) or a struct, in order; else none."""
        parts = self.type.structure.parts
        return tuple(
            Stored(source=inner, type=part, nulls=self.nulls)
            for inner, part in zip(_inside(self.source), parts, strict=False)
        )


def stored_column(
    type_: DeltaType,
    asked: str | None,
    *,
    nullable: bool,
    at: str,
    ordered: bool = False,
    nulls: str = EMPTY,
) -> Stored:
    """Return how the column `at` is stored: as `asked`, or by default.

    `nullable` tells whether the source has nulls in it; an `ordered` column needs a type with an
    order and without nulls. Raises SchemaError for a type that cannot hold the source's, naming
    those that can.
    """
    if nulls == JSON and has_parts(type_):
        return _json_column(type_, asked, nullable=nullable, at=at)
    if asked is None:
        default = clickhouse_type(type_, nullable=nullable, at=at)
        return Stored(source=type_, type=parsed(default), nulls=nulls)
    try:
        made = _asked(type_, parsed(asked), nullable=nullable, ordered=ordered)
    except (_Refused, TypeTextError) as error:
        raise SchemaError(
            f"Column {at!r} is {type_} and cannot be kept as {asked!r}: {error}. {_remedy(type_)}"
        ) from error
    return Stored(source=type_, type=made, nulls=nulls)


def _json_column(type_: DeltaType, asked: str | None, *, nullable: bool, at: str) -> Stored:
    """Return the column as JSON text. Raises SchemaError where another type is asked for."""
    if asked is not None:
        raise SchemaError(
            f"Column {at!r} is to be kept as {asked!r} by types={{...}} and as JSON text by "
            f"nulls='json'; leave out one of them, or give nulls={{{at!r}: 'empty'}} for it."
        )
    text = parsed("String")
    return Stored(source=type_, type=of("Nullable", text) if nullable else text, nulls=JSON)


def default_type(type_: DeltaType) -> ChType:
    """Return a type's default, without Nullable."""
    return parsed(clickhouse_type(type_, nullable=False, at=str(type_)))


def takes_nulls(type_: ChType) -> bool:
    inner = type_.parts[0] if type_.name == "LowCardinality" else type_
    return inner.name in {"Nullable", *OPEN}


def _remedy(type_: DeltaType) -> str:
    allowed = _allowed(type_)
    return f"{type_} can be kept as {allowed}." if allowed else "Leave it out with exclude=[...]."


def _allowed(type_: DeltaType) -> str:
    """Describe the types that can keep a Delta type; empty: none."""
    if isinstance(type_, Array):
        return "Array(T), Nested(...) for structs, and the geo types for points"
    if isinstance(type_, Map):
        return "Map(K, V)"
    if isinstance(type_, Struct):
        return "Tuple(...) of its fields in order, and Point for two doubles"
    cells = CELLS.get(family(type_) or "", ())
    if not cells:
        return ""
    shown = [cell.shown.replace("`", "") for cell in cells]
    return ", ".join([*shown, "LowCardinality(...) of them", "Dynamic", "Variant(...)"])


class _Refused(Exception):  # noqa: N818 - never leaves this module
    """Why a type cannot be used."""


def _asked(type_: DeltaType, asked: ChType, *, nullable: bool, ordered: bool) -> ChType:
    if ordered and (asked.bare.name in UNORDERED or takes_nulls(asked)):
        raise _Refused("a key needs an ordered type without nulls")
    return _made(type_, asked, nullable=nullable, top=True)


def _made(type_: DeltaType, asked: ChType, *, nullable: bool, top: bool = False) -> ChType:
    """Return `asked`, with Nullable where the source has nulls. Raises _Refused."""
    if isinstance(type_, Primitive | Decimal):
        return _leaf(type_, asked, nullable=nullable, top=top)
    inside, structure = _inside(type_), asked.structure
    wanted = {Array: "Array", Map: "Map", Struct: "Tuple"}[type(type_)]
    if structure.name != wanted or len(structure.parts) != len(inside):
        raise _Refused(f"{asked} does not have the same parts")
    if isinstance(type_, Struct) and structure.names not in {(), _names(type_)}:
        raise _Refused(f"its members must be named {', '.join(_names(type_))}")
    # The members of a null struct are null.
    within = nullable and isinstance(type_, Struct)
    parts = tuple(
        _made(each, part, nullable=null or within)
        for each, part, null in zip(inside, structure.parts, _nullable(type_), strict=True)
    )
    if asked.name == "Nested":
        return replace(asked, parts=parts[0].parts)
    # A geo type stays as asked: its numbers are never null.
    return replace(asked, parts=parts) if asked.parts else asked


def _leaf(type_: DeltaType, asked: ChType, *, nullable: bool, top: bool) -> ChType:
    if asked.name == "Nullable" and len(asked.parts) == 1:
        return _leaf(type_, asked.parts[0], nullable=True, top=top)
    if asked.name == "LowCardinality" and len(asked.parts) == 1:
        inner = _leaf(type_, asked.parts[0], nullable=nullable, top=top)
        if inner.bare.name not in LOW_CARDINALITY:
            raise _Refused(f"LowCardinality does not take {inner.bare.name}")
        return of("LowCardinality", inner)
    if asked.name in OPEN:
        return _open(type_, asked)
    cell = cell_of(type_, asked)
    if cell is None:
        raise _Refused(f"{asked} does not hold it")
    _check_arguments(type_, asked, top=top)
    return of("Nullable", asked) if nullable else asked


def _open(type_: DeltaType, asked: ChType) -> ChType:
    default = default_type(type_)
    if asked.name == "Variant" and default not in asked.parts:
        raise _Refused(f"{default} is not among its members")
    return asked


def _check_arguments(type_: DeltaType, asked: ChType, *, top: bool) -> None:
    numbers = NUMBERS.get(asked.name, len(asked.names))
    if len(asked.numbers) != numbers or asked.parts:
        raise _Refused(f"{asked.name} takes {numbers or 'no'} numeric argument(s)")
    if not OPTIONS.issuperset(name for name, _ in asked.options):
        raise _Refused(f"its only options that keep all values are {', '.join(sorted(OPTIONS))}")
    if asked.name == "JSON" and not top:
        raise _Refused("JSON within another type cannot be compared with its source")
    zoned = asked.name.startswith("DateTime") and asked.zone != "UTC"
    if zoned and type_ == Primitive("timestamp_ntz"):
        raise _Refused("a time without zone must be kept in 'UTC', where it shows unchanged")


def _inside(type_: DeltaType) -> Sequence[DeltaType]:
    if isinstance(type_, Array):
        return (type_.element,)
    if isinstance(type_, Map):
        return (type_.key, type_.value)
    return [each.type for each in type_.fields] if isinstance(type_, Struct) else ()


def _nullable(type_: DeltaType) -> Sequence[bool]:
    if isinstance(type_, Array):
        return (type_.nullable,)
    if isinstance(type_, Map):
        return (False, type_.nullable)
    return [each.nullable for each in type_.fields] if isinstance(type_, Struct) else ()


def _names(type_: Struct) -> tuple[str, ...]:
    return tuple(each.name for each in type_.fields)
