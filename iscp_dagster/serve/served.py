"""One index as it is served; of two that would have one name in GraphQL, the first is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.clickhouse.kinds.kind import IndexKind
from iscp_dagster.clickhouse.kinds.searching import Search
from iscp_dagster.clickhouse.types.typetext import parsed
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.serve.columns import Column, column
from iscp_dagster.serve.scalars import SCALARS

MIRROR, CHANGES = "mirror", "changes"
CONDITIONS = frozenset({"_and", "_or", "_not"})
"""What a `where` has beside the columns."""
ARGUMENTS = frozenset({"where", "order_by", "limit", "offset"})
"""The arguments of every query field that pages over rows."""
NAMES_FIELD = "_tables"
"""The field that lists the others."""
COMPARISON = "_comparison_exp"
BUILT_IN = frozenset(
    {
        *("Query", "Subscription", "order_by", "operation", NAMES_FIELD),
        *SCALARS,
        *(f"{name}{COMPARISON}" for name in (*SCALARS, "null")),
    }
)
"""Names that no table can have."""


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
    index: IndexKind
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
    def searches(self) -> dict[str, tuple[Search, Column]]:
        """What its kind of index can be asked beside, by argument, with the argument as a column.

        An argument that is named like one that every index has is left out, as is one of a type
        that GraphQL does not have.
        """
        offered = self.index.searches()
        found = {name: column(name, parsed(each.type)) for name, each in offered.items()}
        return {
            name: (offered[name], each)
            for name, each in found.items()
            if each is not None and name not in ARGUMENTS
        }

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


def choose_served(candidates: Iterable[Served]) -> tuple[list[Served], list[str]]:
    """Return the indexes whose names are free, and a message about each that is left out.

    The first in order of declaration has a name. A table's mirror and its changes share one.
    """
    owners: dict[str, str] = {}
    chosen, left_out = [], []
    for served in candidates:
        problem = _problem(served, owners)
        if problem:
            left_out.append(problem)
            continue
        owners |= dict.fromkeys(_names(served), _owner(served))
        chosen.append(served)
    return chosen, left_out


def choose_columns(columns: Sequence[Column], where: str) -> tuple[list[Column], list[str]]:
    """Return the columns whose names are free, and a message about each that is left out."""
    shown: dict[str, Column] = {}
    left_out = []
    for each in columns:
        other = shown.get(each.field)
        if other is None and each.field not in CONDITIONS:
            shown[each.field] = each
            continue
        taken = f"the column {other.name!r}" if other else "a condition"
        left_out.append(
            f"{where} is without its column {each.name!r}: its name in GraphQL would be "
            f"{each.field!r}, which {taken} has. Rename one of them to see both."
        )
    return list(shown.values()), left_out


def _problem(served: Served, owners: dict[str, str]) -> str:
    for name in _names(served):
        other = owners.get(name, _owner(served))
        if name in BUILT_IN or other != _owner(served):
            of = "GraphQL's own" if name in BUILT_IN else f"of {other}"
            whose = f"{served.source.name}/{served.index.shown}"
            return (
                f"{whose} is left out: its name in GraphQL would be {name!r}, which is {of}. "
                "Rename the table or the index to see both."
            )
    return ""


def _names(served: Served) -> list[str]:
    """The names of its field and types."""
    suffixes = ["", "_bool_exp", "_order_by"]
    if served.index.of_images:
        suffixes += ["_change", "_data", "_data_bool_exp"]
    return [f"{served.field}{suffix}" for suffix in suffixes]


def _owner(served: Served) -> str:
    is_table = served.kind in {MIRROR, CHANGES} and served.index.shown == served.kind
    return served.source.name if is_table else f"{served.source.name}/{served.index.shown}"
