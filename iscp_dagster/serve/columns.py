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

from iscp_dagster.clickhouse.connect.quoting import ident
from iscp_dagster.clickhouse.types.stored import takes_nulls
from iscp_dagster.clickhouse.types.typetext import FLOATS, ChType
from iscp_dagster.serve import scalars
from iscp_dagster.serve.scalars import Scalar

_UNNAMABLE = re.compile(r"[^_A-Za-z0-9]")
_WHOLE = re.compile(r"(U?)Int(8|16|32|64|128|256)")
_BY_NAME: Mapping[str, Scalar] = MappingProxyType(
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
AS_TEXT = frozenset({"FixedString", "Enum8", "Enum16", "IPv4", "IPv6"})
"""Types that ClickHouse orders otherwise than their texts, which are the source's values."""
_SHORT_FLOATS = frozenset({"Float32", "BFloat16"})
BINARY = frozenset({"String", "FixedString"})
"""Types that may keep bytes."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of an index: `name` in ClickHouse, `field` in GraphQL, values of `type`."""

    name: str
    field: str
    type: ChType
    scalar: Scalar
    lists: int = 0
    """How many lists are around the scalar."""

    @property
    def nullable(self) -> bool:
        return takes_nulls(self.type) or self.scalar is scalars.JSON

    @property
    def element(self) -> Column:
        """What its lists hold, where there are some."""
        return replace(self, type=self.type.bare.parts[0], lists=self.lists - 1)

    @property
    def compares(self) -> bool:
        """Whether `where` and `order_by` have it."""
        return not self.lists and self.scalar not in {scalars.JSON, scalars.BYTES}

    @property
    def nulls(self) -> bool:
        """Whether `where` can only ask it for null."""
        return not self.compares and takes_nulls(self.type)

    @property
    def selected(self) -> str:
        """Its SQL in a SELECT, whose JSON is the field's value."""
        quoted = ident(self.name)
        if self.type.bare.name == "BFloat16":
            return f"toFloat32({quoted})"
        return f"base64Encode({quoted})" if self.scalar is scalars.BYTES else quoted

    def value(self, held: Any) -> Any:
        """Return the comparable value of one in an answer that is not null."""
        read = self.scalar.read(held)
        if self.type.bare.name not in _SHORT_FLOATS or math.isinf(read):
            return read
        # ClickHouse writes as many digits as tell floats of 32 bits apart.
        return struct.unpack("f", struct.pack("f", read))[0]

    @property
    def ordered(self) -> str:
        """Its SQL in ORDER BY, ordered as the source's values are."""
        return self.compared("_lt")[0]

    def compared(self, operator: str) -> tuple[str, str]:
        """Return its SQL in a comparison, and the ClickHouse type of the parameter beside it."""
        quoted, bare = ident(self.name), self.type.bare
        if bare.name in AS_TEXT or (bare.name == "UUID" and operator not in {"_eq", "_neq"}):
            return f"toString({quoted})", "String"
        if self.scalar is scalars.FLOAT64:
            return quoted, "Float64"
        if self.scalar is scalars.TIMESTAMP:
            precise = f"64({bare.numbers[0]}, 'UTC')" if bare.numbers else "('UTC')"
            return quoted, f"DateTime{precise}"
        return quoted, str(bare)

    @cached_property
    def grid(self) -> tuple[Fraction, int, int] | None:
        """The step between values, and the least and largest value in steps; None: no steps."""
        return _grid(self.type.bare)


def named(name: str) -> str:
    """Return the GraphQL name of a column or table.

    Characters that GraphQL's names cannot have become `_`; a first digit gets a `_` before it, and
    of leading `__`, which GraphQL reserves, one `_` stays.
    """
    plain = _UNNAMABLE.sub("_", name)
    plain = f"_{plain}" if not plain or plain[0].isdigit() else plain
    return re.sub(r"^__+", "_", plain)


def column(name: str, type_: ChType, *, binary: bool = False) -> Column | None:
    """Return the column as GraphQL has it; None for a type that it does not have.

    `binary` tells that its texts are bytes of the source, which need not be UTF-8.
    """
    lists, inner = 0, type_
    while inner.bare.name == "Array":
        lists, inner = lists + 1, inner.bare.parts[0]
    bare = inner.bare
    scalar = _BY_NAME.get(bare.name)
    if binary:
        scalar = scalars.BYTES if bare.name in BINARY and not lists else None
    if scalar is None:
        return None
    return Column(name=name, field=named(name), type=type_, scalar=scalar, lists=lists)


def _grid(bare: ChType) -> tuple[Fraction, int, int] | None:
    if whole := _WHOLE.fullmatch(bare.name):
        bits = int(whole[2])
        one, half = Fraction(1), 2 ** (bits - 1)
        return (one, 0, 2 * half - 1) if whole[1] else (one, -half, half - 1)
    if bare.name == "Decimal":
        precision, scale = bare.numbers
        most = 10**precision - 1
        return Fraction(1, 10**scale), -most, most
    if bare.name in _DAYS:
        return (Fraction(1), *_DAYS[bare.name])
    if bare.name == "DateTime":
        return Fraction(scalars.NANOS), 0, 2**32 - 1
    if bare.name == "DateTime64":
        return _moments(bare.numbers[0])
    return None


_DAYS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {"Date": (0, 65_535), "Date32": (-25_567, 120_529)}
)
"""The first and last day that a type holds, in days since 1970."""
_FIRST_SECOND, _LAST_SECOND = -2_208_988_800, 10_413_791_999
"""1900-01-01 and the end of 2299."""
_LAST_OF_NANOS = 9_223_372_036
"""The last whole second before the end of 64 bits of nanoseconds, in 2262."""


def _moments(precision: int) -> tuple[Fraction, int, int]:
    last = _LAST_OF_NANOS if 10**precision == scalars.NANOS else _LAST_SECOND
    ticks = 10**precision
    return Fraction(scalars.NANOS, ticks), _FIRST_SECOND * ticks, (last + 1) * ticks - 1
