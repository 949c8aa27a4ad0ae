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
from iscp_dagster.serve.served_index import COMPARISON_SUFFIX, RESERVED_NAMES, ServedIndex

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
"""What a message of a subscription may report."""
_BUILT_IN = {"Int": GraphQLInt, "String": GraphQLString, "Boolean": GraphQLBoolean}


class GraphQLTypes:
    """Makes types, each once."""

    def __init__(self) -> None:
        self._scalars: dict[str, GraphQLScalarType] = {}
        self._comparisons: dict[str, GraphQLInputObjectType] = {}
        self._rows: dict[str, tuple[tuple[Column, ...], GraphQLObjectType]] = {}
        self._wheres: dict[str, GraphQLInputObjectType] = {}
        self._owners: dict[str, str] = {}
        self.order_by = GraphQLEnumType(
            "order_by",
            {name: GraphQLEnumValue(value) for name, value in ORDERS.items()},
            description="Nulls come last in ascending order, first in descending, or as named.",
        )
        self.operation = GraphQLEnumType(
            "operation", {name: GraphQLEnumValue(name) for name in OPERATIONS}
        )

    def get_scalar_type(self, scalar: Scalar) -> GraphQLScalarType:
        """Return the scalar's type."""
        if not scalar.is_custom:
            return _BUILT_IN[scalar.name]
        if scalar.name not in self._scalars:
            self._scalars[scalar.name] = _build_scalar_type(scalar)
        return self._scalars[scalar.name]

    def get_row_type(self, served: ServedIndex, *extra_columns: Column) -> GraphQLObjectType:
        """Return the type of the index's rows, with columns that only this query has.

        A mirror and the changes of its table share it if their columns are the same.
        """
        columns = (*extra_columns, *served.columns)
        name = served.field
        if name in self._rows:
            row_columns, type_ = self._rows[name]
            if row_columns == columns:
                return type_
            name = f"{name}_data"
        self.reserve_name(name, served)
        row_type = self._build_row_type(name, served, columns)
        self._rows.setdefault(name, (columns, row_type))
        return row_type

    def _build_row_type(
        self, name: str, served: ServedIndex, columns: tuple[Column, ...]
    ) -> GraphQLObjectType:
        return GraphQLObjectType(
            name,
            {column.field: GraphQLField(self._build_output_type(column)) for column in columns},
            description=served.index.description or served.source.description,
        )

    def get_where_type(self, served: ServedIndex) -> GraphQLInputObjectType:
        """Return the type of `where`, shared like the type of rows."""
        row = self.get_row_type(served)
        if row.name in self._wheres:
            return self._wheres[row.name]
        type_name = f"{row.name}_bool_exp"
        self.reserve_name(type_name, served)

        def build_fields() -> dict[str, GraphQLInputField]:
            nested = GraphQLInputField(GraphQLList(GraphQLNonNull(where_type)))
            comparisons = {
                column.field: GraphQLInputField(self._get_comparison_type(column))
                for column in served.columns
                if column.is_comparable or column.is_null_only
            }
            return {
                "_and": nested,
                "_or": nested,
                "_not": GraphQLInputField(where_type),
                **comparisons,
            }

        where_type = GraphQLInputObjectType(type_name, build_fields)
        self._wheres[row.name] = where_type
        return where_type

    def build_order_type(self, served: ServedIndex) -> GraphQLInputObjectType | None:
        """Return the type of a part of `order_by`; None if no column has an order."""
        fields = {
            column.field: GraphQLInputField(self.order_by)
            for column in served.columns
            if column.is_comparable
        }
        if not fields:
            return None
        type_name = f"{served.field}_order_by"
        self.reserve_name(type_name, served)
        return GraphQLInputObjectType(type_name, fields)

    def reserve_name(self, name: str, served: ServedIndex) -> None:
        """Reserve a type's name for the index; the catalog has left out all clashes."""
        owner = f"{served.source.name}/{served.index.shown}"
        assert self._owners.setdefault(name, owner) == owner, (name, owner)
        assert name not in RESERVED_NAMES, name

    def get_argument_type(self, column: Column) -> Any:
        """Return the type of an optional argument for the column."""
        if not column.list_depth:
            return self.get_scalar_type(column.scalar)
        element = self.get_argument_type(column.element)
        takes_null = column.element.nullable
        return GraphQLList(element if takes_null else GraphQLNonNull(element))

    def _build_output_type(self, column: Column) -> Any:
        output_type: Any = self.get_scalar_type(column.scalar)
        for _ in range(column.list_depth):
            output_type = GraphQLList(output_type)
        return output_type if column.nullable else GraphQLNonNull(output_type)

    def _get_comparison_type(self, column: Column) -> GraphQLInputObjectType:
        scalar_type = self.get_scalar_type(column.scalar) if column.is_comparable else None
        name = f"{scalar_type.name if scalar_type else 'null'}{COMPARISON_SUFFIX}"
        if name not in self._comparisons:
            fields = {"_is_null": GraphQLInputField(GraphQLBoolean)}
            if scalar_type is not None:
                list_field = GraphQLInputField(GraphQLList(scalar_type))
                fields |= {operator: GraphQLInputField(scalar_type) for operator in OPERATORS}
                fields |= {"_in": list_field, "_nin": list_field}
            self._comparisons[name] = GraphQLInputObjectType(name, fields)
        return self._comparisons[name]


def _build_scalar_type(scalar: Scalar) -> GraphQLScalarType:
    def check_value(value: Any) -> Any:
        scalar.parse(value)
        return value

    def parse_literal(node: ValueNode, _variables: dict[str, Any] | None = None) -> Any:
        if isinstance(node, StringValueNode):
            return check_value(node.value)
        if isinstance(node, _NUMBERS.get(scalar.name, ())):
            # A decimal's digits do not pass through a double.
            return check_value(float(node.value) if scalar is scalars.FLOAT64 else node.value)
        raise BadValueError(f"is not a valid {scalar.name}")

    return GraphQLScalarType(
        scalar.name,
        description=scalar.description,
        serialize=_keep_value,
        parse_value=check_value,
        parse_literal=parse_literal,
    )


_WHOLE = (IntValueNode,)
_NUMBERS: Mapping[str, tuple[type[IntValueNode | FloatValueNode], ...]] = {
    "Int64": _WHOLE,
    "BigInt": _WHOLE,
    "Decimal": (IntValueNode, FloatValueNode),
    "Float64": (IntValueNode, FloatValueNode),
}
"""The scalars that a document may also write as numbers."""


def _keep_value(value: Any) -> Any:
    return value
