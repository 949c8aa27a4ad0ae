"""What a kind of index may have otherwise than a mirror."""

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
"""What a view that reads FINAL sets: a row's versions lie in one partition."""


class Shape(Protocol):
    """What a kind is told of the tables that it has a view over."""

    @property
    def source(self) -> SourceTable: ...
    @property
    def columns(self) -> tuple[str, ...]:
        """The user's columns, in the source's order."""
        ...

    @property
    def final(self) -> str:
        """What to select from: of each key the last row."""
        ...

    def column_types(self) -> dict[str, str]:
        """Every stored column's ClickHouse type."""
        ...


class Rows(Protocol):
    """What a kind is told of the rows that are about to be inserted."""

    @property
    def name(self) -> str:
        """Which index: `docs.symbols/mirror`."""
        ...

    @property
    def keys(self) -> tuple[str, ...]: ...
    @property
    def deleted(self) -> str:
        """The column that says whether a row is gone."""
        ...


@dataclass(frozen=True)
class IndexKind(Index):
    """An index that ClickHouse keeps. A kind overrides what it has otherwise than a mirror.

    Instances travel to Spark's executors, where `fitted` runs: its module is to be there too.
    """

    def kept(self, source: SourceTable, field: DeltaField) -> DeltaType:
        """The type that a column's values are kept by. Raises SchemaError if one cannot be."""
        del source
        return field.type

    def check_stored(
        self, source: SourceTable, field: DeltaField, stored: Stored, asked: str | None
    ) -> None:
        """Raises SchemaError for a column that the kind needs otherwise than it was `asked` for."""

    def skip_indexes(self) -> Sequence[str]:
        """The INDEX clauses of the table."""
        return ()

    def view_beside(self, shape: Shape, selected: str) -> str:
        """The SELECT of the view that `beside` names, of the columns `selected`; empty: none."""
        del shape, selected
        return ""

    def fitted(self, target: Rows, rows: pa.Table) -> pa.Table:
        """Rows as the table's indexes take them. Raises SchemaError naming a row that cannot be."""
        del target
        return rows


def settings(values: Mapping[str, int]) -> str:
    """The list of a SETTINGS clause."""
    return ", ".join(f"{name} = {value}" for name, value in values.items())
