"""Reads rows of an index by condition, order and page, or by words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from iscp_dagster.clickhouse.connect.quoting import ident
from iscp_dagster.model.declared.schema import VERSION
from iscp_dagster.serve.access import Viewer
from iscp_dagster.serve.columns import Column
from iscp_dagster.serve.reads import tenancy
from iscp_dagster.serve.reads.caps import Asking
from iscp_dagster.serve.reads.order import Order, clause, merged, whole
from iscp_dagster.serve.rows import rows, select_list
from iscp_dagster.serve.served import Place, Served
from iscp_dagster.serve.sql import Parameters, bind_value, condition
from iscp_dagster.serve.where import Row, parse


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What a query field asks of an index."""

    served: Served
    columns: tuple[Column, ...]
    """The columns to show."""
    where: Mapping[str, Any] | None = None
    order: tuple[Order, ...] = ()
    limit: int | None = None
    offset: int = 0
    searches: Mapping[str, Any] = field(default_factory=dict)
    """What is asked of the kind of index, by argument."""
    width: int = 1
    """How many values of a row are shown; one may be shown under several names."""


def selected(asking: Asking, asked: Selection) -> list[Row]:
    """Return the rows that a viewer may see. Raises BadValueError, TooComplexError and the like."""
    limit = asking.caps.checked(asked.limit, asked.offset)
    asking.charge(limit * asked.width)
    if not limit or not tenancy.sees_some(asked.served, asking.viewer):
        return []
    places, order = asked.served.places, whole(asked.served, asked.order)
    if len(places) == 1:
        wanted = asked.columns or asked.served.columns[:1]
        return _read(asking, asked, wanted, (limit, asked.offset), places[0])
    # Each shard's first rows, of which some are among the first of all.
    wanted = tuple(dict.fromkeys((*asked.columns, *(each.column for each in order))))
    most = limit + asked.offset
    found = [row for place in places for row in _read(asking, asked, wanted, (most, 0), place)]
    return merged(found, order)[asked.offset : most]


def _read(
    asking: Asking,
    asked: Selection,
    wanted: Sequence[Column],
    page: tuple[int, int],
    place: Place,
) -> list[Row]:
    parameters = Parameters()
    limit, offset = page
    query = (
        f"SELECT {select_list(wanted)} "
        f"FROM {_source(asked.served, place, asking.viewer, parameters)} "
        f"WHERE {_conditions(asked, asking.viewer, parameters)} "
        f"{clause(whole(asked.served, asked.order))} LIMIT {limit} OFFSET {offset}"
    )
    return list(rows(place.endpoint, query, parameters.values, wanted, asking.limits(limit)))


def _source(served: Served, place: Place, viewer: Viewer, parameters: Parameters) -> str:
    """Return what the rows are read from; of changes, the last image of each key."""
    view = ident(place.database, served.view)
    if not served.index.of_images:
        return view
    keys = ", ".join(ident(each.name) for each in served.identity)
    seen = tenancy.condition(served, viewer, parameters)
    last = f"ORDER BY {ident(VERSION)} DESC, `_image` DESC LIMIT 1 BY {keys}"
    return f"(SELECT * FROM (SELECT * FROM {view} WHERE {seen} {last}) WHERE `_image` = 1)"


def _conditions(asked: Selection, viewer: Viewer, parameters: Parameters) -> str:
    parts = [tenancy.condition(asked.served, viewer, parameters)]
    for name, value in asked.searches.items():
        search, argument = asked.served.searches[name]
        parts.append(search.condition(bind_value(argument, value, parameters)))
    parts.append(condition(parse(asked.served.by_field, asked.where), parameters))
    return " AND ".join(parts)
