"""The types that a declaration asks for, before there is a source to hold against them."""

from __future__ import annotations

from collections.abc import Iterator

from iscp_dagster.clickhouse.types.cells import CELLS
from iscp_dagster.clickhouse.types.stored import OPEN
from iscp_dagster.clickhouse.types.typetext import GEO, ChType, TypeTextError, parsed
from iscp_dagster.model.declared.tables import Index, SourceTable
from iscp_dagster.model.errors import ConfigError

AROUND = ("Array", "Map", "Tuple", "Nested", "LowCardinality", "Nullable")
"""Types that are made of others."""
KNOWN = frozenset(
    [*OPEN, *GEO, *AROUND]
    + [name for cells in CELLS.values() for cell in cells for name in cell.names]
)


def check_types(source: SourceTable, index: Index) -> None:
    """Refuse a text as which no column of any type could be kept. Raises ConfigError."""
    for column, asked in index.types.items():
        try:
            unknown = [name for name in _names(parsed(asked)) if name not in KNOWN]
            wrong = f"nothing is kept as {unknown[0]!r}" if unknown else ""
        except TypeTextError as error:
            wrong = str(error)
        if wrong:
            raise ConfigError(
                f"Index {source.name}/{index.name}: types has {asked!r} for the column {column!r}, "
                f"and {wrong}. Write a type of docs/types.md."
            )


def _names(type_: ChType) -> Iterator[str]:
    """All in it but a Variant's members, which may be any."""
    yield type_.name
    for part in () if type_.name in OPEN else type_.parts:
        yield from _names(part)
