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
NANOS = 1_000_000_000
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
    """A scalar: `read` makes a comparable value of a literal or of a value in an answer.

    `read` raises BadValueError. `own` tells whether the schema defines the scalar; the others are
    GraphQL's.
    """

    name: str
    says: str
    read: Callable[[Any], Any]
    own: bool = True


def _wrong(value: object, wanted: str) -> BadValueError:
    shown = repr(value)
    return BadValueError(f"{shown[:80]} is no {wanted}.")


def text(value: object) -> str:
    """Read a text. Raises BadValueError for one that has no UTF-8."""
    if not isinstance(value, str):
        raise _wrong(value, "text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _wrong(value, "text in Unicode: it has half of a surrogate pair") from error
    return value


def _whole(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        return int(value)
    raise _wrong(value, "whole number; write 42, or '42' as a text")


def _float(value: object) -> float:
    if isinstance(value, str) and value.lower() in FLOATS:
        return FLOATS[value.lower()]
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(OverflowError):
            # A number beyond a double's range comes as infinity, which is another one.
            if math.isfinite(found := float(value)):
                return found
    raise _wrong(value, "number; write 1.5, or 'NaN', 'Infinity' or '-Infinity'")


def _decimal(value: object) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise _wrong(value, "decimal; write '1.50' as a text")
    written = repr(value) if isinstance(value, float) else str(value)
    try:
        found = Decimal(written) if len(written) <= 2 * _DIGITS else None
    except InvalidOperation:
        found = None
    if found is None or not found.is_finite() or abs(found.adjusted()) > _DIGITS:
        raise _wrong(value, f"decimal of at most {_DIGITS} digits; write '1.50' as a text")
    return found


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise _wrong(value, "boolean")


def _day(value: object) -> int:
    """Read days since 1970."""
    with suppress(ValueError):
        if isinstance(value, str) and len(value) == len("YYYY-MM-DD"):
            return date.fromisoformat(value).toordinal() - _EPOCH.toordinal()
    raise _wrong(value, "date; write 'YYYY-MM-DD'")


def _moment(value: object) -> int:
    """Read nanoseconds since 1970 from ISO 8601; without a zone, the time is in UTC."""
    found = _MOMENT.fullmatch(value) if isinstance(value, str) else None
    wanted = "time; write 'YYYY-MM-DDThh:mm:ss.fffZ', or with a zone such as +02:00"
    if found is None:
        raise _wrong(value, wanted)
    year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
    try:
        at = datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc)
    except ValueError as error:
        raise _wrong(value, wanted) from error
    sign, ahead = found[9], int(found[10] or 0) * 3600 + int(found[11] or 0) * 60
    since = at - _EPOCH
    seconds = since.days * 86_400 + since.seconds - (-ahead if sign == "-" else ahead)
    return seconds * NANOS + int((found[7] or "").ljust(9, "0"))


def _uuid(value: object) -> str:
    lowered = value.lower() if isinstance(value, str) else ""
    if _UUID.fullmatch(lowered) is None:
        raise _wrong(value, "UUID; write it as 8-4-4-4-12 hexadecimal digits")
    return lowered


def _anything(value: object) -> object:
    return value


BOOLEAN = Scalar(name="Boolean", says="true or false", read=_boolean, own=False)
INT = Scalar(name="Int", says="a whole number of 32 bits", read=_whole, own=False)
STRING = Scalar(name="String", says="a text", read=text, own=False)
INT64 = Scalar(
    name="Int64",
    says="A whole number of up to 64 bits, as a text: JSON's readers round beyond 2^53.",
    read=_whole,
)
BIG_INT = Scalar(name="BigInt", says="A whole number of up to 256 bits, as a text.", read=_whole)
FLOAT64 = Scalar(
    name="Float64",
    says='A number, or "NaN", "Infinity" or "-Infinity". NaN equals NaN and is the largest.',
    read=_float,
)
DECIMAL = Scalar(name="Decimal", says='An exact decimal number, as a text: "1.50".', read=_decimal)
DATE = Scalar(name="Date", says='A day: "YYYY-MM-DD".', read=_day)
TIMESTAMP = Scalar(
    name="Timestamp",
    says='A moment in UTC: "YYYY-MM-DDThh:mm:ss.ffffffZ". A literal may have another zone; without '
    "one it is in UTC.",
    read=_moment,
)
UUID = Scalar(name="UUID", says="A UUID in lower case. They compare as texts.", read=_uuid)
BYTES = Scalar(name="Bytes", says="Bytes in base64. They cannot be filtered by.", read=_anything)
JSON = Scalar(name="JSON", says="A structure, as JSON. It cannot be filtered by.", read=_anything)

SCALARS: Mapping[str, Scalar] = MappingProxyType(
    {
        each.name: each
        for each in (
            *(BOOLEAN, INT, STRING, INT64, BIG_INT, FLOAT64),
            *(DECIMAL, DATE, TIMESTAMP, UUID, BYTES, JSON),
        )
    }
)
