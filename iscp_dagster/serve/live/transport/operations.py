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

from iscp_dagster.serve.live.messages import ChangeMessage

Values = Mapping[str, Any]
Projection = Callable[[Any], dict[str, Any]]
Fields = Mapping[str, Sequence[FieldNode]]


class RefusedOperationError(Exception):
    """A subscription could not begin; `errors` are GraphQL's."""

    def __init__(self, errors: Sequence[GraphQLError]) -> None:
        super().__init__("; ".join(error.message for error in errors))
        self.errors = errors


class SubscriptionExecution:
    """One subscription of a valid document. `stream_results` yields plain data."""

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
            definition.name.value: definition
            for definition in document.definitions
            if isinstance(definition, FragmentDefinitionNode)
        }
        coerced = get_variable_values(
            schema, operation.variable_definitions or (), dict(variables or {})
        )
        if isinstance(coerced, list):
            raise RefusedOperationError(coerced)
        self._variables: dict[str, Any] = coerced

    async def stream_results(self) -> AsyncGenerator[Values, None]:
        """Yield the data of each message. Raises RefusedOperationError, SubscriptionError."""
        root = self._schema.subscription_type
        fields = self._collect_fields(root) if root else {}
        (name, nodes), *other_fields = fields.items() or [("", [])]
        field = root.fields.get(nodes[0].name.value) if root and nodes else None
        if root is None or field is None or field.subscribe is None or other_fields:
            raise RefusedOperationError([GraphQLError("Subscribe to one field.", nodes)])
        args = get_argument_values(field, nodes[0], self._variables)
        type_ = get_named_type(field.type)
        assert isinstance(type_, GraphQLObjectType)
        project = self._build_projection(type_, nodes)
        info = self._build_info(root, field.type, name, nodes)
        messages: AsyncGenerator[ChangeMessage, None] = field.subscribe(None, info, **args)
        async with aclosing(messages):
            async for message in messages:
                yield {"data": {name: project(message)}}

    def _collect_fields(self, type_: GraphQLObjectType) -> Fields:
        return collect_fields(
            self._schema, self._fragments, self._variables, type_, self._operation.selection_set
        )

    def _build_projection(self, type_: GraphQLObjectType, nodes: Sequence[FieldNode]) -> Projection:
        """A function from a message, or its row, to its selected fields."""
        fields = collect_sub_fields(
            self._schema, self._fragments, self._variables, type_, list(nodes)
        )
        parts = [
            (name, self._build_part(type_, field_nodes)) for name, field_nodes in fields.items()
        ]
        return lambda source: {name: part(source) for name, part in parts}

    def _build_part(
        self, type_: GraphQLObjectType, nodes: Sequence[FieldNode]
    ) -> Callable[[Any], Any]:
        name = nodes[0].name.value
        if name == "__typename":
            return lambda _source: type_.name
        inner = get_named_type(type_.fields[name].type)
        if not isinstance(inner, GraphQLObjectType):
            return lambda source: _get_value(source, name)
        project = self._build_projection(inner, nodes)
        return lambda source: None if (row := _get_value(source, name)) is None else project(row)

    def _build_info(
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


def _get_value(source: Any, name: str) -> Any:
    """A field of a row, or of a message."""
    return source[name] if isinstance(source, Mapping) else getattr(source, name)
