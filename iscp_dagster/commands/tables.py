"""The declared tables that a command's arguments name."""

from __future__ import annotations

from collections.abc import Sequence

from iscp_dagster.core.errors import ConfigError
from iscp_dagster.core.tables import SourceTable


def declared() -> list[SourceTable]:
    """Every table of the location."""
    import assets
    from iscp_dagster.location.discovery import declared_tables

    return declared_tables(assets)


def chosen(names: Sequence[str]) -> list[tuple[SourceTable, list[str] | None]]:
    """Tables with the indexes named, `table` or `table/index`; None: all its indexes."""
    tables = {table.name: table for table in declared()}
    if not names:
        return [(table, None) for table in tables.values() if table.indexes]
    wanted: dict[str, list[str] | None] = {}
    for name in names:
        table, slash, index = name.partition("/")
        if table not in tables:
            known = ", ".join(tables) or "none"
            raise ConfigError(f"No table {table!r} is declared; there are: {known}.")
        if not slash:
            wanted[table] = None
        elif (named := wanted.setdefault(table, [])) is not None:
            named.append(tables[table].index(index).name)
    return [(tables[table], indexes) for table, indexes in wanted.items()]
