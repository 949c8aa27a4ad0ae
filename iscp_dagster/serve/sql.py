"""A `where` expression as ClickHouse's SQL, every literal bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from typing import Any

from iscp_dagster.clickhouse.connect.quoting import ident, text
from iscp_dagster.serve import scalars
from iscp_dagster.serve.columns import Column
from iscp_dagster.serve.comparing import SQL, fitted
from iscp_dagster.serve.scalars import BadValueError
from iscp_dagster.serve.where import Among, Comparison, Expression, IsNull, Not, Some

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


def condition(expression: Expression, parameters: Parameters) -> str:
    """Return the SQL of the expression, which is 1, 0 or NULL; binds its literals."""
    if isinstance(expression, Comparison):
        return _comparison(expression, parameters)
    if isinstance(expression, Among):
        return _among(expression, parameters)
    if isinstance(expression, IsNull):
        return f"({ident(expression.column.name)} IS NULL)"
    if isinstance(expression, Not):
        return f"(NOT {condition(expression.part, parameters)})"
    parts = [condition(each, parameters) for each in expression.parts]
    return _joined(parts, "OR", "0") if isinstance(expression, Some) else _joined(parts, "AND", "1")


def _joined(parts: Sequence[str], word: str, nothing: str) -> str:
    return f"({f' {word} '.join(parts)})" if parts else nothing


def _comparison(said: Comparison, parameters: Parameters) -> str:
    column, operator = said.column, said.operator
    if said.value is None:
        return "NULL"
    if column.scalar is scalars.FLOAT64:
        return _float(said, parameters)
    found = fitted(column, operator, said.value)
    if not found.operator:
        return _always(column, true=found.always)
    held, type_ = column.compared(operator)
    return f"({held} {SQL[operator]} {parameters.bind(type_, written(column, found.value))})"


def _always(column: Column, *, true: bool) -> str:
    """One result for every value, NULL for null."""
    return (
        f"if({ident(column.name)} IS NULL, NULL, {int(true)})" if column.nullable else f"{true:d}"
    )


def _float(said: Comparison, parameters: Parameters) -> str:
    """Compare as Spark does: NaN equals NaN and is the largest."""
    column, operator = said.column, said.operator
    name = ident(column.name)
    if math.isnan(said.value):
        always = {"_gt": False, "_lte": True}
        if operator in always:
            return _always(column, true=always[operator])
        return f"isNaN({name})" if operator in {"_eq", "_gte"} else f"(NOT isNaN({name}))"
    bound = parameters.bind(column.compared(operator)[1], written(column, said.value))
    compared = f"{name} {SQL[operator]} {bound}"
    return f"({compared} OR isNaN({name}))" if operator in {"_gt", "_gte"} else f"({compared})"


def _among(said: Among, parameters: Parameters) -> str:
    column = said.column
    if not said.values:
        return "NULL" if said.null else "0"
    unknown = ["NULL"] if said.null else []
    if column.scalar is scalars.FLOAT64:
        each = [Comparison(column=column, operator="_eq", value=value) for value in said.values]
        return _joined([*(_float(one, parameters) for one in each), *unknown], "OR", "0")
    fits = [fitted(column, "_eq", value) for value in said.values]
    texts = dict.fromkeys(written(column, each.value) for each in fits if each.operator)
    held, type_ = column.compared("_eq")
    bound = ", ".join(parameters.bind(type_, each) for each in texts)
    found = f"{held} IN ({bound})" if bound else _always(column, true=False)
    return _joined([found, *unknown], "OR", "0")


def fits(column: Column, value: str) -> bool:
    """Whether a text is exactly that of a value which the column's type holds."""
    try:
        found = column.scalar.read(value)
        return str(found) == value and bool(fitted(column, "_eq", found).operator)
    except BadValueError:
        return False


def bind_value(column: Column, value: Any, parameters: Parameters) -> str:
    """Return the SQL of a value that a query gives for the column; of a list, an array's."""
    if value is None:
        return "NULL"
    if column.lists:
        parts = ", ".join(bind_value(column.element, each, parameters) for each in value)
        return f"CAST([{parts}], {text(str(column.type))})"
    return parameters.bind(str(column.type), written(column, column.scalar.read(value)))


def written(column: Column, value: Any) -> str:
    """Return the text of a fitted value, as ClickHouse reads a parameter of the column."""
    if column.scalar is scalars.BOOLEAN:
        return "true" if value else "false"
    if column.scalar is scalars.DECIMAL:
        return _decimal(value, column.type.bare.numbers[1])
    if column.scalar is scalars.DATE:
        return (_FIRST_DAY + timedelta(days=value)).isoformat()
    if column.scalar is scalars.TIMESTAMP:
        numbers = column.type.bare.numbers
        return _moment(value, numbers[0] if numbers else 0)
    return str(value)


def _decimal(units: int, scale: int) -> str:
    digits = str(abs(units)).rjust(scale + 1, "0")
    whole, part = digits[: len(digits) - scale], digits[len(digits) - scale :]
    return f"{'-' if units < 0 else ''}{whole}{'.' if part else ''}{part}"


def _moment(ticks: int, precision: int) -> str:
    seconds, part = divmod(ticks, 10**precision)
    at = _EPOCH + timedelta(seconds=seconds)
    text = at.strftime("%Y-%m-%d %H:%M:%S")
    return f"{text}.{part:0{precision}d}" if precision else text
