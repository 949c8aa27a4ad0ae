"""Brings a comparison of a column and a literal into a form that ClickHouse computes exactly.

A parameter has the column's type, and a literal may not fit: it may be finer, or out of range. The
comparison is then one with a neighbour, or has one result for all values but null. Floats compare
as Spark's do: NaN equals NaN and is larger than every number; 0.0 equals -0.0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from operator import eq, ge, gt, le, lt, ne
from types import MappingProxyType
from typing import Any

from iscp_dagster.serve.columns import Column

OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = MappingProxyType(
    {"_eq": eq, "_neq": ne, "_gt": gt, "_gte": ge, "_lt": lt, "_lte": le}
)
SQL: Mapping[str, str] = MappingProxyType(
    {"_eq": "=", "_neq": "!=", "_gt": ">", "_gte": ">=", "_lt": "<", "_lte": "<="}
)


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A comparison by `operator` with `value`; for a column with a grid, with a place on it.

    Without an operator, `always` is the result for each value that is not null.
    """

    operator: str = ""
    value: Any = None
    always: bool = False


def fitted(column: Column, operator: str, value: Any) -> Fitted:
    """Return the comparison of the column with a comparable value, as ClickHouse can compute it."""
    if column.grid is None:
        return Fitted(operator=operator, value=value)
    step, least, most = column.grid
    place = Fraction(value) / step
    below, above = math.floor(place), math.ceil(place)
    if operator in {"_eq", "_neq"}:
        held = below == above and least <= below <= most
        return Fitted(operator=operator, value=below) if held else Fitted(always=operator == "_neq")
    # Among the column's values: x > v as x > the value below v, and x >= v as x >= the one above.
    near = below if operator in {"_gt", "_lte"} else above
    result = _beyond(operator, near, least, most)
    if result is not None:
        return Fitted(always=result)
    return Fitted(operator=operator, value=near)


def _beyond(operator: str, near: int, least: int, most: int) -> bool | None:
    """The result if it is the same for all values of the type."""
    if operator in {"_gt", "_lte"}:
        greater = True if near < least else False if near >= most else None
    else:
        greater = True if near <= least else False if near > most else None
    if greater is None:
        return None
    return greater if operator in {"_gt", "_gte"} else not greater


def compare(operator: str, one: Any, other: Any) -> bool:
    """Compare two comparable values that are not null, NaN as the largest number."""
    if isinstance(one, float) or isinstance(other, float):
        one, other = ranked(one), ranked(other)
    return OPERATORS[operator](one, other)


def ranked(value: float) -> tuple[bool, float]:
    """Return what orders floats with NaN as the largest."""
    return (True, 0.0) if math.isnan(value) else (False, value)
