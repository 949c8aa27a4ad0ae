"""Whether a column with rows in it can be altered to another type, and to which."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from iscp_dagster.clickhouse.types.type_parser import (
    GEO,
    ClickHouseType,
    TypeTextError,
    build_type,
    parse_type,
)

INTEGER = re.compile(r"(U?)Int(\d+)")
WIDENING_CHAINS = (("BFloat16", "Float32", "Float64"), ("Date", "Date32"))
EXACT_BITS = 32
"""Float64 holds all integers of up to so many bits."""
MOST_DIGITS = 6
"""Most digits of a second in a DateTime64 that holds all of Date32's days."""
WITHOUT_NULLS = frozenset({"Array", "Map", "Tuple", "Nested", "JSON", "Dynamic", "Variant", *GEO})
"""Types that Nullable does not take; a field without a value is empty there."""


def is_same_type(existing: str, target: str) -> bool:
    """Whether the two texts name one type; the server may write a type differently."""
    return existing == target or _parse_known_type(existing) == parse_type(target)


def can_widen(existing: str, target: str) -> bool:
    """Whether ClickHouse's type `target` holds every value of `existing`, so that rows can stay."""
    before = _parse_known_type(existing)
    return before is not None and _can_hold(before, parse_type(target))


def keep_old_fields(existing: str | None, target: str) -> str:
    """Return `target` with the fields that only `existing` has in its tuples, after its own.

    A field that the source renamed or dropped stays, as a column would, for readers of earlier
    versions. Map keys are those of `target`: another field is another key.
    """
    before, after = existing and _parse_known_type(existing), parse_type(target)
    kept = _merge_types(before, after) if before else after
    # An unchanged type keeps its spelling.
    return target if kept == after else str(kept)


def _merge_types(before: ClickHouseType, after: ClickHouseType) -> ClickHouseType:
    if before.name != after.name:
        return after
    if after.name == "Array":
        return build_type("Array", *map(_merge_types, before.parts, after.parts))
    if after.name == "Map":
        return build_type("Map", after.parts[0], _merge_types(before.parts[1], after.parts[1]))
    if after.name != "Tuple" or not before.names or not after.names:
        return after
    old, new = before.fields, after.fields
    merged = {name: _merge_field(old.get(name), new.get(name)) for name in {**new, **old}}
    return replace(after, names=tuple(merged), parts=tuple(merged.values()))


def _merge_field(before: ClickHouseType | None, after: ClickHouseType | None) -> ClickHouseType:
    """Return the type of a field; where some rows lack it, it is null if it can be."""
    if before and after:
        merged = _merge_types(before, after)
        return _make_nullable(merged) if _is_nullable(before) else merged
    (only,) = filter(None, (before, after))
    return _make_nullable(only)


def _make_nullable(type_: ClickHouseType) -> ClickHouseType:
    if type_.name == "LowCardinality":
        return build_type("LowCardinality", _make_nullable(type_.parts[0]))
    return type_ if type_.name in {"Nullable", *WITHOUT_NULLS} else build_type("Nullable", type_)


def _can_hold(before: ClickHouseType, after: ClickHouseType) -> bool:
    if _is_nullable(before) and not _is_nullable(after):
        return False
    return _is_wider(before.bare, after.bare)


def _is_wider(before: ClickHouseType, after: ClickHouseType) -> bool:
    rule = RULES.get(after.name)
    return (
        before == after
        or _is_wider_by_name(before.name, after.name)
        or _has_more_bits(before.name, after.name)
        or (rule is not None and rule(before, after))
    )


def _is_wider_by_name(before: str, after: str) -> bool:
    return any(before in line and after in line[line.index(before) :] for line in WIDENING_CHAINS)


def _can_hold_parts(before: ClickHouseType, after: ClickHouseType) -> bool:
    return before.name == after.name and all(map(_can_hold, before.parts, after.parts))


def _can_hold_fields(before: ClickHouseType, after: ClickHouseType) -> bool:
    """Whether a named tuple has all fields of another; added ones must be nullable or may be empty.

    Every tenant is read again as a snapshot after its source's structures changed.
    """
    if before.name != after.name or not before.names or not after.names:
        return False
    old, new = before.fields, after.fields
    kept = old.keys() <= new.keys() and all(_can_hold(old[name], new[name]) for name in old)
    added = [new[name] for name in new.keys() - old.keys()]
    return kept and all(_is_nullable(type_) or type_.name in WITHOUT_NULLS for type_ in added)


def _can_hold_digits(before: ClickHouseType, after: ClickHouseType) -> bool:
    """Whether a decimal has as many digits before and after the point."""
    precision, scale = after.numbers
    if integer := INTEGER.fullmatch(before.name):
        bits = int(integer[2]) - (not integer[1])
        return precision - scale >= len(str(2**bits))
    if before.name != "Decimal":
        return False
    digits, decimals = before.numbers
    return scale >= decimals and precision - scale >= digits - decimals


def _can_hold_days(before: ClickHouseType, after: ClickHouseType) -> bool:
    is_day = before.name in {"Date", "Date32"}
    return is_day and after.zone == "UTC" and after.numbers[0] <= MOST_DIGITS


def _can_hold_integers(before: ClickHouseType, _after: ClickHouseType) -> bool:
    integer = INTEGER.fullmatch(before.name)
    return integer is not None and int(integer[2]) <= EXACT_BITS


def _can_hold_members(before: ClickHouseType, after: ClickHouseType) -> bool:
    if before.name not in {"Enum8", after.name}:
        return False
    return _get_members(before).items() <= _get_members(after).items()


RULES: Mapping[str, Callable[[ClickHouseType, ClickHouseType], bool]] = MappingProxyType(
    {
        "Array": _can_hold_parts,
        "Map": _can_hold_parts,
        "Tuple": _can_hold_fields,
        "Decimal": _can_hold_digits,
        "DateTime64": _can_hold_days,
        "Float64": _can_hold_integers,
        "Enum8": _can_hold_members,
        "Enum16": _can_hold_members,
    }
)
"""Which types hold all values of another, by the name of the wider one."""


def _has_more_bits(before: str, after: str) -> bool:
    narrow, wide = INTEGER.fullmatch(before), INTEGER.fullmatch(after)
    if not narrow or not wide:
        return False
    # An unsigned type fits a wider signed one, never the other way round.
    return int(narrow[2]) < int(wide[2]) and (bool(narrow[1]) or not wide[1])


def _get_members(enum: ClickHouseType) -> Mapping[str, int]:
    return dict(zip(enum.names, enum.numbers, strict=True))


def _is_nullable(type_: ClickHouseType) -> bool:
    inner = type_.parts[0] if type_.name == "LowCardinality" else type_
    return inner.name == "Nullable"


def _parse_known_type(written: str) -> ClickHouseType | None:
    """Parse a type of the server's; None for one that no declaration can name."""
    try:
        return parse_type(written)
    except TypeTextError:
        return None
