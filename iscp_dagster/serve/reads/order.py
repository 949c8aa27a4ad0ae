"""The order of rows: as asked for, then by tenant and key; in SQL, and for rows of shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from typing import Any

from iscp_dagster.serve import scalars
from iscp_dagster.serve.columns import Column
from iscp_dagster.serve.comparing import compare
from iscp_dagster.serve.served import Served
from iscp_dagster.serve.where import Row


@dataclass(frozen=True, kw_only=True)
class Order:
    """One part of `order_by`."""

    column: Column
    descending: bool = False
    nulls_first: bool = False

    @property
    def sql(self) -> str:
        held = self.column.ordered
        nulls = "NULLS FIRST" if self.nulls_first else "NULLS LAST"
        how = f"{'DESC' if self.descending else 'ASC'} {nulls}"
        parts = [f"isNaN({held}) {how}"] if self.column.scalar is scalars.FLOAT64 else []
        return ", ".join([*parts, f"{held} {how}"])


def whole(served: Served, asked: Sequence[Order]) -> tuple[Order, ...]:
    """Return the order asked for, and then by tenant and key, so that pages do not overlap."""
    named = {each.column.name for each in asked}
    rest = served.identity if served.keys else (*served.identity, *served.columns)
    return (
        *asked,
        *(Order(column=each) for each in rest if each.name not in named and each.compares),
    )


def clause(order: Sequence[Order]) -> str:
    """Return the ORDER BY clause."""
    return f"ORDER BY {', '.join(each.sql for each in order)}" if order else ""


def merged(found: Iterable[Row], order: Sequence[Order]) -> list[Row]:
    """Return rows of several shards in order."""

    def compared(one: Row, other: Row) -> int:
        for each in order:
            found = _compared(each, one[each.column.field], other[each.column.field])
            if found:
                return found
        return 0

    return sorted(found, key=cmp_to_key(compared))


def _compared(order: Order, one: Any, other: Any) -> int:
    if one is None or other is None:
        first = -1 if order.nulls_first else 1
        return 0 if one is other else first if one is None else -first
    one, other = order.column.value(one), order.column.value(other)
    before = compare("_lt", one, other) - compare("_gt", one, other)
    return before if order.descending else -before
