"""Texts that ClickHouse stores parsed: which of them it returns unchanged."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator
from datetime import date
from decimal import Decimal
from ipaddress import IPv6Address
from typing import Any

import pyarrow as pa

from iscp_dagster.clickhouse.types.leaves import Misfit
from iscp_dagster.clickhouse.types.type_parser import ClickHouseType

DEEPEST = 50
"""Most levels of nested objects and arrays."""
TIME = re.compile(r"[0-9]{4}[^0-9A-Za-z][0-9][0-9 T:./-]*")
"""Text that ClickHouse parses as a date or a time, and may write differently."""
FIRST, LAST = date(1970, 1, 1), date(2149, 6, 6)
INTEGER_RANGE = range(-(2**63), 2**64)
EXACT = 2**53
"""Up to here every whole number is exact as a double."""
MAPPED, EMBEDDED = b"\0" * 10 + b"\xff\xff", b"\0" * 12
"""Prefixes of IPv6 addresses whose end is written as IPv4."""


def fit_ipv6(values: pa.Array, _: ClickHouseType) -> pa.Array:
    return _check_each(values, is_canonical_ipv6)


def fit_json_objects(values: pa.Array, _: ClickHouseType) -> pa.Array:
    """Check that the texts are objects that the type JSON holds; see `is_lossless_json`."""
    return _check_each(values, is_lossless_json)


def is_canonical_ipv6(text: str) -> bool:
    """Whether the text is an address in the form that RFC 5952 recommends."""
    try:
        packed = IPv6Address(text).packed
    except ValueError:
        return False
    return "%" not in text and text == format_ipv6(packed)


def format_ipv6(packed: bytes) -> str:
    """Write the address as ClickHouse and inet_ntop do."""
    embedded = packed[:12] == EMBEDDED and packed[12:14] != b"\0\0"
    if packed[:12] == MAPPED or embedded:
        end = ".".join(map(str, packed[12:]))
        return f"::{end}" if embedded else f"::ffff:{end}"
    return str(IPv6Address(packed))


def is_lossless_json(text: str) -> bool:
    """Whether the type JSON returns the same object.

    It has no null members, no empty objects and no arrays of only nulls, takes `.` in a name for
    nesting, parses texts as times (2200-01-01 would become midnight), and keeps an array as one
    type: true beside 1 would become 1.
    """
    try:
        value = json.loads(
            text,
            parse_float=_parse_exact_number,
            parse_constant=_refuse_constant,
            object_pairs_hook=_collect_members,
        )
        return isinstance(value, dict) and _is_preserved(value, DEEPEST)
    except (ValueError, RecursionError):
        return False


def normalize_json_columns(rows: pa.Table, columns: Collection[str]) -> pa.Table:
    """Rewrite the JSON in these columns in its canonical form."""
    for at, name in enumerate(rows.schema.names):
        if name in columns:
            texts = [text and normalize_json(text) for text in rows[name].to_pylist()]
            field = rows.schema.field(at)
            rows = rows.set_column(at, field, pa.array(texts, field.type))
    return rows


def normalize_json(text: str) -> str:
    """Return the same text for the same value: members sorted, whole numbers as integers.

    Text that is not JSON stays unchanged.
    """
    try:
        return json.dumps(json.loads(text, parse_float=_parse_number), sort_keys=True)
    except ValueError:
        return text


def _check_each(values: pa.Array, fits: Callable[[str], bool]) -> pa.Array:
    """Check each distinct value once. Raises Misfit."""
    distinct = values.cast(pa.binary()).dictionary_encode().dictionary.to_pylist()
    try:
        if all(fits(value.decode()) for value in distinct):
            return values
    except UnicodeDecodeError:
        pass
    raise Misfit


def _parse_exact_number(text: str) -> float:
    """Parse a number. Raises ValueError if the float's shortest form differs in value."""
    value = float(text)
    if Decimal(repr(value)) != Decimal(text):
        raise ValueError(text)
    return value


def _parse_number(text: str) -> int | float:
    """Return an integer if the float's shortest form is whole, else the float."""
    shortest = Decimal(repr(float(text)))
    is_whole = shortest.is_finite() and shortest == shortest.to_integral_value()
    return int(shortest) if is_whole else float(text)


def _refuse_constant(text: str) -> Any:
    raise ValueError(text)


def _collect_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs) or any("." in name for name in members):
        raise ValueError(pairs)
    return members


def _is_preserved(value: Any, depth: int) -> bool:
    if isinstance(value, dict):
        members = value.values()
        return depth > 0 and all(
            member is not None and member != {} and _is_preserved(member, depth - 1)
            for member in members
        )
    if isinstance(value, list):
        alike = _has_one_type(value) and _has_one_type(list(_list_leaves(value)))
        return depth > 0 and alike and all(_is_preserved(element, depth - 1) for element in value)
    if isinstance(value, str):
        value.encode()  # a lone surrogate is not text
        return TIME.fullmatch(value) is None or _is_date(value)
    return isinstance(value, bool) or not isinstance(value, int) or value in INTEGER_RANGE


def _list_leaves(values: list[Any]) -> Iterator[Any]:
    """Yield the elements of arrays in the array, at any depth."""
    for element in values:
        if isinstance(element, list):
            yield from _list_leaves(element)
        else:
            yield element


def _get_kind(value: Any) -> Any:
    return date if isinstance(value, str) and TIME.fullmatch(value) else type(value)


def _is_date(text: str) -> bool:
    """Whether it is a date in ClickHouse's own form and range."""
    try:
        value = date.fromisoformat(text)
    except ValueError:
        return False
    return value.isoformat() == text and FIRST <= value <= LAST


def _has_one_type(values: list[Any]) -> bool:
    """Whether one type of array elements holds them all."""
    kinds = {_get_kind(value) for value in values if value is not None}
    # Only nulls: they take the type of the path's arrays in other rows, and may become {} there.
    if None in values and (not kinds or kinds & {list, dict}):
        return False
    # The path's arrays may hold doubles in another row, which makes these doubles too.
    if not all(abs(value) <= EXACT for value in values if type(value) is int):
        return False
    return len(kinds) < 2 or kinds == {int, float}  # noqa: PLR2004 - one kind, or none
