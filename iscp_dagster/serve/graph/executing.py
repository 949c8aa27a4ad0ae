"""Executes a checked query for one viewer, within its caps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from graphql import ExecutionResult, GraphQLResolveInfo, execute_sync

from iscp_dagster.serve.graph.documents import TOO_COMPLEX, Checked, refused
from iscp_dagster.serve.graph.schemas import Ready
from iscp_dagster.serve.reads.caps import Asking


def executed(
    ready: Ready, found: Checked, asking: Asking, variables: Mapping[str, Any]
) -> ExecutionResult:
    """Return the result of a query; blocks. Raises DocumentError when introspection is too large.

    What the schema tells of itself is not read from ClickHouse, whose limits do not end it.
    """
    try:
        return _executed(ready, found, asking, variables)
    except _OverdrawnError:
        large = "What the query asks of the schema is more than this server tells at a time."
        raise refused(TOO_COMPLEX, large) from None


class _OverdrawnError(BaseException):
    """Introspection went beyond its cap. Not an Exception, of which each field's would be kept."""


def _executed(
    ready: Ready, found: Checked, asking: Asking, variables: Mapping[str, Any]
) -> ExecutionResult:

    def counted(
        following: Callable[..., Any], root: Any, info: GraphQLResolveInfo, **given: Any
    ) -> Any:
        asking.told += 1
        if asking.told > asking.caps.told:
            raise _OverdrawnError
        return following(root, info, **given)

    return execute_sync(
        ready.schema,
        found.document,
        context_value=asking,
        variable_values=dict(variables),
        operation_name=found.operation.name.value if found.operation.name else None,
        middleware=[counted] if found.introspects else None,
    )
