"""Reads the rows nearest to a vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from iscp_dagster.clickhouse.connect.quoting import ident
from iscp_dagster.clickhouse.kinds.lengths import LARGEST
from iscp_dagster.clickhouse.kinds.searching import Neighbourhood
from iscp_dagster.clickhouse.types.typetext import parsed
from iscp_dagster.model.errors import IscpError
from iscp_dagster.serve import scalars
from iscp_dagster.serve.columns import Column
from iscp_dagster.serve.comparing import ranked
from iscp_dagster.serve.reads import tenancy
from iscp_dagster.serve.reads.caps import Asking
from iscp_dagster.serve.reads.order import Order
from iscp_dagster.serve.rows import rows, select_list
from iscp_dagster.serve.scalars import BadValueError
from iscp_dagster.serve.served import Place, Served
from iscp_dagster.serve.sql import Parameters, condition, fits
from iscp_dagster.serve.where import EVERYTHING, Row, parse


class ForbiddenError(IscpError):
    """A query names a tenant that the viewer may not see; nothing was read."""

    code = 10_840


@dataclass(frozen=True, kw_only=True)
class Near:
    """What a query field asks of an index that knows distances."""

    served: Served
    neighbourhood: Neighbourhood
    columns: tuple[Column, ...]
    """The columns to show, beside the distance."""
    vector: Sequence[float]
    tenant: str | None = None
    """A table with tenants needs one of them: a graph is searched within a tenant."""
    where: Mapping[str, Any] | None = None
    """Which rows are neighbours at all; with a condition no graph is asked."""
    limit: int | None = None
    width: int = 1
    """How many values of a row are shown."""


def nearest(asking: Asking, asked: Near) -> list[Row]:
    """Return the rows nearest to a vector, nearest first, each with its distance.

    Raises ForbiddenError for a tenant that the viewer may not see, and BadValueError for a vector
    of another length than the index has.
    """
    served, limit = asked.served, asking.caps.checked(asked.limit, 0)
    asking.charge(limit * asked.width)
    if served.source.tenant and not asking.viewer.sees(asked.tenant or ""):
        raise ForbiddenError(f"The token may not see the tenant {asked.tenant!r}.")
    if served.tenant is not None and not _names(served.tenant, asked.tenant or ""):
        raise BadValueError(f"tenant: {asked.tenant!r} is no {served.tenant.type.bare}.")
    dimension = asked.neighbourhood.dimension
    if len(asked.vector) != dimension:
        held = len(asked.vector)
        numbers = "1 number" if held == 1 else f"{held:,} numbers"
        raise BadValueError(f"near: the vector has {numbers}, and the index's have {dimension}.")
    if any(abs(each) > LARGEST for each in asked.vector):
        raise BadValueError(f"near: a number is beyond {LARGEST:g}, the largest of 32 bits.")
    if not limit or not tenancy.sees_some(served, asking.viewer):
        return []
    distance = distance_of(served)
    found = [row for place in served.places for row in _neighbours(asking, asked, limit, place)]
    return sorted(found, key=lambda row: ranked(distance.value(row[distance.field])))[:limit]


def _names(tenant: Column, name: str) -> bool:
    """Whether a text is a value of the tenant's column; of some types ClickHouse decides."""
    return tenant.grid is None or fits(tenant, name)


def _neighbours(asking: Asking, asked: Near, limit: int, place: Place) -> list[Row]:
    served, distance, parameters = asked.served, distance_of(asked.served), Parameters()
    columns = (distance, *asked.columns)
    vector = ",".join(repr(float(each)) for each in asked.vector)
    where = parse(served.by_field, asked.where)
    arguments = [f"query = {parameters.bind('Array(Float32)', f'[{vector}]')}"]
    if where == EVERYTHING:
        arguments.append(f"k = {parameters.bind('UInt32', str(limit))}")
    if served.tenant is not None:
        type_ = str(served.tenant.type.bare)
        arguments.append(f"tenant = {parameters.bind(type_, asked.tenant or '')}")
    ends = asked.neighbourhood
    end = ends.nearest if where == EVERYTHING else ends.distances
    view = ident(place.database, f"{served.view}_{end}")
    keys = [Order(column=column).sql for column in served.identity if column.compares]
    order = ", ".join((ident(distance.name), *keys))
    query = (
        f"SELECT {select_list(columns)} FROM {view}({', '.join(arguments)}) "
        f"WHERE {condition(where, parameters)} ORDER BY {order} LIMIT {limit}"
    )
    return list(rows(place.endpoint, query, parameters.values, columns, asking.limits(limit)))


def distance_of(served: Served) -> Column:
    """Return the column in which the view of nearest neighbours has the distance."""
    taken = any(each.name == "distance" for each in (*served.columns, *served.hidden))
    name = "_distance" if taken else "distance"
    return Column(name=name, field=name, type=parsed("Float64"), scalar=scalars.FLOAT64)
