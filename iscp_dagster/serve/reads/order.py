"""The order of rows: as requested, then by tenant and key; in SQL, and for rows of shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from typing import Any

from iscp_dagster.serve import scalars
from iscp_dagster.serve.columns import Column
from iscp_dagster.serve.comparing import compare
from iscp_dagster.serve.served import ServedIndex
from iscp_dagster.serve.where import Row


@dataclass(frozen=True, kw_only=True)
class Order:
    """One part of `order_by`."""

    column: Column
    descending: bool = False
    nulls_first: bool = False

    @property
    def sql(self) -> str:
        expression = self.column.ordered
        nulls = "NULLS FIRST" if self.nulls_first else "NULLS LAST"
        direction = f"{'DESC' if self.descending else 'ASC'} {nulls}"
        parts = (
            [f"isNaN({expression}) {direction}"] if self.column.scalar is scalars.FLOAT64 else []
        )
        return ", ".join([*parts, f"{expression} {direction}"])


def complete_order(served: ServedIndex, requested: Sequence[Order]) -> tuple[Order, ...]:
    """Return the requested order, then by tenant and key, so that pages do not overlap."""
    names = {part.column.name for part in requested}
    rest = served.identity if served.keys else (*served.identity, *served.columns)
    return (
        *requested,
        *(Order(column=column) for column in rest if column.name not in names and column.compares),
    )


def render_order_by(order: Sequence[Order]) -> str:
    """Return the ORDER BY clause."""
    return f"ORDER BY {', '.join(part.sql for part in order)}" if order else ""


def merge_rows(rows: Iterable[Row], order: Sequence[Order]) -> list[Row]:
    """Return rows of several shards in order."""

    def compare_rows(one: Row, other: Row) -> int:
        for part in order:
            sign = _compare_fields(part, one[part.column.field], other[part.column.field])
            if sign:
                return sign
        return 0

    return sorted(rows, key=cmp_to_key(compare_rows))


def _compare_fields(order: Order, one: Any, other: Any) -> int:
    if one is None or other is None:
        null_sign = -1 if order.nulls_first else 1
        return 0 if one is other else null_sign if one is None else -null_sign
    one, other = order.column.value(one), order.column.value(other)
    sign = compare("_lt", one, other) - compare("_gt", one, other)
    return sign if order.descending else -sign
