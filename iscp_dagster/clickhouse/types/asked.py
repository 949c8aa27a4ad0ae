"""Checks the types that a declaration asks for, before its source is known."""

from __future__ import annotations

from collections.abc import Iterator

from iscp_dagster.clickhouse.types.cells import CELLS
from iscp_dagster.clickhouse.types.nulls import check_nulls
from iscp_dagster.clickhouse.types.stored import OPEN
from iscp_dagster.clickhouse.types.typetext import GEO, ChType, TypeTextError, parsed
from iscp_dagster.model.declared.tables import Index, SourceTable
from iscp_dagster.model.errors import ConfigError

AROUND = ("Array", "Map", "Tuple", "Nested", "LowCardinality", "Nullable")
"""Types that contain other types."""
KNOWN = frozenset(
    [*OPEN, *GEO, *AROUND]
    + [name for cells in CELLS.values() for cell in cells for name in cell.names]
)


def check_types(source: SourceTable, index: Index) -> None:
    """Reject a type that no column could be kept as, and unknown `nulls`. Raises ConfigError."""
    check_nulls(source, index)
    for column, asked in index.types.items():
        try:
            unknown = [name for name in _names(parsed(asked)) if name not in KNOWN]
            wrong = f"no column can be kept as {unknown[0]!r}" if unknown else ""
        except TypeTextError as error:
            wrong = str(error)
        if wrong:
            raise ConfigError(
                f"Index {source.name}/{index.name}: types has {asked!r} for the column {column!r}: "
                f"{wrong}. Use a type from docs/types.md."
            )


def _names(type_: ChType) -> Iterator[str]:
    """Yield every type's name in it, except a Variant's members, which may be any type."""
    yield type_.name
    for part in () if type_.name in OPEN else type_.parts:
        yield from _names(part)
