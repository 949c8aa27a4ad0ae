"""The GraphQL schema of a catalog: a query field for each index, a subscription for its changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from graphql import (
    GraphQLArgument,
    GraphQLBoolean,
    GraphQLField,
    GraphQLFloat,
    GraphQLInt,
    GraphQLList,
    GraphQLNonNull,
    GraphQLObjectType,
    GraphQLResolveInfo,
    GraphQLSchema,
    GraphQLString,
    get_named_type,
)
from graphql.execution.collect_fields import collect_sub_fields

from iscp_dagster.clickhouse.kinds.searching import Neighbourhood
from iscp_dagster.serve.catalog import TIMESTAMP_FIELD, Catalog
from iscp_dagster.serve.columns import Column
from iscp_dagster.serve.graph.types import Types
from iscp_dagster.serve.reads.caps import Asking
from iscp_dagster.serve.reads.nearest import Near, distance_of, nearest
from iscp_dagster.serve.reads.order import Order
from iscp_dagster.serve.reads.selecting import Selection, selected
from iscp_dagster.serve.scalars import BadValueError
from iscp_dagster.serve.served import NAMES_FIELD, Served
from iscp_dagster.serve.where import Row

Subscribe = Callable[[Served, Mapping[str, Any], Any], Any]
"""Returns an asynchronous iterator of messages: gets the changes index, the arguments (where,
after, snapshot, progress) and the request's context."""


def schema(catalog: Catalog, subscribe: Subscribe | None = None) -> GraphQLSchema:
    """Return the schema; the catalog has no two indexes of one name.

    Without `subscribe` the subscriptions are there for `--print-schema`, and cannot be used.
    """
    types = Types()
    queries = {name: _query(types, each) for name, each in sorted(catalog.queries.items())}
    names = sorted(catalog.queries)
    queries[NAMES_FIELD] = GraphQLField(
        GraphQLNonNull(GraphQLList(GraphQLNonNull(GraphQLString))),
        resolve=lambda _root, _info: names,
        description="The names of all other fields.",
    )
    subscriptions = {
        name: _subscription(types, each, subscribe)
        for name, each in sorted(catalog.changes.items())
    }
    return GraphQLSchema(
        query=GraphQLObjectType("Query", queries, description=_described(catalog)),
        subscription=GraphQLObjectType("Subscription", subscriptions) if subscriptions else None,
    )


def _described(catalog: Catalog) -> str:
    head = "Rows of the indexes that ClickHouse keeps in step with their Delta tables."
    return "\n".join([head, *catalog.waiting, *catalog.notes])


def _query(types: Types, served: Served) -> GraphQLField:
    if (neighbourhood := served.index.neighbourhood()) is not None:
        return _nearest(types, served, neighbourhood)
    row = types.row(served)

    def resolve(_root: Any, info: GraphQLResolveInfo, **given: Any) -> list[Row]:
        return selected(_asking(info), _selection(served, info, given))

    asked = {
        name: GraphQLArgument(types.argument_type(column), description=search.description)
        for name, (search, column) in served.searches.items()
    }
    arguments = {**asked, **_page(types, served)}
    return GraphQLField(_rows(row), arguments, resolve, description=_about(served))


def _nearest(types: Types, served: Served, neighbourhood: Neighbourhood) -> GraphQLField:
    distance = distance_of(served)
    row = types.row(served, distance)

    def resolve(_root: Any, info: GraphQLResolveInfo, **given: Any) -> list[Row]:
        names = _shown(info)
        near = Near(
            served=served,
            neighbourhood=neighbourhood,
            columns=_columns(served, names),
            width=len(names),
            vector=given["near"],
            tenant=given.get("tenant"),
            where=given.get("where"),
            limit=given.get("limit"),
        )
        return nearest(_asking(info), near)

    numbers = GraphQLNonNull(GraphQLList(GraphQLNonNull(GraphQLFloat)))
    arguments = {"near": GraphQLArgument(numbers, description="The vector to be near to.")}
    if served.source.tenant:
        arguments["tenant"] = GraphQLArgument(GraphQLNonNull(GraphQLString))
    arguments["where"] = GraphQLArgument(
        types.where(served), description="Which rows are neighbours at all."
    )
    arguments["limit"] = GraphQLArgument(GraphQLInt)
    return GraphQLField(_rows(row), arguments, resolve, description=_about(served))


def _page(types: Types, served: Served) -> dict[str, GraphQLArgument]:
    order = types.order(served)
    ordering = {}
    if order is not None:
        ordering["order_by"] = GraphQLArgument(GraphQLList(GraphQLNonNull(order)))
    return {
        "where": GraphQLArgument(types.where(served)),
        **ordering,
        "limit": GraphQLArgument(GraphQLInt),
        "offset": GraphQLArgument(GraphQLInt, default_value=0),
    }


def _rows(row: GraphQLObjectType) -> Any:
    return GraphQLNonNull(GraphQLList(GraphQLNonNull(row)))


def _about(served: Served) -> str:
    said = f"Index {served.index.shown} ({served.kind}) of {served.source.name}."
    more = served.index.description or served.source.description
    return f"{said} {more}" if more else said


def _asking(info: GraphQLResolveInfo) -> Asking:
    asking: Asking = info.context
    return asking


def _selection(served: Served, info: GraphQLResolveInfo, given: Mapping[str, Any]) -> Selection:
    names = _shown(info)
    return Selection(
        served=served,
        columns=_columns(served, names),
        width=len(names),
        where=given.get("where"),
        order=tuple(_order(served, given.get("order_by") or ())),
        limit=given.get("limit"),
        offset=given.get("offset") or 0,
        searches={name: given[name] for name in served.searches if given.get(name) is not None},
    )


def _order(served: Served, given: Sequence[Mapping[str, Any]]) -> Iterator[Order]:
    for part in given:
        if len(part) != 1 or None in part.values():
            raise BadValueError(
                "order_by: write one column with its order in each part, [{a: asc}, {b: desc}]."
            )
        for name, (descending, nulls_first) in part.items():
            column = served.by_field[name]
            yield Order(column=column, descending=descending, nulls_first=nulls_first)


def _shown(info: GraphQLResolveInfo) -> list[str]:
    """Return the names of the fields that the query shows of a row, whatever fragments hold them.

    One that is shown under several names is there as often.
    """
    row = get_named_type(info.return_type)
    assert isinstance(row, GraphQLObjectType)
    fields = collect_sub_fields(
        info.schema, info.fragments, info.variable_values, row, info.field_nodes
    )
    return [nodes[0].name.value for nodes in fields.values()]


def _columns(served: Served, names: Collection[str]) -> tuple[Column, ...]:
    return tuple(each for each in served.columns if each.field in names)


def _subscription(types: Types, served: Served, subscribe: Subscribe | None) -> GraphQLField:
    def begin(_root: Any, info: GraphQLResolveInfo, **given: Any) -> Any:
        if subscribe is None:
            raise BadValueError("This server tells no changes.")
        return subscribe(served, given, info.context)

    arguments = {
        "where": GraphQLArgument(types.where(served)),
        "after": GraphQLArgument(
            GraphQLString, description="The cursor of the last message received."
        ),
        "snapshot": GraphQLArgument(
            GraphQLNonNull(GraphQLBoolean),
            default_value=True,
            description="Without `after`: tell the rows that there are first, as INSERTs.",
        ),
        "progress": GraphQLArgument(
            GraphQLNonNull(GraphQLBoolean),
            default_value=False,
            description="Tell cursors also when nothing changes.",
        ),
    }
    return GraphQLField(
        GraphQLNonNull(_message(types, served)),
        arguments,
        lambda message, _info, **_given: message,
        subscribe=begin,
        description=_about(served),
    )


def _message(types: Types, served: Served) -> GraphQLObjectType:
    name = f"{served.field}_change"
    types.take(name, served)
    return GraphQLObjectType(
        name,
        {
            "operation": GraphQLField(GraphQLNonNull(types.operation)),
            "data": GraphQLField(types.row(served), description="Null in PROGRESS."),
            "fields": GraphQLField(
                GraphQLNonNull(GraphQLList(GraphQLNonNull(GraphQLString))),
                description="The columns that an UPDATE changed.",
            ),
            TIMESTAMP_FIELD: GraphQLField(
                GraphQLString,
                description="The commit's timestamp in nanoseconds: for order and duplicates.",
            ),
            "cursor": GraphQLField(GraphQLNonNull(GraphQLString), description=_CURSOR),
        },
    )


_CURSOR = "The position after this message, to give as `after`."
