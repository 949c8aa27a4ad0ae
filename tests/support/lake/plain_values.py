"""Values of Spark and of ClickHouse as the same plain Python, by a small table of types.

It uses no code of the package. A float becomes its text, so that -0.0 and NaN compare like other
values; a time becomes microseconds since 1970, a date days; a text its bytes; a struct the tuple of
its fields, in the source's order; a map its sorted pairs.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
DAY = EPOCH.date()
MICROSECOND = dt.timedelta(microseconds=1)


def plain(type_: pa.DataType, value: Any, *, nulls: bool = True) -> Any:
    """The value of a column of that (source's) type; without `nulls`, a null list is empty."""
    if nested := _nested(type_):
        return nested(type_, value, nulls=nulls)
    if value is None:
        return None
    return next(make for is_, make in _TYPES if is_(type_))(value)


def as_bytes(rows: pa.Table) -> pa.Table:
    """The rows with texts as bytes, also within lists and structs: they need not be UTF-8."""
    fields = [pa.field(each.name, _binary(each.type)) for each in rows.schema]
    return rows.cast(pa.schema(fields))


def _binary(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return pa.binary()
    if pa.types.is_list(type_):
        return pa.list_(_binary(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(each.name, _binary(each.type)) for each in type_])
    return type_


def _float(value: Any) -> str:
    return repr(float(value))


def _single(value: Any) -> str:
    return repr(struct.unpack("f", struct.pack("f", value))[0])


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _days(value: Any) -> int:
    if isinstance(value, bytes):
        value = dt.date.fromisoformat(value.decode())
    return value if isinstance(value, int) else (value - DAY).days


def _micros(value: Any) -> int:
    if isinstance(value, bytes):
        value = dt.datetime.fromisoformat(value.decode().removesuffix("Z"))
    if isinstance(value, int):
        return value
    aware = value if value.tzinfo else value.replace(tzinfo=dt.timezone.utc)
    return (aware - EPOCH) // MICROSECOND


def _list(type_: Any, value: Any, *, nulls: bool) -> Any:
    if value is None:
        return None if nulls else ()
    return tuple(plain(type_.value_type, each, nulls=nulls) for each in value)


def _struct(type_: Any, value: Any, *, nulls: bool) -> Any:
    if value is None:
        if nulls:
            return None
        value = {}
    fields = list(type_)
    if not isinstance(value, Mapping):
        value = dict(zip([each.name for each in fields], value, strict=True))
    return tuple(plain(each.type, value.get(each.name), nulls=nulls) for each in fields)


def _map(type_: Any, value: Any, *, nulls: bool) -> Any:
    if value is None:
        return None if nulls else ()
    pairs = value.items() if isinstance(value, Mapping) else value
    types = (type_.key_type, type_.item_type)
    plain_pairs = [
        tuple(plain(t, v, nulls=nulls) for t, v in zip(types, each, strict=True)) for each in pairs
    ]
    return tuple(sorted(plain_pairs, key=repr))


def _nested(type_: pa.DataType) -> Callable[..., Any] | None:
    kinds = ((pa.types.is_list, _list), (pa.types.is_struct, _struct), (pa.types.is_map, _map))
    return next((make for is_, make in kinds if is_(type_)), None)


_TYPES: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], Any]], ...] = (
    (pa.types.is_boolean, bool),
    (pa.types.is_integer, int),
    (pa.types.is_float32, _single),
    (pa.types.is_float64, _float),
    (pa.types.is_decimal, Decimal),
    (pa.types.is_date, _days),
    (pa.types.is_timestamp, _micros),
    (pa.types.is_string, _bytes),
    (pa.types.is_large_string, _bytes),
    (pa.types.is_binary, _bytes),
)
