"""The GraphQL types of one schema, each made once: rows, conditions, orders, scalars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphql import (
    FloatValueNode,
    GraphQLBoolean,
    GraphQLEnumType,
    GraphQLEnumValue,
    GraphQLField,
    GraphQLInputField,
    GraphQLInputObjectType,
    GraphQLInt,
    GraphQLList,
    GraphQLNonNull,
    GraphQLObjectType,
    GraphQLScalarType,
    GraphQLString,
    IntValueNode,
    StringValueNode,
    ValueNode,
)

from iscp_dagster.serve import scalars
from iscp_dagster.serve.columns import Column
from iscp_dagster.serve.comparing import OPERATORS
from iscp_dagster.serve.scalars import BadValueError, Scalar
from iscp_dagster.serve.served import BUILT_IN, COMPARISON, Served

ORDERS = {
    f"{way}{suffix}": (way == "desc", nulls_first)
    for way in ("asc", "desc")
    for suffix, nulls_first in (
        ("", way == "desc"),
        ("_nulls_first", True),
        ("_nulls_last", False),
    )
}
"""By name: whether descending, and whether nulls come first."""
OPERATIONS = ("INSERT", "UPDATE", "DELETE", "PROGRESS")
"""What a message of a subscription may tell."""
_BUILT_IN = {"Int": GraphQLInt, "String": GraphQLString, "Boolean": GraphQLBoolean}


class Types:
    """Makes types, each once."""

    def __init__(self) -> None:
        self._scalars: dict[str, GraphQLScalarType] = {}
        self._comparisons: dict[str, GraphQLInputObjectType] = {}
        self._rows: dict[str, tuple[tuple[Column, ...], GraphQLObjectType]] = {}
        self._wheres: dict[str, GraphQLInputObjectType] = {}
        self._named: dict[str, str] = {}
        self.order_by = GraphQLEnumType(
            "order_by",
            {name: GraphQLEnumValue(value) for name, value in ORDERS.items()},
            description="Nulls come last in ascending order, first in descending, or as said.",
        )
        self.operation = GraphQLEnumType(
            "operation", {name: GraphQLEnumValue(name) for name in OPERATIONS}
        )

    def scalar(self, scalar: Scalar) -> GraphQLScalarType:
        """Return the scalar's type."""
        if not scalar.own:
            return _BUILT_IN[scalar.name]
        if scalar.name not in self._scalars:
            self._scalars[scalar.name] = _scalar(scalar)
        return self._scalars[scalar.name]

    def row(self, served: Served, *more: Column) -> GraphQLObjectType:
        """Return the type of the index's rows, with columns that only this query has.

        A mirror and the changes of its table share it if their columns are the same.
        """
        columns = (*more, *served.columns)
        name = served.field
        if name in self._rows:
            held, type_ = self._rows[name]
            if held == columns:
                return type_
            name = f"{name}_data"
        self.take(name, served)
        made = self._row(name, served, columns)
        self._rows.setdefault(name, (columns, made))
        return made

    def _row(self, name: str, served: Served, columns: tuple[Column, ...]) -> GraphQLObjectType:
        return GraphQLObjectType(
            name,
            {each.field: GraphQLField(self._shown(each)) for each in columns},
            description=served.index.description or served.source.description,
        )

    def where(self, served: Served) -> GraphQLInputObjectType:
        """Return the type of `where`, shared like `row`."""
        row = self.row(served)
        if row.name in self._wheres:
            return self._wheres[row.name]
        named = f"{row.name}_bool_exp"
        self.take(named, served)

        def fields() -> dict[str, GraphQLInputField]:
            again = GraphQLInputField(GraphQLList(GraphQLNonNull(made)))
            asked = {
                each.field: GraphQLInputField(self._comparison(each))
                for each in served.columns
                if each.compares or each.nulls
            }
            return {"_and": again, "_or": again, "_not": GraphQLInputField(made), **asked}

        made = GraphQLInputObjectType(named, fields)
        self._wheres[row.name] = made
        return made

    def order(self, served: Served) -> GraphQLInputObjectType | None:
        """Return the type of a part of `order_by`; None if no column has an order."""
        fields = {
            each.field: GraphQLInputField(self.order_by) for each in served.columns if each.compares
        }
        if not fields:
            return None
        named = f"{served.field}_order_by"
        self.take(named, served)
        return GraphQLInputObjectType(named, fields)

    def take(self, name: str, served: Served) -> None:
        """Have a name for a type of the index alone: the catalog has left out what has another."""
        whose = f"{served.source.name}/{served.index.shown}"
        assert self._named.setdefault(name, whose) == whose, (name, whose)
        assert name not in BUILT_IN, name

    def argument_type(self, column: Column) -> Any:
        """Return the type of a value that a query gives for the column, or leaves out."""
        if not column.lists:
            return self.scalar(column.scalar)
        element = self.argument_type(column.element)
        takes_null = column.element.nullable
        return GraphQLList(element if takes_null else GraphQLNonNull(element))

    def _shown(self, column: Column) -> Any:
        shown: Any = self.scalar(column.scalar)
        for _ in range(column.lists):
            shown = GraphQLList(shown)
        return shown if column.nullable else GraphQLNonNull(shown)

    def _comparison(self, column: Column) -> GraphQLInputObjectType:
        known = self.scalar(column.scalar) if column.compares else None
        name = f"{known.name if known else 'null'}{COMPARISON}"
        if name not in self._comparisons:
            asked = {"_is_null": GraphQLInputField(GraphQLBoolean)}
            if known is not None:
                several = GraphQLInputField(GraphQLList(known))
                asked |= {each: GraphQLInputField(known) for each in OPERATORS}
                asked |= {"_in": several, "_nin": several}
            self._comparisons[name] = GraphQLInputObjectType(name, asked)
        return self._comparisons[name]


def _scalar(scalar: Scalar) -> GraphQLScalarType:
    def checked(value: Any) -> Any:
        scalar.read(value)
        return value

    def literal(node: ValueNode, _variables: dict[str, Any] | None = None) -> Any:
        if isinstance(node, StringValueNode):
            return checked(node.value)
        if isinstance(node, _NUMBERS.get(scalar.name, ())):
            # A decimal's digits do not pass through a double.
            return checked(float(node.value) if scalar is scalars.FLOAT64 else node.value)
        raise BadValueError(f"is no {scalar.name}")

    return GraphQLScalarType(
        scalar.name,
        description=scalar.says,
        serialize=_same,
        parse_value=checked,
        parse_literal=literal,
    )


_WHOLE = (IntValueNode,)
_NUMBERS: Mapping[str, tuple[type[IntValueNode | FloatValueNode], ...]] = {
    "Int64": _WHOLE,
    "BigInt": _WHOLE,
    "Decimal": (IntValueNode, FloatValueNode),
    "Float64": (IntValueNode, FloatValueNode),
}
"""The scalars that a document may also have as numbers."""


def _same(value: Any) -> Any:
    return value
