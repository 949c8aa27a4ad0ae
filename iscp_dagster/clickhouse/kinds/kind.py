"""What a kind of index may override; the defaults are a mirror's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from iscp_dagster.model.declared.schema import DeltaField, DeltaType
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
        """The FROM expression that gives the last row of each key."""
        ...

    def column_types(self) -> dict[str, str]:
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


@dataclass(frozen=True)
class IndexKind(Index):
    """An index that ClickHouse keeps. A kind overrides what differs from a mirror.

    Instances are sent to Spark's executors, where `fitted` runs: install the module there too.
    """

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

    def view_beside(self, shape: Shape, selected: str) -> str:
        """Return the SELECT of the view `beside`, with the columns `selected`; empty: no view."""
        del shape, selected
        return ""

    def fitted(self, target: Rows, rows: pa.Table) -> pa.Table:
        """Return the rows as the indexes take them. Raises SchemaError naming a row they refuse."""
        del target
        return rows


def settings(values: Mapping[str, int]) -> str:
    """Format the list of a SETTINGS clause."""
    return ", ".join(f"{name} = {value}" for name, value in values.items())
