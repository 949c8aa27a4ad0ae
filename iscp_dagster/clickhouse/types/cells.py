"""The one table of which ClickHouse types hold which Delta types, cell by cell.

The first cell of a family is its default. docs/types.md shows the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from iscp_dagster.clickhouse.types import leaves, texts
from iscp_dagster.clickhouse.types.leaves import Fit
from iscp_dagster.clickhouse.types.typetext import FLOATS, ChType
from iscp_dagster.model.declared.schema import Decimal, DeltaType, Primitive


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One family of Delta types kept as one of the types `names`.

    `read` is the type in which ClickHouse returns the values for comparison; None: the stored one.
    `blank` is a value that the type holds, set if it does not hold the family's own blank.
    `respell` rewrites held values as ClickHouse returns them, if that may differ.
    """

    shown: str
    names: tuple[str, ...]
    holds: str
    fit: Fit
    read: str | None = None
    blank: str | None = None
    respell: Callable[[pa.Array], pa.Array] | None = None


SIGNED = ("Int8", "Int16", "Int32", "Int64")
UNSIGNED = ("UInt8", "UInt16", "UInt32", "UInt64")
WIDE = ("Int128", "Int256", "UInt128", "UInt256")
DEFAULT = "the default"
"""Marks values that are read back as the family's default type."""

_WHOLE = Cell(
    shown="`Int8` to `Int64`, `UInt8` to `UInt64`",
    names=SIGNED + UNSIGNED,
    holds="whole numbers within its range",
    fit=leaves.integer,
)
_WIDE = Cell(
    shown="`Int128`, `Int256`, `UInt128`, `UInt256`",
    names=WIDE,
    holds="whole numbers; none below 0 if unsigned",
    fit=leaves.integer,
    read="String",
)
_BIT = Cell(shown="`Bool`", names=("Bool",), holds="0 and 1", fit=leaves.boolean, read="UInt8")
_DECIMAL = Cell(
    shown="`Decimal(p, s)`, p to 76",
    names=("Decimal",),
    holds="numbers with no more digits before and after the point",
    fit=leaves.decimal,
)
_FLOATS = Cell(
    shown="`Float32`, `Float64`, `BFloat16`",
    names=FLOATS,
    holds="numbers that it represents exactly; nothing is rounded",
    fit=leaves.floating,
    read="Float64",
)
_TEXT = Cell(
    shown="`String`",
    names=("String",),
    holds="all values, as their text",
    fit=leaves.text,
    read="String",
)
_BYTES = Cell(
    shown="`FixedString(n)`",
    names=("FixedString",),
    holds="values of exactly n bytes",
    fit=leaves.fixed_bytes,
)
_STRING = Cell(shown="`String`", names=("String",), holds="all values", fit=leaves.as_it_is)
_JSON = Cell(
    shown="`JSON`",
    names=("JSON",),
    holds="objects that it returns unchanged: no null members, no empty objects, no arrays of only "
    "nulls, no `.` in a name, arrays of one kind, numbers that a 64-bit integer or double holds, "
    "no text that looks like a date or time, such as `2020-01-31 12:00:00`, except dates from "
    "1970-01-01 to 2149-06-06; not within other types",
    fit=texts.json_object,
    read="String",
    blank="{}",
)
_DAYS = Cell(
    shown="`Int32`, `Int64`",
    names=("Int32", "Int64"),
    holds="all values, as days since 1970-01-01",
    fit=leaves.date,
    read="Int32",
)
_MICROS = Cell(
    shown="`Int64`",
    names=("Int64",),
    holds="all values, as microseconds since 1970-01-01",
    fit=leaves.moment,
)
_ISO = Cell(
    shown="`String`",
    names=("String",),
    holds="the years 1 to 9999, as `YYYY-MM-DD`",
    fit=leaves.date,
    read="String",
)
_MOMENT = Cell(
    shown="`DateTime64(p, zone)`",
    names=("DateTime64",),
    holds="the years 1900 to 2299 (p = 9: to 2262-04-11), no finer than its precision",
    fit=leaves.moment,
    read="DateTime64(6, 'UTC')",
)
_SECOND = Cell(
    shown="`DateTime(zone)`",
    names=("DateTime",),
    holds="whole seconds from 1970-01-01 to 2106-02-07",
    fit=leaves.moment,
    read="DateTime64(6, 'UTC')",
)
_ISO_MOMENT = Cell(
    shown="`String`",
    names=("String",),
    holds="the years 1 to 9999, as `YYYY-MM-DD hh:mm:ss.ffffff`, with `Z` for a timestamp",
    fit=leaves.moment,
    read="String",
)
_TIMES = (_MOMENT, _SECOND, _MICROS, _ISO_MOMENT)

CELLS: Mapping[str, tuple[Cell, ...]] = MappingProxyType(
    {
        "boolean": (
            Cell(shown="`Bool`", names=("Bool",), holds="all values", fit=leaves.as_it_is),
            Cell(
                shown="`Int8` to `Int256`, `UInt8` to `UInt256`",
                names=SIGNED + UNSIGNED + WIDE,
                holds="all values, as 0 and 1",
                fit=leaves.integer,
                read="UInt8",
            ),
            _TEXT,
        ),
        "integer": (_WHOLE, _WIDE, _DECIMAL, _FLOATS, _BIT, _TEXT),
        "floating": (_FLOATS, _TEXT),
        "decimal": (replace(_DECIMAL, read=DEFAULT), replace(_WHOLE, read=DEFAULT), _WIDE, _TEXT),
        "string": (
            _STRING,
            _BYTES,
            Cell(
                shown="`UUID`",
                names=("UUID",),
                holds="UUIDs, 8-4-4-4-12, in lower or upper case; they come back in lower case; "
                "a tenant's UUID must be in lower case",
                fit=leaves.uuid,
                respell=leaves.lowered_uuids,
                read="String",
                blank="00000000-0000-0000-0000-000000000000",
            ),
            Cell(
                shown="`IPv4`",
                names=("IPv4",),
                holds="addresses of four numbers without leading zeros",
                fit=leaves.ipv4,
                read="String",
                blank="0.0.0.0",  # noqa: S104 - a value, not an address to listen at
            ),
            Cell(
                shown="`IPv6`",
                names=("IPv6",),
                holds="addresses in their shortest form (RFC 5952)",
                fit=texts.ipv6,
                read="String",
                blank="::",
            ),
            Cell(
                shown="`Enum8(...)`, `Enum16(...)`",
                names=("Enum8", "Enum16"),
                holds="the names of its members",
                fit=leaves.member,
                read="String",
            ),
            _JSON,
        ),
        "binary": (_STRING, _BYTES),
        "date": (
            Cell(
                shown="`Date32`",
                names=("Date32",),
                holds="the years 1900 to 2299",
                fit=leaves.date,
            ),
            Cell(
                shown="`Date`",
                names=("Date",),
                holds="1970-01-01 to 2149-06-06",
                fit=leaves.date,
                read="Date32",
            ),
            _DAYS,
            _ISO,
        ),
        "timestamp": _TIMES,
        "timestamp_ntz": _TIMES,
        "variant": (
            Cell(
                shown="`String`",
                names=("String",),
                holds="all values, as Spark's `to_json` writes them",
                fit=leaves.as_it_is,
            ),
            _JSON,
        ),
    }
)
BLANKS: Mapping[str, Any] = MappingProxyType(
    {"boolean": False, "string": "", "binary": b"", "variant": ""}
)
"""A filler value of each family, for deleted rows; 0 for families not listed."""
FAMILIES: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(("byte", "short", "integer", "long"), "integer")
    | dict.fromkeys(("float", "double"), "floating")
    | {name: name for name in CELLS if name not in {"integer", "floating", "decimal"}}
)
"""The family of each Delta type without parts, by the type's name."""


def family(type_: DeltaType) -> str | None:
    """Return the family of a type without parts; None if it is unknown, or has parts."""
    if isinstance(type_, Decimal):
        return "decimal"
    return FAMILIES.get(type_.name) if isinstance(type_, Primitive) else None


def cell_of(type_: DeltaType, stored: ChType) -> Cell | None:
    """Return the cell for a type without parts kept as `stored`; None if there is none."""
    cells = CELLS.get(family(type_) or "", ())
    return next((cell for cell in cells if stored.name in cell.names), None)
