"""Executes a checked query for one viewer, within its caps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from graphql import ExecutionResult, GraphQLResolveInfo, execute_sync

from iscp_dagster.serve.graph.documents import TOO_COMPLEX, ValidatedDocument, make_document_error
from iscp_dagster.serve.graph.schema_cache import ServedSchema
from iscp_dagster.serve.reads.caps import RequestContext


def execute_query(
    served_schema: ServedSchema,
    document: ValidatedDocument,
    context: RequestContext,
    variables: Mapping[str, Any],
) -> ExecutionResult:
    """Return the result of a query; blocks. Raises DocumentError if introspection is too large.

    Introspection does not query ClickHouse, whose limits therefore do not stop it.
    """
    try:
        return _execute_counted(served_schema, document, context, variables)
    except _OverdrawnError:
        message = "The introspection is larger than this server allows; select fewer fields."
        raise make_document_error(TOO_COMPLEX, message) from None


class _OverdrawnError(BaseException):
    """Introspection exceeds its cap. A BaseException, as each field's Exception is collected."""


def _execute_counted(
    served_schema: ServedSchema,
    document: ValidatedDocument,
    context: RequestContext,
    variables: Mapping[str, Any],
) -> ExecutionResult:

    def count_field(
        resolve: Callable[..., Any], root: Any, info: GraphQLResolveInfo, **args: Any
    ) -> Any:
        context.introspected_fields += 1
        if context.introspected_fields > context.caps.introspection_fields:
            raise _OverdrawnError
        return resolve(root, info, **args)

    return execute_sync(
        served_schema.schema,
        document.document,
        context_value=context,
        variable_values=dict(variables),
        operation_name=document.operation.name.value if document.operation.name else None,
        middleware=[count_field] if document.introspects else None,
    )
