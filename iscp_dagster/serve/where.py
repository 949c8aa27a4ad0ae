"""The `where:` of queries and subscriptions: one expression, for ClickHouse and for Python.

It has SQL's logic of three values: a comparison with null, of the row or of the query, is neither
true nor false, and neither is its `_not`; a row is selected when the whole is true. `_in: []` is
false and `_nin: []` true, also for null.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from iscp_dagster.serve.columns import Column
from iscp_dagster.serve.comparing import OPERATORS, compare
from iscp_dagster.serve.scalars import BadValueError

Row = Mapping[str, Any]
"""A row as an answer has it: by the columns' GraphQL names, values as GraphQL shows them."""
Truth = bool | None
"""True, false, or None: unknown."""
Columns = Mapping[str, Column]
"""Columns by their GraphQL names."""
MOST_TERMS = 2_000
"""The most comparisons and values in one expression."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The column compared with a comparable `value`; None: with null."""

    column: Column
    operator: str
    value: Any


@dataclass(frozen=True, kw_only=True)
class Among:
    """Whether the column's value is one of `values`; `null` tells that null is in the list."""

    column: Column
    values: tuple[Any, ...]
    null: bool = False


@dataclass(frozen=True, kw_only=True)
class IsNull:
    """Whether the column is null."""

    column: Column


@dataclass(frozen=True, kw_only=True)
class All:
    """True if all parts are; false if one is false."""

    parts: tuple[Expression, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Some:
    """True if a part is; false if all are false."""

    parts: tuple[Expression, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Not:
    """True if the part is false; unknown stays unknown."""

    part: Expression


Expression = Comparison | Among | IsNull | All | Some | Not
EVERYTHING = All()


def parse(columns: Columns, given: Mapping[str, Any] | None) -> Expression:
    """Return the expression that a `where` argument says; None and {} select every row.

    Literals may be as the client wrote them or comparable values. Raises BadValueError for an
    unknown column or operator, for a value of another type, and for more than MOST_TERMS terms.
    """
    if given is None:
        return EVERYTHING
    parser = _Parser(columns)
    return parser.object(given)


class _Parser:
    def __init__(self, columns: Columns) -> None:
        self._columns, self._left = columns, MOST_TERMS

    def object(self, given: Any) -> Expression:
        if not isinstance(given, Mapping):
            raise BadValueError(f"where: {given!r} is no condition; write {{column: {{_eq: 1}}}}.")
        self._count_empty(given)
        return _all([self._part(name, value) for name, value in given.items()])

    def _part(self, name: str, value: Any) -> Expression:
        if name == "_not":
            return Not(part=self.object(value))
        if name in {"_and", "_or"}:
            # GraphQL takes one value for a list of one.
            several = value if isinstance(value, list | tuple) else [value]
            self._count_empty(several)
            parts = [self.object(each) for each in several]
            return _all(parts) if name == "_and" else Some(parts=tuple(parts))
        if name not in self._columns:
            known = ", ".join(name for name, each in self._columns.items() if each.compares)
            raise BadValueError(f"where: there is no column {name!r} to filter by; use {known}.")
        return self._conditions(self._columns[name], value)

    def _conditions(self, column: Column, given: Any) -> Expression:
        if not isinstance(given, Mapping):
            raise BadValueError(
                f"where: {column.field}: {given!r} is no condition; write {{_eq: 1}}, or "
                "{_is_null: true} for null."
            )
        self._count_empty(given)
        return _all([self._condition(column, name, value) for name, value in given.items()])

    def _condition(self, column: Column, operator: str, given: Any) -> Expression:
        self._count(1)
        if operator == "_is_null" and isinstance(given, bool):
            return IsNull(column=column) if given else Not(part=IsNull(column=column))
        if operator in {"_in", "_nin"} and column.compares and given is not None:
            values = list(given) if isinstance(given, list | tuple) else [given]
            self._count(len(values))
            among = _among(column, values)
            return among if operator == "_in" else Not(part=among)
        if operator in {*OPERATORS, "_in", "_nin"} and column.compares:
            value = None if given is None else column.scalar.read(given)
            return Comparison(column=column, operator=operator, value=value)
        raise BadValueError(f"where: {column.field}: {operator}: {given!r} is no condition of it.")

    def _count_empty(self, parts: Collection[Any]) -> None:
        """Count what is true or false of itself, too: it is part of the statement."""
        self._count(0 if parts else 1)

    def _count(self, terms: int) -> None:
        self._left -= terms
        if self._left < 0:
            raise BadValueError(
                f"where: more than {MOST_TERMS:,} comparisons and values; ask with fewer."
            )


def _all(parts: Sequence[Expression]) -> Expression:
    return parts[0] if len(parts) == 1 else All(parts=tuple(parts))


def _among(column: Column, values: Sequence[Any]) -> Among:
    read = tuple(column.scalar.read(each) for each in values if each is not None)
    return Among(column=column, values=read, null=None in values)


def predicate(expression: Expression) -> Callable[[Row], bool]:
    """Return a function that tells whether the expression selects a row."""
    truth = _truth(expression)
    return lambda row: truth(row) is True


def _truth(expression: Expression) -> Callable[[Row], Truth]:
    if isinstance(expression, Comparison):
        return _comparing(expression)
    if isinstance(expression, Among):
        return _finding(expression)
    if isinstance(expression, IsNull):
        field = expression.column.field
        return lambda row: row[field] is None
    if isinstance(expression, Not):
        inner = _truth(expression.part)
        return lambda row: None if (found := inner(row)) is None else not found
    parts, decides = [_truth(each) for each in expression.parts], isinstance(expression, Some)
    return lambda row: _joined([part(row) for part in parts], decides=decides)


def _joined(truths: Sequence[Truth], *, decides: bool) -> Truth:
    """The truth of all, or of some: one that `decides` is enough, else an unknown one."""
    if decides in truths:
        return decides
    return None if None in truths else not decides


def _comparing(said: Comparison) -> Callable[[Row], Truth]:
    field, read, value = said.column.field, said.column.value, said.value

    def found(row: Row) -> Truth:
        held = row[field]
        if held is None or value is None:
            return None
        return compare(said.operator, read(held), value)

    return found


def _finding(said: Among) -> Callable[[Row], Truth]:
    field, read, unfound = said.column.field, said.column.value, None if said.null else False

    def found(row: Row) -> Truth:
        held = row[field]
        if not said.values and not said.null:
            return False
        if held is None:
            return None
        value = read(held)
        return True if any(compare("_eq", value, each) for each in said.values) else unfound

    return found
