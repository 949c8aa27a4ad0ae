"""What is served: the views of the declared indexes that ClickHouse has, with their columns."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.clickhouse.tables.ddl import RESERVED_COLUMNS
from iscp_dagster.clickhouse.types.typetext import TypeTextError, parsed
from iscp_dagster.model.declared.names import view_name
from iscp_dagster.model.declared.tables import Index, SourceTable
from iscp_dagster.model.declared.views import TAKEN
from iscp_dagster.model.errors import ConfigError, IscpError
from iscp_dagster.serve.columns import Column, column, named

_COLUMNS = (
    "SELECT table, name, type FROM system.columns WHERE database = {database:String} "
    "AND table IN {views:Array(String)} ORDER BY table, position"
)
_LOGGER = logging.getLogger(__name__)
TIMESTAMP_FIELD = "ts_timestamp"
"""The source timestamp beside a change, which is never a field of the row."""
HIDDEN = RESERVED_COLUMNS | TAKEN
"""Columns that no row shows."""
_BEFORE_NAMES = {"_and", "_or", "_not"}
"""What a `where` has beside the columns."""
MIRROR, CHANGES = "mirror", "changes"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a view, or one shard of it, lies."""

    endpoint: Endpoint
    database: str


@dataclass(frozen=True, kw_only=True)
class Served:
    """One index as it is served: `field` is its name in the schema."""

    field: str
    source: SourceTable
    index: Index
    """The index; of a sharded one, its first shard."""
    places: tuple[Place, ...]
    """Every shard."""
    view: str
    columns: tuple[Column, ...]
    hidden: tuple[Column, ...] = ()
    """Key columns and the tenant's if the schema has no type for them, or no name."""

    @cached_property
    def by_field(self) -> dict[str, Column]:
        return {each.field: each for each in self.columns}

    @property
    def tenant(self) -> Column | None:
        """The column that names the tenant; None: the table's one tenant is `default`."""
        return self._named(self.source.tenant) if self.source.tenant else None

    @cached_property
    def identity(self) -> tuple[Column, ...]:
        """Tenant and key columns, by which rows are ordered in the end."""
        names = dict.fromkeys((*([self.source.tenant] if self.source.tenant else []), *self.keys))
        return tuple(found for name in names if (found := self._named(name)))

    @property
    def keys(self) -> tuple[str, ...]:
        return self.source.keys

    @property
    def kind(self) -> str:
        return self.index.kind

    def _named(self, name: str) -> Column | None:
        return next((each for each in (*self.columns, *self.hidden) if each.name == name), None)


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


Binary = Callable[[Served, Mapping[str, str]], Collection[str]]
"""Returns the names of an index's columns that keep bytes, of those with these types."""


def catalog(
    tables: Sequence[SourceTable], endpoints: Sequence[Endpoint], binary: Binary
) -> Catalog:
    """Return what of the tables' indexes is served now.

    Raises ConfigError for two columns, or two indexes, that would have one name in GraphQL, and
    UnavailableError and the like if a server does not answer.
    """
    wanted = [each for table in tables for each in _indexes(table, endpoints)]
    held = _held([(place, each.view) for each in wanted for place in each.places])
    notes: list[str] = []
    found, unbuilt = [], []
    for each in wanted:
        types = [held[place, each.view] for place in each.places]
        whole = _whole(each, types, binary, notes)
        if whole is None:
            unbuilt.append(each.field)
        else:
            found.append(whole)
    return _catalog(found, unbuilt, notes)


def _whole(
    each: Served, types: Sequence[Mapping[str, str]], binary: Binary, notes: list[str]
) -> Served | None:
    """Return the index with its columns; None, with a note, where it cannot be served now."""
    if not all(types):
        notes.append(f"{each.source.name}/{each.index.shown} is not built yet.")
        return None
    try:
        held = binary(each, types[0])
    except IscpError as error:
        _LOGGER.warning("%s is not served: %s", each.field, error)
        notes.append(f"{each.field} is left out: its table's Delta log cannot be read now.")
        return None
    return _with_columns(each, types[0], held, notes)


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
    """Return the columns of each view with their types; none where there is no such view."""
    views: dict[Place, list[str]] = defaultdict(list)
    for place, view in wanted:
        views[place].append(view)
    found: dict[tuple[Place, str], dict[str, str]] = defaultdict(dict)
    for place, names in views.items():
        with place.endpoint.errors("look for the indexes' views"):
            rows = place.endpoint.client().query(
                _COLUMNS, parameters={"database": place.database, "views": names}
            )
        for view, name, type_ in rows.result_rows:
            found[place, view][name] = type_
    return found


def _with_columns(
    each: Served, types: Mapping[str, str], binary: Collection[str], notes: list[str]
) -> Served:
    shown: dict[str, Column] = {}
    hidden: list[Column] = []
    for name, type_ in types.items():
        if name in HIDDEN:
            continue
        made = _column(name, type_, binary=name in binary)
        if made is None or made.field == TIMESTAMP_FIELD:
            notes.append(f"{each.field} is without its column {name!r}: {_why(made, type_)}.")
            hidden += [made] if made else []
            continue
        _refuse_second(each, shown, made)
        shown[made.field] = made
    return replace(each, columns=tuple(shown.values()), hidden=tuple(hidden))


def _column(name: str, type_: str, *, binary: bool) -> Column | None:
    try:
        return column(name, parsed(type_), binary=binary)
    except TypeTextError:
        return None


def _why(made: Column | None, type_: str) -> str:
    if made is None:
        return f"GraphQL has no type for {type_}"
    return "the name is that of a change's timestamp, which is no column"


def _refuse_second(each: Served, shown: Mapping[str, Column], made: Column) -> None:
    other = shown.get(made.field)
    if other is None and made.field not in _BEFORE_NAMES:
        return
    taken = repr(other.name) if other else f"the condition {made.field}"
    raise ConfigError(
        f"Index {each.source.name}/{each.index.shown}: the column {made.name!r} and {taken} would "
        f"both be {made.field!r} in GraphQL; rename one, or leave it out with columns=[...]."
    )


def _catalog(found: Sequence[Served], unbuilt: Sequence[str], notes: Sequence[str]) -> Catalog:
    plain = [each for each in found if each.kind != CHANGES]
    changes = [each for each in found if each.kind == CHANGES]
    queries, subscribed = _once(plain), _once(changes)
    _refuse_namesakes(queries, subscribed)
    return Catalog(
        queries={**subscribed, **queries},
        changes=subscribed,
        unbuilt=frozenset(unbuilt) - {*queries, *subscribed},
        notes=tuple(notes),
    )


def _once(found: Sequence[Served]) -> dict[str, Served]:
    held: dict[str, Served] = {}
    for each in found:
        other = held.setdefault(each.field, each)
        if other is not each:
            raise _namesakes(each, other)
    return held


def _refuse_namesakes(queries: Mapping[str, Served], changes: Mapping[str, Served]) -> None:
    """Only the changes of a table share a field with its mirror."""
    for name, each in changes.items():
        other = queries.get(name)
        own = other is not None and other.source.name == each.source.name
        if other is not None and not (own and each.index.shown == CHANGES):
            raise _namesakes(each, other)


def _namesakes(one: Served, other: Served) -> ConfigError:
    return ConfigError(
        f"Indexes {other.source.name}/{other.index.shown} and {one.source.name}/{one.index.shown} "
        f"would both be {one.field!r} in GraphQL; rename one of them."
    )
