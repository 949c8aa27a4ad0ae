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
from iscp_dagster.clickhouse.types.type_parser import FLOATS, ClickHouseType
from iscp_dagster.model.declared.schema import Decimal, DeltaType, Primitive


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One family of Delta types kept as one of the types `names`.

    `read_type` is the type in which ClickHouse returns the values for comparison; None: the stored
    one.
    `filler` is a value that the type holds, set if it does not hold the family's own filler.
    `respell` rewrites held values as ClickHouse returns them, if that may differ.
    """

    label: str
    names: tuple[str, ...]
    domain: str
    fit_values: Fit
    read_type: str | None = None
    filler: str | None = None
    respell: Callable[[pa.Array], pa.Array] | None = None


SIGNED = ("Int8", "Int16", "Int32", "Int64")
UNSIGNED = ("UInt8", "UInt16", "UInt32", "UInt64")
WIDE = ("Int128", "Int256", "UInt128", "UInt256")
DEFAULT = "the default"
"""Marks values that are read back as the family's default type."""

_WHOLE = Cell(
    label="`Int8` to `Int64`, `UInt8` to `UInt64`",
    names=SIGNED + UNSIGNED,
    domain="whole numbers in the type's range",
    fit_values=leaves.fit_integers,
)
_WIDE = Cell(
    label="`Int128`, `Int256`, `UInt128`, `UInt256`",
    names=WIDE,
    domain="whole numbers; for `UInt…` none below 0",
    fit_values=leaves.fit_integers,
    read_type="String",
)
_BIT = Cell(
    label="`Bool`",
    names=("Bool",),
    domain="0 and 1",
    fit_values=leaves.fit_booleans,
    read_type="UInt8",
)
_DECIMAL = Cell(
    label="`Decimal(p, s)`, p to 76",
    names=("Decimal",),
    domain="numbers with at most p - s digits before the point and s after it",
    fit_values=leaves.fit_decimals,
)
_FLOATS = Cell(
    label="`Float32`, `Float64`, `BFloat16`",
    names=FLOATS,
    domain="numbers that the type represents exactly; others are refused, not rounded",
    fit_values=leaves.fit_floats,
    read_type="Float64",
)
_TEXT = Cell(
    label="`String`",
    names=("String",),
    domain="all values, written as text",
    fit_values=leaves.fit_text,
    read_type="String",
)
_BYTES = Cell(
    label="`FixedString(n)`",
    names=("FixedString",),
    domain="values of exactly n bytes",
    fit_values=leaves.fit_fixed_bytes,
)
_STRING = Cell(label="`String`", names=("String",), domain="all values", fit_values=leaves.fit_any)
_JSON = Cell(
    label="`JSON`",
    names=("JSON",),
    domain="objects that it returns unchanged (see JSON in docs/types.md); not inside other types",
    fit_values=texts.fit_json_objects,
    read_type="String",
    filler="{}",
)
_DAYS = Cell(
    label="`Int32`, `Int64`",
    names=("Int32", "Int64"),
    domain="all values, as the number of days since 1970-01-01",
    fit_values=leaves.fit_dates,
    read_type="Int32",
)
_MICROS = Cell(
    label="`Int64`",
    names=("Int64",),
    domain="all values, as the number of microseconds since 1970-01-01",
    fit_values=leaves.fit_timestamps,
)
_ISO = Cell(
    label="`String`",
    names=("String",),
    domain="dates of the years 1 to 9999, as `YYYY-MM-DD`",
    fit_values=leaves.fit_dates,
    read_type="String",
)
_MOMENT = Cell(
    label="`DateTime64(p, zone)`",
    names=("DateTime64",),
    domain="times of the years 1900 to 2299 (with p = 9 to 2262-04-11) with at most p decimals "
    "of a second",
    fit_values=leaves.fit_timestamps,
    read_type="DateTime64(6, 'UTC')",
)
_SECOND = Cell(
    label="`DateTime(zone)`",
    names=("DateTime",),
    domain="times from 1970-01-01 to 2106-02-07, in whole seconds",
    fit_values=leaves.fit_timestamps,
    read_type="DateTime64(6, 'UTC')",
)
_ISO_MOMENT = Cell(
    label="`String`",
    names=("String",),
    domain="times of the years 1 to 9999, as `YYYY-MM-DD hh:mm:ss.ffffff`; a `timestamp` ends "
    "in `Z`",
    fit_values=leaves.fit_timestamps,
    read_type="String",
)
_TIMES = (_MOMENT, _SECOND, _MICROS, _ISO_MOMENT)

CELLS: Mapping[str, tuple[Cell, ...]] = MappingProxyType(
    {
        "boolean": (
            Cell(label="`Bool`", names=("Bool",), domain="all values", fit_values=leaves.fit_any),
            Cell(
                label="`Int8` to `Int256`, `UInt8` to `UInt256`",
                names=SIGNED + UNSIGNED + WIDE,
                domain="all values, as 0 and 1",
                fit_values=leaves.fit_integers,
                read_type="UInt8",
            ),
            _TEXT,
        ),
        "integer": (_WHOLE, _WIDE, _DECIMAL, _FLOATS, _BIT, _TEXT),
        "floating": (_FLOATS, _TEXT),
        "decimal": (
            replace(_DECIMAL, read_type=DEFAULT),
            replace(_WHOLE, read_type=DEFAULT),
            _WIDE,
            _TEXT,
        ),
        "string": (
            _STRING,
            _BYTES,
            Cell(
                label="`UUID`",
                names=("UUID",),
                domain="UUIDs with hyphens, in any case; returned in lower case (a tenant's must "
                "be in lower case)",
                fit_values=leaves.fit_uuids,
                respell=leaves.lower_uuids,
                read_type="String",
                filler="00000000-0000-0000-0000-000000000000",
            ),
            Cell(
                label="`IPv4`",
                names=("IPv4",),
                domain="addresses such as `10.0.0.1`, without leading zeros",
                fit_values=leaves.fit_ipv4,
                read_type="String",
                filler="0.0.0.0",  # noqa: S104 - a value, not an address to listen at
            ),
            Cell(
                label="`IPv6`",
                names=("IPv6",),
                domain="addresses as RFC 5952 writes them, such as `2001:db8::1`",
                fit_values=texts.fit_ipv6,
                read_type="String",
                filler="::",
            ),
            Cell(
                label="`Enum8(...)`, `Enum16(...)`",
                names=("Enum8", "Enum16"),
                domain="the names of the Enum's members",
                fit_values=leaves.fit_enum_members,
                read_type="String",
            ),
            _JSON,
        ),
        "binary": (_STRING, _BYTES),
        "date": (
            Cell(
                label="`Date32`",
                names=("Date32",),
                domain="dates from 1900-01-01 to 2299-12-31",
                fit_values=leaves.fit_dates,
            ),
            Cell(
                label="`Date`",
                names=("Date",),
                domain="dates from 1970-01-01 to 2149-06-06",
                fit_values=leaves.fit_dates,
                read_type="Date32",
            ),
            _DAYS,
            _ISO,
        ),
        "timestamp": _TIMES,
        "timestamp_ntz": _TIMES,
        "variant": (
            Cell(
                label="`String`",
                names=("String",),
                domain="all values, as Spark's `to_json` writes them",
                fit_values=leaves.fit_any,
            ),
            _JSON,
        ),
    }
)
FILLERS: Mapping[str, Any] = MappingProxyType(
    {"boolean": False, "string": "", "binary": b"", "variant": ""}
)
"""A filler value of each family, for deleted rows; 0 for families not listed."""
FAMILIES: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(("byte", "short", "integer", "long"), "integer")
    | dict.fromkeys(("float", "double"), "floating")
    | {name: name for name in CELLS if name not in {"integer", "floating", "decimal"}}
)
"""The family of each Delta type without parts, by the type's name."""


def get_family(type_: DeltaType) -> str | None:
    """Return the family of a type without parts; None if it is unknown, or has parts."""
    if isinstance(type_, Decimal):
        return "decimal"
    return FAMILIES.get(type_.name) if isinstance(type_, Primitive) else None


def find_cell(type_: DeltaType, stored: ClickHouseType) -> Cell | None:
    """Return the cell for a type without parts kept as `stored`; None if there is none."""
    cells = CELLS.get(get_family(type_) or "", ())
    return next((cell for cell in cells if stored.name in cell.names), None)
