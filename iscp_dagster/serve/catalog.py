"""What is served: the views of the declared indexes that ClickHouse has, with their columns."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.clickhouse.kinds.kind import IndexKind
from iscp_dagster.clickhouse.tables.ddl import RESERVED_COLUMNS
from iscp_dagster.clickhouse.types.typetext import TypeTextError, parsed
from iscp_dagster.model.declared.names import view_name
from iscp_dagster.model.declared.tables import Index, SourceTable
from iscp_dagster.model.declared.views import TAKEN
from iscp_dagster.model.errors import IscpError
from iscp_dagster.serve.columns import Column, column, named
from iscp_dagster.serve.served import CHANGES, MIRROR, Place, Served, choose_columns, choose_served

_COLUMNS = (
    "SELECT table, name, type FROM system.columns WHERE database = {database:String} "
    "AND table IN {views:Array(String)} ORDER BY table, position"
)
_LOGGER = logging.getLogger(__name__)
TIMESTAMP_FIELD = "ts_timestamp"
"""The source timestamp beside a change, which is never a field of the row."""
HIDDEN = RESERVED_COLUMNS | TAKEN
"""Columns that no row shows."""


@dataclass(frozen=True, kw_only=True)
class Catalog:
    """What the schema is made from."""

    queries: Mapping[str, Served] = field(default_factory=dict)
    """By field. A view's, or a table's without a mirror, is read from the changes index."""
    changes: Mapping[str, Served] = field(default_factory=dict)
    """The changes indexes by the field that subscribes to them."""
    unbuilt: frozenset[str] = frozenset()
    """Fields of declared indexes that are not built yet, or cannot be served now."""
    notes: tuple[str, ...] = ()
    """What was left out, and why."""
    waiting: tuple[str, ...] = ()
    """What is not built yet."""


Binary = Callable[[Served, Mapping[str, str]], Collection[str]]
"""Returns the names of an index's columns that keep bytes, of those with these types."""


def catalog(
    tables: Sequence[SourceTable],
    endpoints: Sequence[Endpoint],
    binary: Binary,
    earlier: Catalog | None = None,
) -> Catalog:
    """Return what of the tables' indexes is served now.

    Of two columns, or two indexes, that would have one name in GraphQL, the second is left out,
    and so is what cannot be read, each with a note. What lies on a server that does not answer is
    as in the `earlier` catalog. Raises UnavailableError and the like if no server answers.
    """
    declared = [each for table in tables for each in _indexes(table, endpoints)]
    # Names are given before anybody looks what is built: they stay as they are.
    wanted, notes = choose_served(declared)
    held = _held([(place, each.view) for each in wanted for place in each.places])
    waiting: list[str] = []
    found, unbuilt = [], []
    for each in wanted:
        types = [held[place, each.view] for place in each.places if (place, each.view) in held]
        whole = None
        if len(types) == len(each.places) and all(types):
            whole = _whole(each, types[0], binary, notes) or _as_before(each, earlier)
        elif len(types) == len(each.places):
            waiting.append(f"{each.source.name}/{each.index.shown} is not built yet.")
        else:
            notes.append(f"{each.field}: its ClickHouse does not answer now.")
            whole = _as_before(each, earlier)
        if whole is None:
            unbuilt.append(each.field)
        else:
            found.append(whole)
    return replace(_catalog(found, unbuilt, notes), waiting=tuple(waiting))


def _whole(
    each: Served, types: Mapping[str, str], binary: Binary, notes: list[str]
) -> Served | None:
    """Return the index with its columns; None, with a note, where it cannot be served now."""
    try:
        held = binary(each, types)
    except Exception as error:  # noqa: BLE001 - whatever a table raises stops it alone
        _LOGGER.warning("%s is not served: %s", each.field, error)
        notes.append(f"{each.field}: its table's Delta log cannot be read now.")
        return None
    return _with_columns(each, types, held, notes)


def _as_before(each: Served, earlier: Catalog | None) -> Served | None:
    known = (*earlier.queries.values(), *earlier.changes.values()) if earlier else ()
    return next((one for one in known if (one.view, one.places) == (each.view, each.places)), None)


def field_of(table: SourceTable, index: Index) -> str:
    """Return the field of an index: of a mirror, or of the changes of the table, the table's."""
    plain = f"{table.database}_{table.table}"
    if index.kind in {MIRROR, CHANGES} and index.shown == index.kind:
        return named(plain)
    if index.kind == CHANGES:
        return named(f"{table.database}_{index.shown}")
    return named(f"{plain}_{index.shown}")


def _indexes(table: SourceTable, endpoints: Sequence[Endpoint]) -> Iterator[Served]:
    shards: dict[str, list[Index]] = defaultdict(list)
    for index in table.indexes:
        shards[index.shown].append(index)
    for shown, its in shards.items():
        places = tuple(_place(table, each, endpoints) for each in its)
        assert isinstance(its[0], IndexKind)
        yield Served(
            field=field_of(table, its[0]),
            source=table,
            index=its[0],
            places=places,
            view=view_name(table.table, shown),
            columns=(),
        )


def _place(table: SourceTable, index: Index, endpoints: Sequence[Endpoint]) -> Place:
    endpoint = endpoints[index.shard]
    return Place(endpoint=endpoint, database=endpoint.holds(table.database))


def _held(wanted: Iterable[tuple[Place, str]]) -> dict[tuple[Place, str], dict[str, str]]:
    """Return the columns of each view with their types, empty where there is no such view.

    Leaves out the views of servers that do not answer; raises the last error if none does.
    """
    views: dict[Place, list[str]] = defaultdict(list)
    for place, view in wanted:
        views[place].append(view)
    held: dict[tuple[Place, str], dict[str, str]] = {}
    failures: dict[Place, IscpError] = {}
    for place, names in views.items():
        try:
            held |= {(place, view): types for view, types in _columns_of(place, names).items()}
        except IscpError as error:
            failures[place] = error
    if failures and not held:
        raise next(reversed(failures.values()))
    for place, failure in failures.items():
        _LOGGER.warning("Indexes in %s are served as before: %s", place.database, failure)
    return held


def _columns_of(place: Place, views: Sequence[str]) -> dict[str, dict[str, str]]:
    with place.endpoint.errors("look for the indexes' views"):
        rows = place.endpoint.client().query(
            _COLUMNS, parameters={"database": place.database, "views": views}
        )
    columns: dict[str, dict[str, str]] = {view: {} for view in views}
    for view, name, type_ in rows.result_rows:
        columns[view][name] = type_
    return columns


def _with_columns(
    each: Served, types: Mapping[str, str], binary: Collection[str], notes: list[str]
) -> Served:
    nameable: list[Column] = []
    hidden: list[Column] = []
    for name, type_ in types.items():
        if name in HIDDEN:
            continue
        made = _column(name, type_, binary=name in binary)
        if made is None or made.field == TIMESTAMP_FIELD:
            notes.append(f"{each.field} is without its column {name!r}: {_why(made, type_)}.")
            hidden += [made] if made else []
            continue
        nameable.append(made)
    shown, left_out = choose_columns(nameable, each.field)
    notes += left_out
    chosen = {made.name for made in shown}
    hidden += [made for made in nameable if made.name not in chosen]
    return replace(each, columns=tuple(shown), hidden=tuple(hidden))


def _column(name: str, type_: str, *, binary: bool) -> Column | None:
    try:
        return column(name, parsed(type_), binary=binary)
    except TypeTextError:
        return None


def _why(made: Column | None, type_: str) -> str:
    if made is None:
        return f"GraphQL has no type for {type_}"
    return "the name is that of a change's timestamp, which is no column"


def _catalog(found: Sequence[Served], unbuilt: Sequence[str], notes: Sequence[str]) -> Catalog:
    changes = {each.field: each for each in found if each.index.of_images}
    plain = {each.field: each for each in found if not each.index.of_images}
    return Catalog(
        queries={**changes, **plain},
        changes=changes,
        unbuilt=frozenset(unbuilt) - {*plain, *changes},
        # A mirror and the changes of its table have one field, and may lack the same column.
        notes=tuple(dict.fromkeys(notes)),
    )
