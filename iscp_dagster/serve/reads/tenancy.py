"""Limits every query to the tenants that its viewer may see, in SQL."""

from __future__ import annotations

from iscp_dagster.clickhouse.connect.quoting import ident
from iscp_dagster.model.declared.tables import DEFAULT_TENANT
from iscp_dagster.serve import scalars
from iscp_dagster.serve.access import Viewer
from iscp_dagster.serve.served import Served
from iscp_dagster.serve.sql import Parameters, fits

_TYPED = {scalars.STRING, scalars.INT, scalars.INT64, scalars.BIG_INT}
"""What ClickHouse finds partitions by; other types' texts are compared."""


def sees_some(served: Served, viewer: Viewer) -> bool:
    """Whether there can be rows of the index that the viewer may see."""
    if viewer.tenants is None:
        return True
    return bool(viewer.tenants) if served.source.tenant else viewer.sees(DEFAULT_TENANT)


def condition(served: Served, viewer: Viewer, parameters: Parameters) -> str:
    """Return the condition that limits rows to the viewer's tenants."""
    if viewer.tenants is None or not served.source.tenant:
        return "1" if sees_some(served, viewer) else "0"
    column = served.tenant
    if column is None:
        return "0"
    held, type_, names = f"toString({ident(column.name)})", "String", sorted(viewer.tenants)
    if column.scalar in _TYPED:
        held, type_ = ident(column.name), str(column.type.bare)
        names = [each for each in names if fits(column, each)]
    bound = ", ".join(parameters.bind(type_, each) for each in names)
    return f"{held} IN ({bound})" if bound else "0"
