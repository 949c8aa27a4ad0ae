"""What is served: the views of the declared indexes that ClickHouse has, with their columns."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.kinds.kind import IndexKind
from iscp_dagster.clickhouse.tables.ddl import RESERVED_COLUMNS
from iscp_dagster.clickhouse.types.type_parser import TypeTextError, parse_type
from iscp_dagster.model.declared.names import view_name
from iscp_dagster.model.declared.tables import Index, SourceTable
from iscp_dagster.model.declared.views import TAKEN
from iscp_dagster.model.errors import IscpError
from iscp_dagster.serve.columns import Column, build_column, to_graphql_name
from iscp_dagster.serve.served_index import (
    CHANGES,
    MIRROR,
    ServedIndex,
    Shard,
    choose_columns,
    choose_served,
)

_COLUMNS = (
    "SELECT table, name, type FROM system.columns WHERE database = {database:String} "
    "AND table IN {views:Array(String)} ORDER BY table, position"
)
_LOGGER = logging.getLogger(__name__)
TIMESTAMP_FIELD = "ts_timestamp"
"""The source timestamp beside a change, which is never a field of the row."""
HIDDEN_COLUMNS = RESERVED_COLUMNS | TAKEN
"""Columns that no row shows."""


@dataclass(frozen=True, kw_only=True)
class ServedCatalog:
    """What the schema is made from."""

    queries: Mapping[str, ServedIndex] = field(default_factory=dict)
    """By field. Views, and tables without a mirror, are read from their changes indexes."""
    changes: Mapping[str, ServedIndex] = field(default_factory=dict)
    """The changes indexes by the field that subscribes to them."""
    unbuilt: frozenset[str] = frozenset()
    """Fields of declared indexes that are not built yet, or cannot be served now."""
    notes: tuple[str, ...] = ()
    """What was left out, and why."""
    unbuilt_notes: tuple[str, ...] = ()
    """What is not built yet."""


BinaryColumnFinder = Callable[[ServedIndex, Mapping[str, str]], Collection[str]]
"""Gets an index and its columns' types, and returns the names of its binary columns."""


def read_catalog(
    tables: Sequence[SourceTable],
    endpoints: Sequence[ClickHouseEndpoint],
    find_binary: BinaryColumnFinder,
    earlier: ServedCatalog | None = None,
) -> ServedCatalog:
    """Return the tables' indexes that can be served now.

    If two columns or two indexes would have one name in GraphQL, the second is left out, and so is
    what cannot be read, each with a note. An index whose server does not answer is as in the
    `earlier` catalog. Raises UnavailableError and the like if no server answers.
    """
    declared = [served for table in tables for served in _list_indexes(table, endpoints)]
    # Names do not depend on what is built, so they are stable.
    candidates, notes = choose_served(declared)
    types_by_view = _read_view_columns(
        [(shard, served.view) for served in candidates for shard in served.shards]
    )
    waiting: list[str] = []
    ready, unbuilt = [], []
    for candidate in candidates:
        types = [
            types_by_view[shard, candidate.view]
            for shard in candidate.shards
            if (shard, candidate.view) in types_by_view
        ]
        served = None
        if len(types) == len(candidate.shards) and all(types):
            served = _complete_index(candidate, types[0], find_binary, notes) or _find_earlier(
                candidate, earlier
            )
        elif len(types) == len(candidate.shards):
            waiting.append(f"{candidate.source.name}/{candidate.index.shown} is not built yet.")
        else:
            notes.append(f"{candidate.field}: its ClickHouse does not answer now.")
            served = _find_earlier(candidate, earlier)
        if served is None:
            unbuilt.append(candidate.field)
        else:
            ready.append(served)
    return replace(_build_catalog(ready, unbuilt, notes), unbuilt_notes=tuple(waiting))


def _complete_index(
    served: ServedIndex, types: Mapping[str, str], find_binary: BinaryColumnFinder, notes: list[str]
) -> ServedIndex | None:
    """Return the index with its columns; None, with a note, if it cannot be served now."""
    try:
        binary_columns = find_binary(served, types)
    except Exception as error:  # noqa: BLE001 - a table's error leaves out only that table
        _LOGGER.warning("%s is not served: %s", served.field, error)
        notes.append(f"{served.field}: its table's Delta log cannot be read now.")
        return None
    return _add_columns(served, types, binary_columns, notes)


def _find_earlier(served: ServedIndex, earlier: ServedCatalog | None) -> ServedIndex | None:
    indexes = (*earlier.queries.values(), *earlier.changes.values()) if earlier else ()
    return next(
        (index for index in indexes if (index.view, index.shards) == (served.view, served.shards)),
        None,
    )


def get_field_name(table: SourceTable, index: Index) -> str:
    """Return an index's field; a table's mirror and its changes have the table's name."""
    table_name = f"{table.database}_{table.table}"
    if index.kind in {MIRROR, CHANGES} and index.shown == index.kind:
        return to_graphql_name(table_name)
    if index.kind == CHANGES:
        return to_graphql_name(f"{table.database}_{index.shown}")
    return to_graphql_name(f"{table_name}_{index.shown}")


def _list_indexes(
    table: SourceTable, endpoints: Sequence[ClickHouseEndpoint]
) -> Iterator[ServedIndex]:
    shards: dict[str, list[Index]] = defaultdict(list)
    for index in table.indexes:
        shards[index.shown].append(index)
    for name, indexes in shards.items():
        places = tuple(_build_shard(table, index, endpoints) for index in indexes)
        assert isinstance(indexes[0], IndexKind)
        yield ServedIndex(
            field=get_field_name(table, indexes[0]),
            source=table,
            index=indexes[0],
            shards=places,
            view=view_name(table.table, name),
            columns=(),
        )


def _build_shard(
    table: SourceTable, index: Index, endpoints: Sequence[ClickHouseEndpoint]
) -> Shard:
    endpoint = endpoints[index.shard]
    return Shard(endpoint=endpoint, database=endpoint.resolve_database(table.database))


def _read_view_columns(
    shard_views: Iterable[tuple[Shard, str]],
) -> dict[tuple[Shard, str], dict[str, str]]:
    """Return the columns of each view with their types, empty if there is no such view.

    Leaves out the views of servers that do not answer; raises the last error if none does.
    """
    views: dict[Shard, list[str]] = defaultdict(list)
    for shard, view in shard_views:
        views[shard].append(view)
    types_by_view: dict[tuple[Shard, str], dict[str, str]] = {}
    failures: dict[Shard, IscpError] = {}
    for shard, names in views.items():
        try:
            types_by_view |= {
                (shard, view): types for view, types in _read_shard_columns(shard, names).items()
            }
        except IscpError as error:
            failures[shard] = error
    if failures and not types_by_view:
        raise next(reversed(failures.values()))
    for shard, failure in failures.items():
        _LOGGER.warning("Indexes in %s are served as before: %s", shard.database, failure)
    return types_by_view


def _read_shard_columns(shard: Shard, views: Sequence[str]) -> dict[str, dict[str, str]]:
    with shard.endpoint.translate_errors("look for the indexes' views"):
        rows = shard.endpoint.get_client().query(
            _COLUMNS, parameters={"database": shard.database, "views": views}
        )
    columns: dict[str, dict[str, str]] = {view: {} for view in views}
    for view, name, type_ in rows.result_rows:
        columns[view][name] = type_
    return columns


def _add_columns(
    served: ServedIndex, types: Mapping[str, str], binary_columns: Collection[str], notes: list[str]
) -> ServedIndex:
    nameable: list[Column] = []
    hidden: list[Column] = []
    for name, type_ in types.items():
        if name in HIDDEN_COLUMNS:
            continue
        column = _parse_column(name, type_, binary=name in binary_columns)
        if column is None or column.field == TIMESTAMP_FIELD:
            reason = _explain_omission(column, type_)
            notes.append(f"{served.field} is without its column {name!r}: {reason}.")
            hidden += [column] if column else []
            continue
        nameable.append(column)
    columns, omissions = choose_columns(nameable, served.field)
    notes += omissions
    names = {column.name for column in columns}
    hidden += [column for column in nameable if column.name not in names]
    return replace(served, columns=tuple(columns), hidden=tuple(hidden))


def _parse_column(name: str, type_: str, *, binary: bool) -> Column | None:
    try:
        return build_column(name, parse_type(type_), binary=binary)
    except TypeTextError:
        return None


def _explain_omission(column: Column | None, type_: str) -> str:
    if column is None:
        return f"GraphQL has no type for {type_}"
    return "the name is reserved for a change's timestamp"


def _build_catalog(
    indexes: Sequence[ServedIndex], unbuilt: Sequence[str], notes: Sequence[str]
) -> ServedCatalog:
    changes = {served.field: served for served in indexes if served.index.of_images}
    plain = {served.field: served for served in indexes if not served.index.of_images}
    return ServedCatalog(
        queries={**changes, **plain},
        changes=changes,
        unbuilt=frozenset(unbuilt) - {*plain, *changes},
        # A mirror and the changes of its table share a field, and may lack the same column.
        notes=tuple(dict.fromkeys(notes)),
    )
