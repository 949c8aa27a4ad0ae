"""Limits every query to the tenants that its viewer may see, in SQL."""

from __future__ import annotations

from iscp_dagster.clickhouse.connect.quoting import quote_identifier
from iscp_dagster.model.declared.tables import DEFAULT_TENANT
from iscp_dagster.serve import scalars
from iscp_dagster.serve.access import Viewer
from iscp_dagster.serve.served_index import ServedIndex
from iscp_dagster.serve.sql import Parameters, is_column_value

_TYPED = {scalars.STRING, scalars.INT, scalars.INT64, scalars.BIG_INT}
"""Scalars by which ClickHouse finds partitions; others are compared as texts."""


def can_see_rows(served: ServedIndex, viewer: Viewer) -> bool:
    """Whether there can be rows of the index that the viewer may see."""
    if viewer.tenants is None:
        return True
    return bool(viewer.tenants) if served.source.tenant else viewer.can_see(DEFAULT_TENANT)


def render_tenant_condition(served: ServedIndex, viewer: Viewer, parameters: Parameters) -> str:
    """Return the condition that limits rows to the viewer's tenants."""
    if viewer.tenants is None or not served.source.tenant:
        return "1" if can_see_rows(served, viewer) else "0"
    column = served.tenant
    if column is None:
        return "0"
    expression, type_, names = (
        f"toString({quote_identifier(column.name)})",
        "String",
        sorted(viewer.tenants),
    )
    if column.scalar in _TYPED:
        expression, type_ = quote_identifier(column.name), str(column.type.bare)
        names = [name for name in names if is_column_value(column, name)]
    values = ", ".join(parameters.bind(type_, name) for name in names)
    return f"{expression} IN ({values})" if values else "0"
