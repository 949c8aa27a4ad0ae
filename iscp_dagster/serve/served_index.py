"""One index as it is served; of two with one name in GraphQL, only the first is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.kinds.kind import IndexKind
from iscp_dagster.clickhouse.kinds.searching import Search
from iscp_dagster.clickhouse.types.type_parser import parse_type
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.serve.columns import Column, build_column
from iscp_dagster.serve.scalars import SCALARS

MIRROR, CHANGES = "mirror", "changes"
LOGICAL_OPERATORS = frozenset({"_and", "_or", "_not"})
"""What a `where` has beside the columns."""
PAGE_ARGUMENTS = frozenset({"where", "order_by", "limit", "offset"})
"""The arguments of every query field that pages over rows."""
NAMES_FIELD = "_tables"
"""The field that lists the others."""
COMPARISON_SUFFIX = "_comparison_exp"
RESERVED_NAMES = frozenset(
    {
        *("Query", "Subscription", "order_by", "operation", NAMES_FIELD),
        *SCALARS,
        *(f"{name}{COMPARISON_SUFFIX}" for name in (*SCALARS, "null")),
    }
)
"""Names that no table can have."""


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Where a view, or one shard of it, lies."""

    endpoint: ClickHouseEndpoint
    database: str


@dataclass(frozen=True, kw_only=True)
class ServedIndex:
    """One index as it is served: `field` is its name in the schema."""

    field: str
    source: SourceTable
    index: IndexKind
    """The index; of a sharded one, its first shard."""
    shards: tuple[Shard, ...]
    """Every shard."""
    view: str
    columns: tuple[Column, ...]
    hidden: tuple[Column, ...] = ()
    """Key and tenant columns for which the schema has no type, or no name."""

    @cached_property
    def by_field(self) -> dict[str, Column]:
        return {column.field: column for column in self.columns}

    @property
    def tenant(self) -> Column | None:
        """The column that names the tenant; None: the table's one tenant is `default`."""
        return self._find_column(self.source.tenant) if self.source.tenant else None

    @cached_property
    def searches(self) -> dict[str, tuple[Search, Column]]:
        """The searches of its kind of index, by argument, with the argument as a column.

        An argument with the name of one that every index has is left out, as is one of a type that
        GraphQL does not have.
        """
        searches = self.index.list_searches()
        columns = {
            name: build_column(name, parse_type(search.type)) for name, search in searches.items()
        }
        return {
            name: (searches[name], column)
            for name, column in columns.items()
            if column is not None and name not in PAGE_ARGUMENTS
        }

    @cached_property
    def identity_columns(self) -> tuple[Column, ...]:
        """Tenant and key columns, the last in every order."""
        names = dict.fromkeys((*([self.source.tenant] if self.source.tenant else []), *self.keys))
        return tuple(column for name in names if (column := self._find_column(name)))

    @property
    def keys(self) -> tuple[str, ...]:
        return self.source.keys

    @property
    def kind(self) -> str:
        return self.index.kind

    def _find_column(self, name: str) -> Column | None:
        return next(
            (column for column in (*self.columns, *self.hidden) if column.name == name), None
        )


def choose_served(candidates: Iterable[ServedIndex]) -> tuple[list[ServedIndex], list[str]]:
    """Return the indexes whose names are free, and a message about each that is left out.

    The first in order of declaration gets the name. A table's mirror and its changes share one.
    """
    owners: dict[str, str] = {}
    indexes, omissions = [], []
    for served in candidates:
        problem = _find_clash(served, owners)
        if problem:
            omissions.append(problem)
            continue
        owners |= dict.fromkeys(_list_names(served), _get_owner(served))
        indexes.append(served)
    return indexes, omissions


def choose_columns(columns: Sequence[Column], index_field: str) -> tuple[list[Column], list[str]]:
    """Return the columns whose names are free, and a message about each that is left out."""
    by_field: dict[str, Column] = {}
    omissions = []
    for column in columns:
        namesake = by_field.get(column.field)
        if namesake is None and column.field not in LOGICAL_OPERATORS:
            by_field[column.field] = column
            continue
        owner = f"the column {namesake.name!r}" if namesake else "a condition"
        omissions.append(
            f"{index_field} is without its column {column.name!r}: its name in GraphQL would be "
            f"{column.field!r}, which {owner} has. Rename one of them to see both."
        )
    return list(by_field.values()), omissions


def _find_clash(served: ServedIndex, owners: dict[str, str]) -> str:
    for name in _list_names(served):
        current_owner = owners.get(name, _get_owner(served))
        if name in RESERVED_NAMES or current_owner != _get_owner(served):
            usage = "reserved by GraphQL" if name in RESERVED_NAMES else f"used by {current_owner}"
            subject = f"{served.source.name}/{served.index.shown}"
            return (
                f"{subject} is left out: its name in GraphQL would be {name!r}, which is {usage}. "
                "Rename the table or the index to see both."
            )
    return ""


def _list_names(served: ServedIndex) -> list[str]:
    """The names of its field and types."""
    suffixes = ["", "_bool_exp", "_order_by"]
    if served.index.of_images:
        suffixes += ["_change", "_data", "_data_bool_exp"]
    return [f"{served.field}{suffix}" for suffix in suffixes]


def _get_owner(served: ServedIndex) -> str:
    is_table = served.kind in {MIRROR, CHANGES} and served.index.shown == served.kind
    return served.source.name if is_table else f"{served.source.name}/{served.index.shown}"
