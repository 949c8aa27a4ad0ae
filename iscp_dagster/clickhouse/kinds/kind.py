"""What a kind of index may override; the defaults are a mirror's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from iscp_dagster.clickhouse.connect.quoting import quote_identifier
from iscp_dagster.clickhouse.kinds.searching import Neighbourhood, Search
from iscp_dagster.model.declared.images import ImageSource
from iscp_dagster.model.declared.schema import DELETED, VERSION, DeltaField, DeltaType
from iscp_dagster.model.declared.tables import Index, SourceTable

if TYPE_CHECKING:
    import pyarrow as pa

    from iscp_dagster.clickhouse.types.storage import StoredType

EXACT_FINAL = {"do_not_merge_across_partitions_select_final": 1}
"""Settings of a view that reads FINAL; all versions of a row lie in one partition."""


class TableShape(Protocol):
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
    def all_rows(self) -> str:
        """The FROM expression that gives all rows, also those replaced and deleted since."""
        ...

    def get_column_types(self) -> Mapping[str, str]:
        """Every stored column's ClickHouse type."""
        ...


class InsertTarget(Protocol):
    """What a kind can ask about the rows that are about to be inserted."""

    @property
    def name(self) -> str:
        """The index's name, such as `docs.symbols/mirror`."""
        ...

    @property
    def keys(self) -> tuple[str, ...]: ...
    @property
    def deleted_column(self) -> str:
        """The column that marks deleted rows."""
        ...

    @property
    def stored_types(self) -> Mapping[str, StoredType]:
        """How the columns are kept."""
        ...


@dataclass(frozen=True)
class IndexKind(Index):
    """An index that ClickHouse keeps. A kind overrides what differs from a mirror.

    Instances are sent to Spark's executors, where `fit_rows` runs: install the module there too.
    """

    shares_skip_indexes: ClassVar[bool] = True
    """Whether its INDEX clauses serve tenants that share a partition."""

    @property
    def image_source(self) -> ImageSource | None:
        """What its image rows are read from; None: it keeps none."""
        return None

    def choose_delta_type(self, source: SourceTable, field: DeltaField) -> DeltaType:
        """Return the Delta type that a column is kept as. Raises SchemaError if it cannot be."""
        del source
        return field.type

    def check_stored(
        self, source: SourceTable, field: DeltaField, stored: StoredType, requested: str | None
    ) -> None:
        """Raise SchemaError if the kind cannot use a column as `stored`; it shows `requested`."""

    def list_skip_indexes(self) -> Sequence[str]:
        """Return the INDEX clauses of the table."""
        return ()

    def list_system_columns(self) -> Mapping[str, str]:
        """Return the columns that only this kind needs, with their types; views hide them.

        Rows older than such a column have its type's default there.
        """
        return {}

    def get_table_settings(self) -> Mapping[str, int]:
        """Return MergeTree settings of new tables; existing tables keep theirs."""
        return {}

    def extend_definition(self, fields: Sequence[DeltaField]) -> Mapping[str, Any]:
        """Return what else determines the tables, given all their columns."""
        del fields
        return {}

    def list_extra_sort_columns(self) -> Sequence[str]:
        """Return the columns that distinguish rows of one key; none: the last row replaces them."""
        return ()

    def render_live_condition(self) -> str:
        """Return the HAVING condition, grouped by the key, that is true if the key has a row."""
        return f"argMax({quote_identifier(DELETED)}, {quote_identifier(VERSION)}) = 0"

    def render_view_select(self, shape: TableShape, selected: Sequence[str]) -> str:
        """Return the SELECT of the index's view."""
        columns = ", ".join(map(quote_identifier, selected))
        return f"SELECT {columns} FROM {shape.final} SETTINGS {render_settings(EXACT_FINAL)}"

    def render_suffixed_view(self, suffix: str, shape: TableShape, selected: str) -> str:
        """Return the SELECT of the view that ends in `suffix`, one of `view_suffixes`.

        It shows the columns `selected`, a SELECT list.
        """
        raise NotImplementedError(f"{type(self).__name__} has no view {suffix!r}.")

    def render_rows_as_of(self, shape: TableShape, version: str) -> str:
        """Return the SELECT of the rows that image rows leave as of `version`, in SQL."""
        raise NotImplementedError(f"{type(self).__name__} keeps no images.")

    def list_searches(self) -> Mapping[str, Search]:
        """Return what its query field in GraphQL takes beside `where`, by the argument's name."""
        return {}

    def get_neighbourhood(self) -> Neighbourhood | None:
        """Return where its query field finds a vector's neighbours; None: it pages over rows."""
        return None

    def get_note(self) -> str:
        """Return a note to readers of the index views, for the views' comments; or ''."""
        return ""

    def fit_rows(self, target: InsertTarget, rows: pa.Table) -> pa.Table:
        """Return the rows as the indexes take them. Raises SchemaError naming a row they refuse."""
        del target
        return rows


def render_settings(values: Mapping[str, int]) -> str:
    """Format the list of a SETTINGS clause."""
    return ", ".join(f"{name} = {value}" for name, value in values.items())
