"""Columns as the GraphQL schema has them: their fields, their scalars, how ClickHouse selects them.

Every type that ClickHouse keeps for an index has a scalar here, or lists of one; see
docs/graphql.md for the table.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from types import MappingProxyType
from typing import Any

from iscp_dagster.clickhouse.connect.quoting import quote_identifier
from iscp_dagster.clickhouse.types.storage import can_hold_null
from iscp_dagster.clickhouse.types.type_parser import FLOATS, ClickHouseType
from iscp_dagster.serve import scalars
from iscp_dagster.serve.scalars import Scalar

_UNNAMABLE = re.compile(r"[^_A-Za-z0-9]")
_WHOLE = re.compile(r"(U?)Int(8|16|32|64|128|256)")
_SCALARS_BY_TYPE: Mapping[str, Scalar] = MappingProxyType(
    {
        "Bool": scalars.BOOLEAN,
        **dict.fromkeys(("Int8", "Int16", "Int32", "UInt8", "UInt16"), scalars.INT),
        **dict.fromkeys(("UInt32", "Int64"), scalars.INT64),
        **dict.fromkeys(("UInt64", "Int128", "Int256", "UInt128", "UInt256"), scalars.BIG_INT),
        **dict.fromkeys(FLOATS, scalars.FLOAT64),
        "Decimal": scalars.DECIMAL,
        **dict.fromkeys(
            ("String", "FixedString", "Enum8", "Enum16", "IPv4", "IPv6"), scalars.STRING
        ),
        "UUID": scalars.UUID,
        **dict.fromkeys(("Date", "Date32"), scalars.DATE),
        **dict.fromkeys(("DateTime", "DateTime64"), scalars.TIMESTAMP),
        **dict.fromkeys(("Map", "Tuple", "Nested", "JSON", "Dynamic", "Variant"), scalars.JSON),
        **dict.fromkeys(
            ("Point", "Ring", "LineString", "Polygon", "MultiLineString", "MultiPolygon"),
            scalars.JSON,
        ),
    }
)
COMPARED_AS_TEXT = frozenset({"FixedString", "Enum8", "Enum16", "IPv4", "IPv6"})
"""Types that ClickHouse does not order as texts, although the source's values are texts."""
_SHORT_FLOATS = frozenset({"Float32", "BFloat16"})
BINARY_TYPES = frozenset({"String", "FixedString"})
"""Types that may keep bytes."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of an index: `name` in ClickHouse, `field` in GraphQL, values of `type`."""

    name: str
    field: str
    type: ClickHouseType
    scalar: Scalar
    list_depth: int = 0
    """How many lists are around the scalar."""

    @property
    def nullable(self) -> bool:
        return can_hold_null(self.type) or self.scalar is scalars.JSON

    @property
    def element(self) -> Column:
        """The column of its lists' elements; only for a column of lists."""
        return replace(self, type=self.type.bare.parts[0], list_depth=self.list_depth - 1)

    @property
    def is_comparable(self) -> bool:
        """Whether `where` and `order_by` have it."""
        return not self.list_depth and self.scalar not in {scalars.JSON, scalars.BYTES}

    @property
    def is_null_only(self) -> bool:
        """Whether `where` can only test it for null."""
        return not self.is_comparable and can_hold_null(self.type)

    @property
    def select_sql(self) -> str:
        """Its SQL in a SELECT, whose JSON is the field's value."""
        quoted = quote_identifier(self.name)
        if self.type.bare.name == "BFloat16":
            return f"toFloat32({quoted})"
        return f"base64Encode({quoted})" if self.scalar is scalars.BYTES else quoted

    def to_comparable(self, raw: Any) -> Any:
        """Return the comparable form of a value in an answer, which must not be null."""
        comparable = self.scalar.parse(raw)
        if self.type.bare.name not in _SHORT_FLOATS or math.isinf(comparable):
            return comparable
        # ClickHouse writes only as many digits as distinguish floats of 32 bits.
        return struct.unpack("f", struct.pack("f", comparable))[0]

    @property
    def order_sql(self) -> str:
        """Its SQL in ORDER BY, ordered as the source's values are."""
        return self.render_operand("_lt")[0]

    def render_operand(self, operator: str) -> tuple[str, str]:
        """Return its SQL in a comparison, and the ClickHouse type of the parameter beside it."""
        quoted, bare_type = quote_identifier(self.name), self.type.bare
        if bare_type.name in COMPARED_AS_TEXT or (
            bare_type.name == "UUID" and operator not in {"_eq", "_neq"}
        ):
            return f"toString({quoted})", "String"
        if self.scalar is scalars.FLOAT64:
            return quoted, "Float64"
        if self.scalar is scalars.TIMESTAMP:
            precise = f"64({bare_type.numbers[0]}, 'UTC')" if bare_type.numbers else "('UTC')"
            return quoted, f"DateTime{precise}"
        return quoted, str(bare_type)

    @cached_property
    def grid(self) -> tuple[Fraction, int, int] | None:
        """The step between values, and the least and largest value in steps; None: no steps."""
        return _derive_grid(self.type.bare)


def to_graphql_name(name: str) -> str:
    """Return the GraphQL name of a column or table.

    Characters that GraphQL does not allow become `_`; a leading digit gets a `_` before it, and
    a leading `__`, which GraphQL reserves, becomes `_`.
    """
    valid = _UNNAMABLE.sub("_", name)
    valid = f"_{valid}" if not valid or valid[0].isdigit() else valid
    return re.sub(r"^__+", "_", valid)


def build_column(name: str, type_: ClickHouseType, *, binary: bool = False) -> Column | None:
    """Return the column as GraphQL has it; None if GraphQL has no such type.

    With `binary`, its texts are bytes of the source, which need not be UTF-8.
    """
    lists, inner = 0, type_
    while inner.bare.name == "Array":
        lists, inner = lists + 1, inner.bare.parts[0]
    bare_type = inner.bare
    scalar = _SCALARS_BY_TYPE.get(bare_type.name)
    if binary:
        scalar = scalars.BYTES if bare_type.name in BINARY_TYPES and not lists else None
    if scalar is None:
        return None
    return Column(
        name=name, field=to_graphql_name(name), type=type_, scalar=scalar, list_depth=lists
    )


def _derive_grid(bare_type: ClickHouseType) -> tuple[Fraction, int, int] | None:
    if match := _WHOLE.fullmatch(bare_type.name):
        bits = int(match[2])
        step, half = Fraction(1), 2 ** (bits - 1)
        return (step, 0, 2 * half - 1) if match[1] else (step, -half, half - 1)
    if bare_type.name == "Decimal":
        precision, scale = bare_type.numbers
        highest = 10**precision - 1
        return Fraction(1, 10**scale), -highest, highest
    if bare_type.name in _DAY_RANGES:
        return (Fraction(1), *_DAY_RANGES[bare_type.name])
    if bare_type.name == "DateTime":
        return Fraction(scalars.NANOS_PER_SECOND), 0, 2**32 - 1
    if bare_type.name == "DateTime64":
        return _derive_time_grid(bare_type.numbers[0])
    return None


_DAY_RANGES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {"Date": (0, 65_535), "Date32": (-25_567, 120_529)}
)
"""The first and last day that a type holds, in days since 1970."""
_FIRST_SECOND, _LAST_SECOND = -2_208_988_800, 10_413_791_999
"""1900-01-01 and the end of 2299."""
_LAST_OF_NANOS = 9_223_372_036
"""The last whole second before the end of 64 bits of nanoseconds, in 2262."""


def _derive_time_grid(precision: int) -> tuple[Fraction, int, int]:
    last_second = _LAST_OF_NANOS if 10**precision == scalars.NANOS_PER_SECOND else _LAST_SECOND
    ticks = 10**precision
    return (
        Fraction(scalars.NANOS_PER_SECOND, ticks),
        _FIRST_SECOND * ticks,
        (last_second + 1) * ticks - 1,
    )
