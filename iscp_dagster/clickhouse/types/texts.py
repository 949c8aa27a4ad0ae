"""Texts that ClickHouse stores parsed: finds those that it returns unchanged."""

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
from iscp_dagster.clickhouse.types.typetext import ChType

DEEPEST = 50
"""Most levels of nested objects and arrays."""
TIME = re.compile(r"[0-9]{4}[^0-9A-Za-z][0-9][0-9 T:./-]*")
"""Text that ClickHouse parses as a date or a time, and may write differently."""
FIRST, LAST = date(1970, 1, 1), date(2149, 6, 6)
WHOLE = range(-(2**63), 2**64)
EXACT = 2**53
"""Up to here every whole number is exact as a double."""
MAPPED, EMBEDDED = b"\0" * 10 + b"\xff\xff", b"\0" * 12
"""Prefixes of IPv6 addresses whose end is written as IPv4."""


def ipv6(values: pa.Array, _: ChType) -> pa.Array:
    return _each(values, is_ipv6)


def json_object(values: pa.Array, _: ChType) -> pa.Array:
    """Check that the texts are objects that the type JSON holds; see `is_json`."""
    return _each(values, is_json)


def is_ipv6(text: str) -> bool:
    """Whether the text is an address in the form that RFC 5952 recommends."""
    try:
        packed = IPv6Address(text).packed
    except ValueError:
        return False
    return "%" not in text and text == ipv6_text(packed)


def ipv6_text(packed: bytes) -> str:
    """Write the address as ClickHouse and inet_ntop do."""
    embedded = packed[:12] == EMBEDDED and packed[12:14] != b"\0\0"
    if packed[:12] == MAPPED or embedded:
        end = ".".join(map(str, packed[12:]))
        return f"::{end}" if embedded else f"::ffff:{end}"
    return str(IPv6Address(packed))


def is_json(text: str) -> bool:
    """Whether the type JSON returns the same object.

    It has no null members, no empty objects and no arrays of only nulls, takes `.` in a name for
    nesting, parses texts as times (2200-01-01 would become midnight), and keeps an array as one
    type: true beside 1 would become 1.
    """
    try:
        value = json.loads(
            text, parse_float=_number, parse_constant=_refused, object_pairs_hook=_members
        )
        return isinstance(value, dict) and _held(value, DEEPEST)
    except (ValueError, RecursionError):
        return False


def canonical(rows: pa.Table, columns: Collection[str]) -> pa.Table:
    """Rewrite the JSON in these columns in its canonical form."""
    for at, name in enumerate(rows.schema.names):
        if name in columns:
            texts = [each and canonical_json(each) for each in rows[name].to_pylist()]
            field = rows.schema.field(at)
            rows = rows.set_column(at, field, pa.array(texts, field.type))
    return rows


def canonical_json(text: str) -> str:
    """Return the same text for the same value: members sorted, whole numbers as integers.

    Text that is not JSON stays unchanged.
    """
    try:
        return json.dumps(json.loads(text, parse_float=_plain), sort_keys=True)
    except ValueError:
        return text


def _each(values: pa.Array, fits: Callable[[str], bool]) -> pa.Array:
    """Check each distinct value once. Raises Misfit."""
    known = values.cast(pa.binary()).dictionary_encode().dictionary.to_pylist()
    try:
        if all(fits(each.decode()) for each in known):
            return values
    except UnicodeDecodeError:
        pass
    raise Misfit


def _number(text: str) -> float:
    """Parse a number. Raises ValueError if the float's shortest form differs in value."""
    value = float(text)
    if Decimal(repr(value)) != Decimal(text):
        raise ValueError(text)
    return value


def _plain(text: str) -> int | float:
    """Return an integer if the float's shortest form is whole, else the float."""
    shortest = Decimal(repr(float(text)))
    whole = shortest.is_finite() and shortest == shortest.to_integral_value()
    return int(shortest) if whole else float(text)


def _refused(text: str) -> Any:
    raise ValueError(text)


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs) or any("." in name for name in found):
        raise ValueError(pairs)
    return found


def _held(value: Any, deep: int) -> bool:
    if isinstance(value, dict):
        members = value.values()
        return deep > 0 and all(
            each is not None and each != {} and _held(each, deep - 1) for each in members
        )
    if isinstance(value, list):
        alike = _alike(value) and _alike(list(_leaves(value)))
        return deep > 0 and alike and all(_held(each, deep - 1) for each in value)
    if isinstance(value, str):
        value.encode()  # a lone surrogate is no text
        return TIME.fullmatch(value) is None or _is_date(value)
    return isinstance(value, bool) or not isinstance(value, int) or value in WHOLE


def _leaves(values: list[Any]) -> Iterator[Any]:
    """Yield the elements of arrays in the array, at any depth."""
    for each in values:
        if isinstance(each, list):
            yield from _leaves(each)
        else:
            yield each


def _kind(value: Any) -> Any:
    return date if isinstance(value, str) and TIME.fullmatch(value) else type(value)


def _is_date(text: str) -> bool:
    """Whether it is a date in ClickHouse's own form and range."""
    try:
        value = date.fromisoformat(text)
    except ValueError:
        return False
    return value.isoformat() == text and FIRST <= value <= LAST


def _alike(values: list[Any]) -> bool:
    """Whether one type of array elements holds them all."""
    kinds = {_kind(each) for each in values if each is not None}
    # Only nulls: they take the type of the path's arrays in other rows, and may become {} there.
    if None in values and (not kinds or kinds & {list, dict}):
        return False
    # The path's arrays may hold doubles in another row, which makes these doubles too.
    if not all(abs(each) <= EXACT for each in values if type(each) is int):
        return False
    return len(kinds) < 2 or kinds == {int, float}  # noqa: PLR2004 - one kind, or none
