"""The order of rows: as requested, then by tenant and key; in SQL, and for rows of shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from typing import Any

from iscp_dagster.serve import scalars
from iscp_dagster.serve.columns import Column
from iscp_dagster.serve.comparing import compare
from iscp_dagster.serve.served_index import ServedIndex
from iscp_dagster.serve.where import Row


@dataclass(frozen=True, kw_only=True)
class OrderTerm:
    """One part of `order_by`."""

    column: Column
    descending: bool = False
    nulls_first: bool = False

    @property
    def sql(self) -> str:
        expression = self.column.order_sql
        nulls = "NULLS FIRST" if self.nulls_first else "NULLS LAST"
        direction = f"{'DESC' if self.descending else 'ASC'} {nulls}"
        parts = (
            [f"isNaN({expression}) {direction}"] if self.column.scalar is scalars.FLOAT64 else []
        )
        return ", ".join([*parts, f"{expression} {direction}"])


def complete_order(served: ServedIndex, requested: Sequence[OrderTerm]) -> tuple[OrderTerm, ...]:
    """Return the requested order, then by tenant and key, so that pages do not overlap."""
    names = {part.column.name for part in requested}
    rest = served.identity_columns if served.keys else (*served.identity_columns, *served.columns)
    return (
        *requested,
        *(
            OrderTerm(column=column)
            for column in rest
            if column.name not in names and column.is_comparable
        ),
    )


def render_order_by(order: Sequence[OrderTerm]) -> str:
    """Return the ORDER BY clause."""
    return f"ORDER BY {', '.join(part.sql for part in order)}" if order else ""


def merge_rows(rows: Iterable[Row], order: Sequence[OrderTerm]) -> list[Row]:
    """Return rows of several shards in order."""

    def compare_rows(first: Row, second: Row) -> int:
        for part in order:
            sign = _compare_fields(part, first[part.column.field], second[part.column.field])
            if sign:
                return sign
        return 0

    return sorted(rows, key=cmp_to_key(compare_rows))


def _compare_fields(order: OrderTerm, first: Any, second: Any) -> int:
    if first is None or second is None:
        null_sign = -1 if order.nulls_first else 1
        return 0 if first is second else null_sign if first is None else -null_sign
    first, second = order.column.to_comparable(first), order.column.to_comparable(second)
    sign = compare("_lt", first, second) - compare("_gt", first, second)
    return sign if order.descending else -sign
