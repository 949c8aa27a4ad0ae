"""The `where:` of queries and subscriptions: one expression, for ClickHouse and for Python.

It has SQL's three-valued logic: a comparison with null, of the row or of the query, is neither
true nor false, and neither is its `_not`; a row is selected if the whole is true. `_in: []` is
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
TruthValue = bool | None
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
class InList:
    """Whether the column's value is one of `values`; with `null`, null is in the list."""

    column: Column
    values: tuple[Any, ...]
    null: bool = False


@dataclass(frozen=True, kw_only=True)
class IsNull:
    """Whether the column is null."""

    column: Column


@dataclass(frozen=True, kw_only=True)
class AllOf:
    """True if all parts are; false if one is false."""

    parts: tuple[WhereExpression, ...] = ()


@dataclass(frozen=True, kw_only=True)
class AnyOf:
    """True if a part is; false if all are false."""

    parts: tuple[WhereExpression, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Not:
    """True if the part is false; unknown stays unknown."""

    part: WhereExpression


WhereExpression = Comparison | InList | IsNull | AllOf | AnyOf | Not
EVERYTHING = AllOf()


def parse_where(columns: Columns, where: Mapping[str, Any] | None) -> WhereExpression:
    """Return the expression of a `where` argument; None and {} select every row.

    Literals may be as the client wrote them or comparable values. Raises BadValueError for an
    unknown column or operator, for a value of the wrong type, and for more than MOST_TERMS terms.
    """
    if where is None:
        return EVERYTHING
    parser = _Parser(columns)
    return parser.parse_object(where)


class _Parser:
    def __init__(self, columns: Columns) -> None:
        self._columns, self._remaining = columns, MOST_TERMS

    def parse_object(self, condition: Any) -> WhereExpression:
        if not isinstance(condition, Mapping):
            raise BadValueError(
                f"where: {condition!r} is not a condition; write {{column: {{_eq: 1}}}}."
            )
        self._count_empty(condition)
        return _build_and([self._parse_part(name, value) for name, value in condition.items()])

    def _parse_part(self, name: str, value: Any) -> WhereExpression:
        if name == "_not":
            return Not(part=self.parse_object(value))
        if name in {"_and", "_or"}:
            # GraphQL takes one value for a list of one.
            conditions = value if isinstance(value, list | tuple) else [value]
            self._count_empty(conditions)
            parts = [self.parse_object(condition) for condition in conditions]
            return _build_and(parts) if name == "_and" else AnyOf(parts=tuple(parts))
        if name not in self._columns:
            names = ", ".join(
                name for name, column in self._columns.items() if column.is_comparable
            )
            raise BadValueError(f"where: there is no column {name!r} to filter by; use {names}.")
        return self._parse_conditions(self._columns[name], value)

    def _parse_conditions(self, column: Column, conditions: Any) -> WhereExpression:
        if not isinstance(conditions, Mapping):
            raise BadValueError(
                f"where: {column.field}: {conditions!r} is not a condition; write {{_eq: 1}}, or "
                "{_is_null: true} for null."
            )
        self._count_empty(conditions)
        return _build_and(
            [self._parse_condition(column, name, value) for name, value in conditions.items()]
        )

    def _parse_condition(self, column: Column, operator: str, operand: Any) -> WhereExpression:
        self._count_terms(1)
        if operator == "_is_null" and isinstance(operand, bool):
            return IsNull(column=column) if operand else Not(part=IsNull(column=column))
        if operator in {"_in", "_nin"} and column.is_comparable and operand is not None:
            values = list(operand) if isinstance(operand, list | tuple) else [operand]
            self._count_terms(len(values))
            among = _build_in_list(column, values)
            return among if operator == "_in" else Not(part=among)
        if operator in {*OPERATORS, "_in", "_nin"} and column.is_comparable:
            value = None if operand is None else column.scalar.parse(operand)
            return Comparison(column=column, operator=operator, value=value)
        raise BadValueError(
            f"where: {column.field}: {operator}: {operand!r} is not a condition of this column."
        )

    def _count_empty(self, parts: Collection[Any]) -> None:
        """Count an empty condition, too: it is part of the statement."""
        self._count_terms(0 if parts else 1)

    def _count_terms(self, terms: int) -> None:
        self._remaining -= terms
        if self._remaining < 0:
            raise BadValueError(
                f"where: more than {MOST_TERMS:,} comparisons and values; use fewer."
            )


def _build_and(parts: Sequence[WhereExpression]) -> WhereExpression:
    return parts[0] if len(parts) == 1 else AllOf(parts=tuple(parts))


def _build_in_list(column: Column, values: Sequence[Any]) -> InList:
    comparables = tuple(column.scalar.parse(value) for value in values if value is not None)
    return InList(column=column, values=comparables, null=None in values)


def compile_predicate(expression: WhereExpression) -> Callable[[Row], bool]:
    """Return a function that decides whether the expression selects a row."""
    truth = _compile_expression(expression)
    return lambda row: truth(row) is True


def _compile_expression(expression: WhereExpression) -> Callable[[Row], TruthValue]:
    if isinstance(expression, Comparison):
        return _compile_comparison(expression)
    if isinstance(expression, InList):
        return _compile_in_list(expression)
    if isinstance(expression, IsNull):
        field = expression.column.field
        return lambda row: row[field] is None
    if isinstance(expression, Not):
        inner = _compile_expression(expression.part)
        return lambda row: None if (truth := inner(row)) is None else not truth
    parts, decides = (
        [_compile_expression(part) for part in expression.parts],
        isinstance(expression, AnyOf),
    )
    return lambda row: _combine_truths([part(row) for part in parts], decides=decides)


def _combine_truths(truths: Sequence[TruthValue], *, decides: bool) -> TruthValue:
    """The truth of all, or of some: one that equals `decides` is enough, else an unknown one."""
    if decides in truths:
        return decides
    return None if None in truths else not decides


def _compile_comparison(comparison: Comparison) -> Callable[[Row], TruthValue]:
    field, read, value = comparison.column.field, comparison.column.to_comparable, comparison.value

    def evaluate(row: Row) -> TruthValue:
        raw = row[field]
        if raw is None or value is None:
            return None
        return compare(comparison.operator, read(raw), value)

    return evaluate


def _compile_in_list(in_list: InList) -> Callable[[Row], TruthValue]:
    field, read, no_match = (
        in_list.column.field,
        in_list.column.to_comparable,
        None if in_list.null else False,
    )

    def evaluate(row: Row) -> TruthValue:
        raw = row[field]
        if not in_list.values and not in_list.null:
            return False
        if raw is None:
            return None
        value = read(raw)
        return (
            True
            if any(compare("_eq", value, candidate) for candidate in in_list.values)
            else no_match
        )

    return evaluate
