"""Whether a column with rows in it can be altered to another type, and to which."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from iscp_dagster.clickhouse.types.typetext import GEO, ChType, TypeTextError, of, parsed

INTEGER = re.compile(r"(U?)Int(\d+)")
LINES = (("BFloat16", "Float32", "Float64"), ("Date", "Date32"))
EXACT_BITS = 32
"""The bits of the integers that Float64 holds all of."""
MOST_DIGITS = 6
"""Of a second, in the DateTime64 that has all of Date32's days."""
WITHOUT_NULLS = frozenset({"Array", "Map", "Tuple", "Nested", "JSON", "Dynamic", "Variant", *GEO})
"""Types that Nullable does not take; a field without a value is empty there."""


def same_type(held: str, wanted: str) -> bool:
    """Whether the two texts name one type; the server may write a type differently."""
    return held == wanted or _known(held) == parsed(wanted)


def widens(held: str, wanted: str) -> bool:
    """Whether ClickHouse's type `wanted` holds every value of `held`, so that rows can stay."""
    before = _known(held)
    return before is not None and _holds(before, parsed(wanted))


def keeping_fields(held: str | None, wanted: str) -> str:
    """Return `wanted` with the fields that only `held` has in its tuples, after its own.

    A field that the source renamed or dropped stays, as a column would, so that whoever still reads
    an earlier version finds it. Map keys stay as they are wanted: another field is another key.
    """
    before, after = held and _known(held), parsed(wanted)
    kept = _keeping(before, after) if before else after
    # Unchanged, it is written as it was.
    return wanted if kept == after else str(kept)


def _keeping(before: ChType, after: ChType) -> ChType:
    if before.name != after.name:
        return after
    if after.name == "Array":
        return of("Array", *map(_keeping, before.parts, after.parts))
    if after.name == "Map":
        return of("Map", after.parts[0], _keeping(before.parts[1], after.parts[1]))
    if after.name != "Tuple" or not before.names or not after.names:
        return after
    old, new = before.fields, after.fields
    merged = {name: _merged(old.get(name), new.get(name)) for name in {**new, **old}}
    return replace(after, names=tuple(merged), parts=tuple(merged.values()))


def _merged(before: ChType | None, after: ChType | None) -> ChType:
    """Return the type of a field; where some rows lack it, it is null if it can be."""
    if before and after:
        both = _keeping(before, after)
        return _as_nullable(both) if _nullable(before) else both
    (only,) = filter(None, (before, after))
    return _as_nullable(only)


def _as_nullable(type_: ChType) -> ChType:
    if type_.name == "LowCardinality":
        return of("LowCardinality", _as_nullable(type_.parts[0]))
    return type_ if type_.name in {"Nullable", *WITHOUT_NULLS} else of("Nullable", type_)


def _holds(before: ChType, after: ChType) -> bool:
    if _nullable(before) and not _nullable(after):
        return False
    return _wider(before.bare, after.bare)


def _wider(before: ChType, after: ChType) -> bool:
    rule = RULES.get(after.name)
    return (
        before == after
        or _is_on_a_line(before.name, after.name)
        or _has_more_bits(before.name, after.name)
        or (rule is not None and rule(before, after))
    )


def _is_on_a_line(before: str, after: str) -> bool:
    return any(before in line and after in line[line.index(before) :] for line in LINES)


def _holds_parts(before: ChType, after: ChType) -> bool:
    return before.name == after.name and all(map(_holds, before.parts, after.parts))


def _holds_fields(before: ChType, after: ChType) -> bool:
    """Whether a named tuple has all fields of another; those added must have a value for no value.

    Every tenant is read again as a snapshot after its source's structures changed.
    """
    if before.name != after.name or not before.names or not after.names:
        return False
    old, new = before.fields, after.fields
    kept = old.keys() <= new.keys() and all(_holds(old[name], new[name]) for name in old)
    added = [new[name] for name in new.keys() - old.keys()]
    return kept and all(_nullable(each) or each.name in WITHOUT_NULLS for each in added)


def _has_digits(before: ChType, after: ChType) -> bool:
    """Whether a decimal has as many digits before and after the point."""
    precision, scale = after.numbers
    if integer := INTEGER.fullmatch(before.name):
        bits = int(integer[2]) - (not integer[1])
        return precision - scale >= len(str(2**bits))
    if before.name != "Decimal":
        return False
    digits, decimals = before.numbers
    return scale >= decimals and precision - scale >= digits - decimals


def _has_days(before: ChType, after: ChType) -> bool:
    is_day = before.name in {"Date", "Date32"}
    return is_day and after.zone == "UTC" and after.numbers[0] <= MOST_DIGITS


def _has_integers(before: ChType, _after: ChType) -> bool:
    integer = INTEGER.fullmatch(before.name)
    return integer is not None and int(integer[2]) <= EXACT_BITS


def _has_members(before: ChType, after: ChType) -> bool:
    if before.name not in {"Enum8", after.name}:
        return False
    return _members(before).items() <= _members(after).items()


RULES: Mapping[str, Callable[[ChType, ChType], bool]] = MappingProxyType(
    {
        "Array": _holds_parts,
        "Map": _holds_parts,
        "Tuple": _holds_fields,
        "Decimal": _has_digits,
        "DateTime64": _has_days,
        "Float64": _has_integers,
        "Enum8": _has_members,
        "Enum16": _has_members,
    }
)
"""Which types hold all values of another, by the name of the wider one."""


def _has_more_bits(before: str, after: str) -> bool:
    narrow, wide = INTEGER.fullmatch(before), INTEGER.fullmatch(after)
    if not narrow or not wide:
        return False
    # An unsigned type fits a wider signed one, never the other way round.
    return int(narrow[2]) < int(wide[2]) and (bool(narrow[1]) or not wide[1])


def _members(enum: ChType) -> Mapping[str, int]:
    return dict(zip(enum.names, enum.numbers, strict=True))


def _nullable(type_: ChType) -> bool:
    inner = type_.parts[0] if type_.name == "LowCardinality" else type_
    return inner.name == "Nullable"


def _known(written: str) -> ChType | None:
    """Parse a type of the server's; None for one that no declaration can name."""
    try:
        return parsed(written)
    except TypeTextError:
        return None
