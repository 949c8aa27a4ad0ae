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
from iscp_dagster.serve.catalog import TIMESTAMP_FIELD, ServedCatalog
from iscp_dagster.serve.columns import Column
from iscp_dagster.serve.graph.types import GraphQLTypes
from iscp_dagster.serve.reads.caps import RequestContext
from iscp_dagster.serve.reads.nearest import NearestQuery, build_distance_column, read_nearest
from iscp_dagster.serve.reads.order import OrderTerm
from iscp_dagster.serve.reads.selection import RowSelection, read_rows
from iscp_dagster.serve.scalars import BadValueError
from iscp_dagster.serve.served_index import NAMES_FIELD, ServedIndex
from iscp_dagster.serve.where import Row

Subscribe = Callable[[ServedIndex, Mapping[str, Any], Any], Any]
"""Returns an asynchronous iterator of messages: gets the changes index, the arguments (where,
after, snapshot, progress) and the request's context."""


def create_schema(catalog: ServedCatalog, subscribe: Subscribe | None = None) -> GraphQLSchema:
    """Return the schema; names in the catalog are unique.

    Without `subscribe`, subscriptions exist for `--print-schema`, but fail.
    """
    types = GraphQLTypes()
    queries = {
        name: _build_query_field(types, served) for name, served in sorted(catalog.queries.items())
    }
    names = sorted(catalog.queries)
    queries[NAMES_FIELD] = GraphQLField(
        GraphQLNonNull(GraphQLList(GraphQLNonNull(GraphQLString))),
        resolve=lambda _root, _info: names,
        description="The names of all other fields.",
    )
    subscriptions = {
        name: _build_subscription_field(types, served, subscribe)
        for name, served in sorted(catalog.changes.items())
    }
    return GraphQLSchema(
        query=GraphQLObjectType("Query", queries, description=_describe_catalog(catalog)),
        subscription=GraphQLObjectType("Subscription", subscriptions) if subscriptions else None,
    )


def _describe_catalog(catalog: ServedCatalog) -> str:
    head = "Rows of the indexes that ClickHouse keeps in step with their Delta tables."
    return "\n".join([head, *catalog.unbuilt_notes, *catalog.notes])


def _build_query_field(types: GraphQLTypes, served: ServedIndex) -> GraphQLField:
    if (neighbourhood := served.index.get_neighbourhood()) is not None:
        return _build_nearest_field(types, served, neighbourhood)
    row = types.get_row_type(served)

    def resolve(_root: Any, info: GraphQLResolveInfo, **args: Any) -> list[Row]:
        return read_rows(_get_context(info), _build_selection(served, info, args))

    searches = {
        name: GraphQLArgument(types.get_argument_type(column), description=search.description)
        for name, (search, column) in served.searches.items()
    }
    arguments = {**searches, **_build_page_arguments(types, served)}
    return GraphQLField(
        _build_rows_type(row), arguments, resolve, description=_describe_index(served)
    )


def _build_nearest_field(
    types: GraphQLTypes, served: ServedIndex, neighbourhood: Neighbourhood
) -> GraphQLField:
    distance = build_distance_column(served)
    row = types.get_row_type(served, distance)

    def resolve(_root: Any, info: GraphQLResolveInfo, **args: Any) -> list[Row]:
        names = _list_shown_fields(info)
        near = NearestQuery(
            served=served,
            neighbourhood=neighbourhood,
            columns=_list_shown_columns(served, names),
            width=len(names),
            vector=args["near"],
            tenant=args.get("tenant"),
            where=args.get("where"),
            limit=args.get("limit"),
        )
        return read_nearest(_get_context(info), near)

    numbers = GraphQLNonNull(GraphQLList(GraphQLNonNull(GraphQLFloat)))
    arguments = {"near": GraphQLArgument(numbers, description="The vector to be near to.")}
    if served.source.tenant:
        arguments["tenant"] = GraphQLArgument(GraphQLNonNull(GraphQLString))
    arguments["where"] = GraphQLArgument(
        types.get_where_type(served), description="Which rows are neighbours at all."
    )
    arguments["limit"] = GraphQLArgument(GraphQLInt)
    return GraphQLField(
        _build_rows_type(row), arguments, resolve, description=_describe_index(served)
    )


def _build_page_arguments(types: GraphQLTypes, served: ServedIndex) -> dict[str, GraphQLArgument]:
    order = types.build_order_type(served)
    ordering = {}
    if order is not None:
        ordering["order_by"] = GraphQLArgument(GraphQLList(GraphQLNonNull(order)))
    return {
        "where": GraphQLArgument(types.get_where_type(served)),
        **ordering,
        "limit": GraphQLArgument(GraphQLInt),
        "offset": GraphQLArgument(GraphQLInt, default_value=0),
    }


def _build_rows_type(row: GraphQLObjectType) -> Any:
    return GraphQLNonNull(GraphQLList(GraphQLNonNull(row)))


def _describe_index(served: ServedIndex) -> str:
    summary = f"Index {served.index.shown} ({served.kind}) of {served.source.name}."
    details = served.index.description or served.source.description
    return f"{summary} {details}" if details else summary


def _get_context(info: GraphQLResolveInfo) -> RequestContext:
    asking: RequestContext = info.context
    return asking


def _build_selection(
    served: ServedIndex, info: GraphQLResolveInfo, args: Mapping[str, Any]
) -> RowSelection:
    names = _list_shown_fields(info)
    return RowSelection(
        served=served,
        columns=_list_shown_columns(served, names),
        values_per_row=len(names),
        where=args.get("where"),
        order=tuple(_parse_order(served, args.get("order_by") or ())),
        limit=args.get("limit"),
        offset=args.get("offset") or 0,
        searches={name: args[name] for name in served.searches if args.get(name) is not None},
    )


def _parse_order(served: ServedIndex, parts: Sequence[Mapping[str, Any]]) -> Iterator[OrderTerm]:
    for part in parts:
        if len(part) != 1 or None in part.values():
            raise BadValueError(
                "order_by: write one column with its order in each part, [{a: asc}, {b: desc}]."
            )
        for name, (descending, nulls_first) in part.items():
            column = served.by_field[name]
            yield OrderTerm(column=column, descending=descending, nulls_first=nulls_first)


def _list_shown_fields(info: GraphQLResolveInfo) -> list[str]:
    """Return the names of a row's fields that the query selects, also in fragments.

    A field with several aliases is repeated.
    """
    row = get_named_type(info.return_type)
    assert isinstance(row, GraphQLObjectType)
    fields = collect_sub_fields(
        info.schema, info.fragments, info.variable_values, row, info.field_nodes
    )
    return [nodes[0].name.value for nodes in fields.values()]


def _list_shown_columns(served: ServedIndex, names: Collection[str]) -> tuple[Column, ...]:
    return tuple(column for column in served.columns if column.field in names)


def _build_subscription_field(
    types: GraphQLTypes, served: ServedIndex, subscribe: Subscribe | None
) -> GraphQLField:
    def begin(_root: Any, info: GraphQLResolveInfo, **args: Any) -> Any:
        if subscribe is None:
            raise BadValueError(
                "This server has no subscriptions, as it has no ISCP log; set ISCP_LOG_URL."
            )
        return subscribe(served, args, info.context)

    arguments = {
        "where": GraphQLArgument(types.get_where_type(served)),
        "after": GraphQLArgument(
            GraphQLString, description="The cursor of the last message received."
        ),
        "snapshot": GraphQLArgument(
            GraphQLNonNull(GraphQLBoolean),
            default_value=True,
            description="Without `after`: send the existing rows first, as INSERTs.",
        ),
        "progress": GraphQLArgument(
            GraphQLNonNull(GraphQLBoolean),
            default_value=False,
            description="Send cursors also when nothing changes.",
        ),
    }
    return GraphQLField(
        GraphQLNonNull(_build_message_type(types, served)),
        arguments,
        lambda message, _info, **_args: message,
        subscribe=begin,
        description=_describe_index(served),
    )


def _build_message_type(types: GraphQLTypes, served: ServedIndex) -> GraphQLObjectType:
    name = f"{served.field}_change"
    types.reserve_name(name, served)
    return GraphQLObjectType(
        name,
        {
            "operation": GraphQLField(GraphQLNonNull(types.operation)),
            "data": GraphQLField(types.get_row_type(served), description="Null in PROGRESS."),
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
