"""What a kind of index may override; the defaults are a mirror's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from iscp_dagster.clickhouse.connect.quoting import ident
from iscp_dagster.clickhouse.kinds.searching import Neighbourhood, Search
from iscp_dagster.model.declared.images import Transitions
from iscp_dagster.model.declared.schema import DELETED, VERSION, DeltaField, DeltaType
from iscp_dagster.model.declared.tables import Index, SourceTable

if TYPE_CHECKING:
    import pyarrow as pa

    from iscp_dagster.clickhouse.types.stored import Stored

EXACT_FINAL = {"do_not_merge_across_partitions_select_final": 1}
"""Settings of a view that reads FINAL; all versions of a row lie in one partition."""


class Shape(Protocol):
    """What a kind can ask about the tables that its view reads."""

    @property
    def source(self) -> SourceTable: ...
    @property
    def columns(self) -> tuple[str, ...]:
        """The user's columns, in the source's order."""
        ...

    @property
    def final(self) -> str:
        """The FROM expression that gives the last row of each key, and none of deleted keys."""
        ...

    @property
    def every(self) -> str:
        """The FROM expression that gives all rows, also those replaced and deleted since."""
        ...

    def column_types(self) -> Mapping[str, str]:
        """Every stored column's ClickHouse type."""
        ...


class Rows(Protocol):
    """What a kind can ask about the rows that are about to be inserted."""

    @property
    def name(self) -> str:
        """The index's name, such as `docs.symbols/mirror`."""
        ...

    @property
    def keys(self) -> tuple[str, ...]: ...
    @property
    def deleted(self) -> str:
        """The column that marks deleted rows."""
        ...

    @property
    def stored(self) -> Mapping[str, Stored]:
        """How the columns are kept."""
        ...


@dataclass(frozen=True)
class IndexKind(Index):
    """An index that ClickHouse keeps. A kind overrides what differs from a mirror.

    Instances are sent to Spark's executors, where `fitted` runs: install the module there too.
    """

    @property
    def transitions(self) -> Transitions | None:
        """What its image rows are read of; None: it keeps none."""
        return None

    def kept(self, source: SourceTable, field: DeltaField) -> DeltaType:
        """Return the Delta type that a column is kept as. Raises SchemaError if it cannot be."""
        del source
        return field.type

    def check_stored(
        self, source: SourceTable, field: DeltaField, stored: Stored, asked: str | None
    ) -> None:
        """Raise SchemaError if the kind cannot use a column as `stored`; messages show `asked`."""

    def skip_indexes(self) -> Sequence[str]:
        """Return the INDEX clauses of the table."""
        return ()

    def system_columns(self) -> Mapping[str, str]:
        """Return columns that the table has for the kind alone, with their types; views hide them.

        Rows from before there was such a column have its type's default there.
        """
        return {}

    def table_settings(self) -> Mapping[str, int]:
        """Return MergeTree settings of new tables; those made before keep theirs."""
        return {}

    def described(self, fields: Sequence[DeltaField]) -> Mapping[str, Any]:
        """Return what else determines the tables, given all their columns."""
        del fields
        return {}

    def sorted_after(self) -> Sequence[str]:
        """Return the columns that tell rows of one key apart; none: the last one replaces them."""
        return ()

    def live(self) -> str:
        """Return the condition of a GROUP BY the key that holds where a key has a row."""
        return f"argMax({ident(DELETED)}, {ident(VERSION)}) = 0"

    def select(self, shape: Shape, selected: Sequence[str]) -> str:
        """Return the SELECT of the index's view."""
        columns = ", ".join(map(ident, selected))
        return f"SELECT {columns} FROM {shape.final} SETTINGS {settings(EXACT_FINAL)}"

    def view_beside(self, end: str, shape: Shape, selected: str) -> str:
        """Return the SELECT of the view that ends in `end`, one of `beside`.

        It shows the columns `selected`, a SELECT list.
        """
        raise NotImplementedError(f"{type(self).__name__} has no view {end!r}.")

    def rows_as_of(self, shape: Shape, version: str) -> str:
        """Return the SELECT of the rows that image rows leave as of `version`, in SQL."""
        raise NotImplementedError(f"{type(self).__name__} keeps no images.")

    def searches(self) -> Mapping[str, Search]:
        """Return what its query field in GraphQL takes beside `where`, by the argument's name."""
        return {}

    def neighbourhood(self) -> Neighbourhood | None:
        """Return where its query field finds neighbours of a vector; None: it pages over rows."""
        return None

    def note(self) -> str:
        """Return what readers of the index views should know, for the comments of these; or ''."""
        return ""

    def fitted(self, target: Rows, rows: pa.Table) -> pa.Table:
        """Return the rows as the indexes take them. Raises SchemaError naming a row they refuse."""
        del target
        return rows


def settings(values: Mapping[str, int]) -> str:
    """Format the list of a SETTINGS clause."""
    return ", ".join(f"{name} = {value}" for name, value in values.items())
