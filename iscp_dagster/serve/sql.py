"""A `where` expression as ClickHouse's SQL, every literal bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from typing import Any

from iscp_dagster.clickhouse.connect.quoting import quote_identifier, quote_string
from iscp_dagster.serve import scalars
from iscp_dagster.serve.columns import Column
from iscp_dagster.serve.comparing import SQL_OPERATORS, fit_comparison
from iscp_dagster.serve.scalars import BadValueError
from iscp_dagster.serve.where import AnyOf, Comparison, InList, IsNull, Not, WhereExpression

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_FIRST_DAY = date(1970, 1, 1)


@dataclass(kw_only=True)
class Parameters:
    """The parameters of one query, by their names."""

    values: dict[str, str] = field(default_factory=dict)

    def bind(self, type_: str, value: str) -> str:
        """Return the SQL of a new parameter."""
        name = f"p{len(self.values)}"
        self.values[name] = value
        return f"{{{name}:{type_}}}"


def render_condition(expression: WhereExpression, parameters: Parameters) -> str:
    """Return the SQL of the expression, which is 1, 0 or NULL; binds its literals."""
    if isinstance(expression, Comparison):
        return _render_comparison(expression, parameters)
    if isinstance(expression, InList):
        return _render_in_list(expression, parameters)
    if isinstance(expression, IsNull):
        return f"({quote_identifier(expression.column.name)} IS NULL)"
    if isinstance(expression, Not):
        return f"(NOT {render_condition(expression.part, parameters)})"
    parts = [render_condition(part, parameters) for part in expression.parts]
    return (
        _join_parts(parts, "OR", "0")
        if isinstance(expression, AnyOf)
        else _join_parts(parts, "AND", "1")
    )


def _join_parts(parts: Sequence[str], word: str, nothing: str) -> str:
    return f"({f' {word} '.join(parts)})" if parts else nothing


def _render_comparison(comparison: Comparison, parameters: Parameters) -> str:
    column, operator = comparison.column, comparison.operator
    if comparison.value is None:
        return "NULL"
    if column.scalar is scalars.FLOAT64:
        return _render_float_comparison(comparison, parameters)
    fit = fit_comparison(column, operator, comparison.value)
    if not fit.operator:
        return _render_constant(column, true=fit.constant_result)
    operand, type_ = column.render_operand(operator)
    return (
        f"({operand} {SQL_OPERATORS[operator]} "
        f"{parameters.bind(type_, format_value(column, fit.value))})"
    )


def _render_constant(column: Column, *, true: bool) -> str:
    """One result for every value, NULL for null."""
    return (
        f"if({quote_identifier(column.name)} IS NULL, NULL, {int(true)})"
        if column.nullable
        else f"{true:d}"
    )


def _render_float_comparison(comparison: Comparison, parameters: Parameters) -> str:
    """Compare as Spark does: NaN equals NaN and is the largest."""
    column, operator = comparison.column, comparison.operator
    name = quote_identifier(column.name)
    if math.isnan(comparison.value):
        always = {"_gt": False, "_lte": True}
        if operator in always:
            return _render_constant(column, true=always[operator])
        return f"isNaN({name})" if operator in {"_eq", "_gte"} else f"(NOT isNaN({name}))"
    value = parameters.bind(
        column.render_operand(operator)[1], format_value(column, comparison.value)
    )
    condition = f"{name} {SQL_OPERATORS[operator]} {value}"
    return f"({condition} OR isNaN({name}))" if operator in {"_gt", "_gte"} else f"({condition})"


def _render_in_list(in_list: InList, parameters: Parameters) -> str:
    column = in_list.column
    if not in_list.values:
        return "NULL" if in_list.null else "0"
    unknown = ["NULL"] if in_list.null else []
    if column.scalar is scalars.FLOAT64:
        comparisons = [
            Comparison(column=column, operator="_eq", value=value) for value in in_list.values
        ]
        return _join_parts(
            [
                *(_render_float_comparison(comparison, parameters) for comparison in comparisons),
                *unknown,
            ],
            "OR",
            "0",
        )
    fits = [fit_comparison(column, "_eq", value) for value in in_list.values]
    literals = dict.fromkeys(format_value(column, fit.value) for fit in fits if fit.operator)
    operand, type_ = column.render_operand("_eq")
    values = ", ".join(parameters.bind(type_, literal) for literal in literals)
    condition = f"{operand} IN ({values})" if values else _render_constant(column, true=False)
    return _join_parts([condition, *unknown], "OR", "0")


def is_column_value(column: Column, value: str) -> bool:
    """Whether a text is exactly how a value of the column's type is written."""
    try:
        comparable = column.scalar.parse(value)
        return str(comparable) == value and bool(fit_comparison(column, "_eq", comparable).operator)
    except BadValueError:
        return False


def bind_value(column: Column, value: Any, parameters: Parameters) -> str:
    """Return the SQL of an argument for the column; of a list, an array."""
    if value is None:
        return "NULL"
    if column.list_depth:
        parts = ", ".join(bind_value(column.element, element, parameters) for element in value)
        return f"CAST([{parts}], {quote_string(str(column.type))})"
    return parameters.bind(str(column.type), format_value(column, column.scalar.parse(value)))


def format_value(column: Column, value: Any) -> str:
    """Return the text of a fitted value, as ClickHouse reads a parameter of the column."""
    if column.scalar is scalars.BOOLEAN:
        return "true" if value else "false"
    if column.scalar is scalars.DECIMAL:
        return _format_decimal(value, column.type.bare.numbers[1])
    if column.scalar is scalars.DATE:
        return (_FIRST_DAY + timedelta(days=value)).isoformat()
    if column.scalar is scalars.TIMESTAMP:
        numbers = column.type.bare.numbers
        return _format_timestamp(value, numbers[0] if numbers else 0)
    return str(value)


def _format_decimal(units: int, scale: int) -> str:
    digits = str(abs(units)).rjust(scale + 1, "0")
    integer, fraction = digits[: len(digits) - scale], digits[len(digits) - scale :]
    return f"{'-' if units < 0 else ''}{integer}{'.' if fraction else ''}{fraction}"


def _format_timestamp(ticks: int, precision: int) -> str:
    seconds, fraction = divmod(ticks, 10**precision)
    moment = _EPOCH + timedelta(seconds=seconds)
    text = moment.strftime("%Y-%m-%d %H:%M:%S")
    return f"{text}.{fraction:0{precision}d}" if precision else text
