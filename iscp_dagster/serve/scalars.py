"""The scalar types of the GraphQL schema: how their literals, and their values in answers, compare.

Each scalar turns a client's literal, and a value of an answer, into one *comparable* value, so
that `where` means the same in ClickHouse and in Python.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal, InvalidOperation
from types import MappingProxyType
from typing import Any

from iscp_dagster.model.errors import IscpError

_WHOLE = re.compile(r"[+-]?[0-9]{1,80}")
_MOMENT = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?"
    r"(?:(Z|z)|([+-])(\d\d):?(\d\d))?",
    re.ASCII,
)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_DIGITS = 80
"""The most digits of a decimal, and the largest exponent."""
NANOS_PER_SECOND = 1_000_000_000
FLOATS = MappingProxyType(
    {
        "nan": float("nan"),
        "inf": float("inf"),
        "infinity": float("inf"),
        "-inf": float("-inf"),
        "-infinity": float("-inf"),
    }
)
"""The texts of floats that JSON has no numbers for, in lower case."""


class BadValueError(IscpError):
    """A value in a query does not have its type; nothing was read."""

    code = 10_810


@dataclass(frozen=True, kw_only=True)
class Scalar:
    """A scalar: `parse` makes a comparable value of a literal or of a value in an answer.

    `parse` raises BadValueError. The schema defines the scalars with `is_custom`; the others are
    GraphQL's.
    """

    name: str
    description: str
    parse: Callable[[Any], Any]
    is_custom: bool = True


def _make_value_error(value: object, expected: str) -> BadValueError:
    quoted = repr(value)
    return BadValueError(f"{quoted[:80]} is not a {expected}.")


def parse_text(value: object) -> str:
    """Read a text. Raises BadValueError for one that UTF-8 cannot encode."""
    if not isinstance(value, str):
        raise _make_value_error(value, "text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _make_value_error(
            value, "text in Unicode: it has half of a surrogate pair"
        ) from error
    return value


def _parse_int(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        return int(value)
    raise _make_value_error(value, "whole number; write 42, or '42' as a text")


def _parse_float(value: object) -> float:
    if isinstance(value, str) and value.lower() in FLOATS:
        return FLOATS[value.lower()]
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(OverflowError):
            # A number beyond a double's range becomes infinity, which is another value.
            if math.isfinite(number := float(value)):
                return number
    raise _make_value_error(value, "number; write 1.5, or 'NaN', 'Infinity' or '-Infinity'")


def _parse_decimal(value: object) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise _make_value_error(value, "decimal; write '1.50' as a text")
    literal = repr(value) if isinstance(value, float) else str(value)
    try:
        decimal = Decimal(literal) if len(literal) <= 2 * _DIGITS else None
    except InvalidOperation:
        decimal = None
    if decimal is None or not decimal.is_finite() or abs(decimal.adjusted()) > _DIGITS:
        raise _make_value_error(
            value, f"decimal of at most {_DIGITS} digits; write '1.50' as a text"
        )
    return decimal


def _parse_boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise _make_value_error(value, "boolean")


def _parse_date(value: object) -> int:
    """Read days since 1970."""
    with suppress(ValueError):
        if isinstance(value, str) and len(value) == len("YYYY-MM-DD"):
            return date.fromisoformat(value).toordinal() - _EPOCH.toordinal()
    raise _make_value_error(value, "date; write 'YYYY-MM-DD'")


def _parse_timestamp(value: object) -> int:
    """Read nanoseconds since 1970 from ISO 8601; without a zone, the time is in UTC."""
    match = _MOMENT.fullmatch(value) if isinstance(value, str) else None
    expected = "time; write 'YYYY-MM-DDThh:mm:ss.fffZ', or with a zone such as +02:00"
    if match is None:
        raise _make_value_error(value, expected)
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    try:
        moment = datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc)
    except ValueError as error:
        raise _make_value_error(value, expected) from error
    sign, offset = match[9], int(match[10] or 0) * 3600 + int(match[11] or 0) * 60
    elapsed = moment - _EPOCH
    seconds = elapsed.days * 86_400 + elapsed.seconds - (-offset if sign == "-" else offset)
    return seconds * NANOS_PER_SECOND + int((match[7] or "").ljust(9, "0"))


def _parse_uuid(value: object) -> str:
    lowered = value.lower() if isinstance(value, str) else ""
    if _UUID.fullmatch(lowered) is None:
        raise _make_value_error(value, "UUID; write it as 8-4-4-4-12 hexadecimal digits")
    return lowered


def _keep_value(value: object) -> object:
    return value


BOOLEAN = Scalar(name="Boolean", description="true or false", parse=_parse_boolean, is_custom=False)
INT = Scalar(name="Int", description="a whole number of 32 bits", parse=_parse_int, is_custom=False)
STRING = Scalar(name="String", description="a text", parse=parse_text, is_custom=False)
INT64 = Scalar(
    name="Int64",
    description="A whole number of up to 64 bits, as a text: JSON's readers round beyond 2^53.",
    parse=_parse_int,
)
BIG_INT = Scalar(
    name="BigInt", description="A whole number of up to 256 bits, as a text.", parse=_parse_int
)
FLOAT64 = Scalar(
    name="Float64",
    description='A number, or "NaN", "Infinity" or "-Infinity". NaN equals NaN and is the largest.',
    parse=_parse_float,
)
DECIMAL = Scalar(
    name="Decimal", description='An exact decimal number, as a text: "1.50".', parse=_parse_decimal
)
DATE = Scalar(name="Date", description='A day: "YYYY-MM-DD".', parse=_parse_date)
TIMESTAMP = Scalar(
    name="Timestamp",
    description='A moment in UTC: "YYYY-MM-DDThh:mm:ss.ffffffZ". A literal may have another zone; '
    "without one it is in UTC.",
    parse=_parse_timestamp,
)
UUID = Scalar(
    name="UUID", description="A UUID in lower case. They compare as texts.", parse=_parse_uuid
)
BYTES = Scalar(
    name="Bytes", description="Bytes in base64. `where` cannot use them.", parse=_keep_value
)
JSON = Scalar(
    name="JSON", description="A structure, as JSON. `where` cannot use it.", parse=_keep_value
)

SCALARS: Mapping[str, Scalar] = MappingProxyType(
    {
        scalar.name: scalar
        for scalar in (
            *(BOOLEAN, INT, STRING, INT64, BIG_INT, FLOAT64),
            *(DECIMAL, DATE, TIMESTAMP, UUID, BYTES, JSON),
        )
    }
)
