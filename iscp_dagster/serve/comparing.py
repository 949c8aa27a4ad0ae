"""Brings a comparison of a column and a literal into a form that ClickHouse computes exactly.

A parameter has the column's type, and a literal may not fit: it may be finer, or out of range. The
column is then compared with a neighbour, or the result is the same for all values but null. Floats
compare as Spark's do: NaN equals NaN and is larger than every number; 0.0 equals -0.0.
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
SQL_OPERATORS: Mapping[str, str] = MappingProxyType(
    {"_eq": "=", "_neq": "!=", "_gt": ">", "_gte": ">=", "_lt": "<", "_lte": "<="}
)


@dataclass(frozen=True, kw_only=True)
class FittedComparison:
    """A comparison by `operator` with `value`; a column with a grid counts it in steps.

    Without an operator, `constant_result` is the result for each value that is not null.
    """

    operator: str = ""
    value: Any = None
    constant_result: bool = False


def fit_comparison(column: Column, operator: str, value: Any) -> FittedComparison:
    """Return the comparison of the column with a comparable value, as ClickHouse can compute it."""
    if column.grid is None:
        return FittedComparison(operator=operator, value=value)
    step, lowest, highest = column.grid
    steps = Fraction(value) / step
    below, above = math.floor(steps), math.ceil(steps)
    if operator in {"_eq", "_neq"}:
        exact = below == above and lowest <= below <= highest
        return (
            FittedComparison(operator=operator, value=below)
            if exact
            else FittedComparison(constant_result=operator == "_neq")
        )
    # x > v becomes x > the nearest value below v, and x >= v becomes x >= the one above.
    neighbour = below if operator in {"_gt", "_lte"} else above
    result = _find_constant_result(operator, neighbour, lowest, highest)
    if result is not None:
        return FittedComparison(constant_result=result)
    return FittedComparison(operator=operator, value=neighbour)


def _find_constant_result(operator: str, neighbour: int, lowest: int, highest: int) -> bool | None:
    """The result if it is the same for all values of the type."""
    if operator in {"_gt", "_lte"}:
        greater = True if neighbour < lowest else False if neighbour >= highest else None
    else:
        greater = True if neighbour <= lowest else False if neighbour > highest else None
    if greater is None:
        return None
    return greater if operator in {"_gt", "_gte"} else not greater


def compare(operator: str, first: Any, second: Any) -> bool:
    """Compare two comparable values that are not null, NaN as the largest number."""
    if isinstance(first, float) or isinstance(second, float):
        first, second = to_sort_key(first), to_sort_key(second)
    return OPERATORS[operator](first, second)


def to_sort_key(value: float) -> tuple[bool, float]:
    """Return a key that sorts NaN as the largest float."""
    return (True, 0.0) if math.isnan(value) else (False, value)
