"""Reads the rows nearest to a vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from iscp_dagster.clickhouse.connect.quoting import quote_identifier
from iscp_dagster.clickhouse.kinds.searching import Neighbourhood
from iscp_dagster.clickhouse.kinds.vector_rows import LARGEST
from iscp_dagster.clickhouse.types.type_parser import parse_type
from iscp_dagster.model.errors import IscpError
from iscp_dagster.serve import scalars
from iscp_dagster.serve.columns import Column
from iscp_dagster.serve.comparing import to_sort_key
from iscp_dagster.serve.reads import tenancy
from iscp_dagster.serve.reads.caps import RequestContext
from iscp_dagster.serve.reads.order import OrderTerm
from iscp_dagster.serve.rows import query_rows, render_select_list
from iscp_dagster.serve.scalars import BadValueError
from iscp_dagster.serve.served_index import ServedIndex, Shard
from iscp_dagster.serve.sql import Parameters, is_column_value, render_condition
from iscp_dagster.serve.where import EVERYTHING, Row, parse_where


class ForbiddenError(IscpError):
    """A query names a tenant that the viewer may not see; nothing was read."""

    code = 10_840


@dataclass(frozen=True, kw_only=True)
class NearestQuery:
    """A query for the rows nearest to a vector."""

    served: ServedIndex
    neighbourhood: Neighbourhood
    columns: tuple[Column, ...]
    """The columns to show, beside the distance."""
    vector: Sequence[float]
    tenant: str | None = None
    """A table with tenants needs one of them: a graph is searched within a tenant."""
    where: Mapping[str, Any] | None = None
    """Which rows are neighbours at all; with a condition no graph is used."""
    limit: int | None = None
    width: int = 1
    """How many values of a row are shown."""


def read_nearest(context: RequestContext, near: NearestQuery) -> list[Row]:
    """Return the rows nearest to a vector, nearest first, each with its distance.

    Raises ForbiddenError for a tenant that the viewer may not see, and BadValueError for a vector
    of another length than the index has.
    """
    served, limit = near.served, context.caps.check_page(near.limit, 0)
    context.charge_cells(limit * near.width)
    if served.source.tenant and not context.viewer.can_see(near.tenant or ""):
        raise ForbiddenError(f"The token may not see the tenant {near.tenant!r}.")
    if served.tenant is not None and not _is_tenant_name(served.tenant, near.tenant or ""):
        raise BadValueError(f"tenant: {near.tenant!r} is not a valid {served.tenant.type.bare}.")
    dimension = near.neighbourhood.dimension
    if len(near.vector) != dimension:
        length = len(near.vector)
        numbers = "1 number" if length == 1 else f"{length:,} numbers"
        raise BadValueError(f"near: the vector has {numbers}, and the index's have {dimension}.")
    if any(abs(number) > LARGEST for number in near.vector):
        raise BadValueError(f"near: a number is beyond {LARGEST:g}, the largest of 32 bits.")
    if not limit or not tenancy.can_see_rows(served, context.viewer):
        return []
    distance = build_distance_column(served)
    neighbours = [
        row for shard in served.shards for row in _read_neighbours(context, near, limit, shard)
    ]
    return sorted(
        neighbours, key=lambda row: to_sort_key(distance.to_comparable(row[distance.field]))
    )[:limit]


def _is_tenant_name(tenant: Column, name: str) -> bool:
    """Whether a text is a value of the tenant's column; of some types ClickHouse decides."""
    return tenant.grid is None or is_column_value(tenant, name)


def _read_neighbours(
    context: RequestContext, near: NearestQuery, limit: int, shard: Shard
) -> list[Row]:
    served, distance, parameters = near.served, build_distance_column(near.served), Parameters()
    columns = (distance, *near.columns)
    vector = ",".join(repr(float(number)) for number in near.vector)
    where = parse_where(served.by_field, near.where)
    arguments = [f"query = {parameters.bind('Array(Float32)', f'[{vector}]')}"]
    if where == EVERYTHING:
        arguments.append(f"k = {parameters.bind('UInt32', str(limit))}")
    if served.tenant is not None:
        type_ = str(served.tenant.type.bare)
        arguments.append(f"tenant = {parameters.bind(type_, near.tenant or '')}")
    neighbourhood = near.neighbourhood
    suffix = neighbourhood.nearest if where == EVERYTHING else neighbourhood.distances
    view = quote_identifier(shard.database, f"{served.view}_{suffix}")
    keys = [
        OrderTerm(column=column).sql for column in served.identity_columns if column.is_comparable
    ]
    order = ", ".join((quote_identifier(distance.name), *keys))
    query = (
        f"SELECT {render_select_list(columns)} FROM {view}({', '.join(arguments)}) "
        f"WHERE {render_condition(where, parameters)} ORDER BY {order} LIMIT {limit}"
    )
    return list(
        query_rows(shard.endpoint, query, parameters.values, columns, context.compute_limits(limit))
    )


def build_distance_column(served: ServedIndex) -> Column:
    """Return the column in which the view of nearest neighbours has the distance."""
    is_taken = any(column.name == "distance" for column in (*served.columns, *served.hidden))
    name = "_distance" if is_taken else "distance"
    return Column(name=name, field=name, type=parse_type("Float64"), scalar=scalars.FLOAT64)
