"""Checks the types in a declaration before its source is known."""

from __future__ import annotations

from collections.abc import Iterator

from iscp_dagster.clickhouse.types.cells import CELLS
from iscp_dagster.clickhouse.types.nulls import check_null_rules
from iscp_dagster.clickhouse.types.storage import DYNAMIC_TYPES
from iscp_dagster.clickhouse.types.type_parser import GEO, ClickHouseType, TypeTextError, parse_type
from iscp_dagster.model.declared.tables import Index, SourceTable
from iscp_dagster.model.errors import ConfigError

AROUND = ("Array", "Map", "Tuple", "Nested", "LowCardinality", "Nullable")
"""Types that contain other types."""
KNOWN_TYPES = frozenset(
    [*DYNAMIC_TYPES, *GEO, *AROUND]
    + [name for cells in CELLS.values() for cell in cells for name in cell.names]
)


def check_types(source: SourceTable, index: Index) -> None:
    """Reject a type that no column could be kept as, and unknown `nulls`. Raises ConfigError."""
    check_null_rules(source, index)
    for column, requested in index.types.items():
        try:
            unknown = [
                name for name in _list_type_names(parse_type(requested)) if name not in KNOWN_TYPES
            ]
            problem = f"no column can be kept as {unknown[0]!r}" if unknown else ""
        except TypeTextError as error:
            problem = str(error)
        if problem:
            raise ConfigError(
                f"Index {source.name}/{index.name}: types has {requested!r} for the column "
                f"{column!r}: {problem}. Use a type from docs/types.md."
            )


def _list_type_names(type_: ClickHouseType) -> Iterator[str]:
    """Yield every type's name in it, except a Variant's members, which may be any type."""
    yield type_.name
    for part in () if type_.name in DYNAMIC_TYPES else type_.parts:
        yield from _list_type_names(part)
