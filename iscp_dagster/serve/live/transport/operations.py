"""Runs a subscription of a document without executing the document again for each message."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from graphql import (
    DocumentNode,
    FieldNode,
    FragmentDefinitionNode,
    GraphQLError,
    GraphQLObjectType,
    GraphQLResolveInfo,
    GraphQLSchema,
    OperationDefinitionNode,
    get_named_type,
)
from graphql.execution.collect_fields import collect_fields, collect_sub_fields
from graphql.execution.values import get_argument_values, get_variable_values
from graphql.pyutils import Path

from iscp_dagster.serve.live.telling import Message

Values = Mapping[str, Any]
Projection = Callable[[Any], dict[str, Any]]
Fields = Mapping[str, Sequence[FieldNode]]


class RefusedOperationError(Exception):
    """A subscription could not begin; `errors` are GraphQL's."""

    def __init__(self, errors: Sequence[GraphQLError]) -> None:
        super().__init__("; ".join(each.message for each in errors))
        self.errors = errors


class Telling:
    """One subscription of a valid document. `answers` tells its results as plain data."""

    def __init__(
        self,
        schema: GraphQLSchema,
        document: DocumentNode,
        operation: OperationDefinitionNode,
        variables: Values | None,
        context: Any,
    ) -> None:
        self._schema, self._operation, self._context = schema, operation, context
        self._fragments = {
            each.name.value: each
            for each in document.definitions
            if isinstance(each, FragmentDefinitionNode)
        }
        held = get_variable_values(
            schema, operation.variable_definitions or (), dict(variables or {})
        )
        if isinstance(held, list):
            raise RefusedOperationError(held)
        self._variables: dict[str, Any] = held

    async def answers(self) -> AsyncGenerator[Values, None]:
        """Tell the data of each message. Raises RefusedOperationError, SubscriptionError."""
        root = self._schema.subscription_type
        fields = self._fields(root) if root else {}
        (name, nodes), *others = fields.items() or [("", [])]
        field = root.fields.get(nodes[0].name.value) if root and nodes else None
        if root is None or field is None or field.subscribe is None or others:
            raise RefusedOperationError([GraphQLError("Subscribe to one field.", nodes)])
        given = get_argument_values(field, nodes[0], self._variables)
        type_ = get_named_type(field.type)
        assert isinstance(type_, GraphQLObjectType)
        shown = self._projection(type_, nodes)
        info = self._info(root, field.type, name, nodes)
        messages: AsyncGenerator[Message, None] = field.subscribe(None, info, **given)
        async with aclosing(messages):
            async for message in messages:
                yield {"data": {name: shown(message)}}

    def _fields(self, type_: GraphQLObjectType) -> Fields:
        return collect_fields(
            self._schema, self._fragments, self._variables, type_, self._operation.selection_set
        )

    def _projection(self, type_: GraphQLObjectType, nodes: Sequence[FieldNode]) -> Projection:
        """A function from a message, or a row of one, to what was selected of it."""
        fields = collect_sub_fields(
            self._schema, self._fragments, self._variables, type_, list(nodes)
        )
        parts = [(name, self._part(type_, its)) for name, its in fields.items()]
        return lambda given: {name: part(given) for name, part in parts}

    def _part(self, type_: GraphQLObjectType, nodes: Sequence[FieldNode]) -> Callable[[Any], Any]:
        name = nodes[0].name.value
        if name == "__typename":
            return lambda _given: type_.name
        inner = get_named_type(type_.fields[name].type)
        if not isinstance(inner, GraphQLObjectType):
            return lambda given: _value(given, name)
        shown = self._projection(inner, nodes)
        return lambda given: None if (row := _value(given, name)) is None else shown(row)

    def _info(
        self, root: GraphQLObjectType, type_: Any, name: str, nodes: Sequence[FieldNode]
    ) -> GraphQLResolveInfo:
        return GraphQLResolveInfo(
            field_name=nodes[0].name.value,
            field_nodes=list(nodes),
            return_type=type_,
            parent_type=root,
            path=Path(None, name, root.name),
            schema=self._schema,
            fragments=self._fragments,
            root_value=None,
            operation=self._operation,
            variable_values=self._variables,
            context=self._context,
            is_awaitable=lambda _: False,
        )


def _value(given: Any, name: str) -> Any:
    """A field of a row, or of a message."""
    return given[name] if isinstance(given, Mapping) else getattr(given, name)
