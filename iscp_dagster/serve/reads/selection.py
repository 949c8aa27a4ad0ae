"""Reads rows of an index by condition, order and page, or by words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from iscp_dagster.clickhouse.connect.quoting import quote_identifier
from iscp_dagster.model.declared.schema import VERSION
from iscp_dagster.serve.access import Viewer
from iscp_dagster.serve.columns import Column
from iscp_dagster.serve.reads import tenancy
from iscp_dagster.serve.reads.caps import RequestContext
from iscp_dagster.serve.reads.order import OrderTerm, complete_order, merge_rows, render_order_by
from iscp_dagster.serve.rows import query_rows, render_select_list
from iscp_dagster.serve.served_index import ServedIndex, Shard
from iscp_dagster.serve.sql import Parameters, bind_value, render_condition
from iscp_dagster.serve.where import Row, parse_where


@dataclass(frozen=True, kw_only=True)
class RowSelection:
    """A query for rows of an index."""

    served: ServedIndex
    columns: tuple[Column, ...]
    """The columns to show."""
    where: Mapping[str, Any] | None = None
    order: tuple[OrderTerm, ...] = ()
    limit: int | None = None
    offset: int = 0
    searches: Mapping[str, Any] = field(default_factory=dict)
    """The searches of its kind of index, by argument."""
    values_per_row: int = 1
    """How many values of a row are shown; one may be shown under several names."""


def read_rows(asking: RequestContext, selection: RowSelection) -> list[Row]:
    """Return the rows that a viewer may see. Raises BadValueError, TooComplexError and the like."""
    limit = asking.caps.check_page(selection.limit, selection.offset)
    asking.charge_cells(limit * selection.values_per_row)
    if not limit or not tenancy.can_see_rows(selection.served, asking.viewer):
        return []
    shards, order = selection.served.shards, complete_order(selection.served, selection.order)
    if len(shards) == 1:
        columns = selection.columns or selection.served.columns[:1]
        return _read_shard(asking, selection, columns, (limit, selection.offset), shards[0])
    # The first rows of all are among each shard's first rows.
    columns = tuple(dict.fromkeys((*selection.columns, *(part.column for part in order))))
    page_end = limit + selection.offset
    shard_rows = [
        row
        for shard in shards
        for row in _read_shard(asking, selection, columns, (page_end, 0), shard)
    ]
    return merge_rows(shard_rows, order)[selection.offset : page_end]


def _read_shard(
    context: RequestContext,
    selection: RowSelection,
    columns: Sequence[Column],
    page: tuple[int, int],
    shard: Shard,
) -> list[Row]:
    parameters = Parameters()
    limit, offset = page
    query = (
        f"SELECT {render_select_list(columns)} "
        f"FROM {_render_source(selection.served, shard, context.viewer, parameters)} "
        f"WHERE {_render_conditions(selection, context.viewer, parameters)} "
        f"{render_order_by(complete_order(selection.served, selection.order))} "
        f"LIMIT {limit} OFFSET {offset}"
    )
    return list(
        query_rows(shard.endpoint, query, parameters.values, columns, context.compute_limits(limit))
    )


def _render_source(
    served: ServedIndex, shard: Shard, viewer: Viewer, parameters: Parameters
) -> str:
    """Return what the rows are read from; of changes, the last image of each key."""
    view = quote_identifier(shard.database, served.view)
    if not served.index.of_images:
        return view
    keys = ", ".join(quote_identifier(column.name) for column in served.identity_columns)
    visible = tenancy.render_tenant_condition(served, viewer, parameters)
    latest = f"ORDER BY {quote_identifier(VERSION)} DESC, `_image` DESC LIMIT 1 BY {keys}"
    return f"(SELECT * FROM (SELECT * FROM {view} WHERE {visible} {latest}) WHERE `_image` = 1)"


def _render_conditions(selection: RowSelection, viewer: Viewer, parameters: Parameters) -> str:
    parts = [tenancy.render_tenant_condition(selection.served, viewer, parameters)]
    for name, value in selection.searches.items():
        search, argument = selection.served.searches[name]
        parts.append(search.condition(bind_value(argument, value, parameters)))
    parts.append(
        render_condition(parse_where(selection.served.by_field, selection.where), parameters)
    )
    return " AND ".join(parts)
