"""The declared tables that a command's arguments name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from iscp_dagster.core.errors import ConfigError
from iscp_dagster.core.tables import SourceTable


def declared(environ: Mapping[str, str]) -> list[SourceTable]:
    """Every table of the location, for the ClickHouse servers that the environment names."""
    from iscp_dagster.engine.environment import shards_of
    from iscp_dagster.location.discovery import declared_tables

    return declared_tables("assets", shards_of(environ))


def chosen(
    names: Sequence[str], tables: Sequence[SourceTable]
) -> list[tuple[SourceTable, list[str] | None]]:
    """The indexes that are named, by table; None: all of a table's.

    A name is `index`, `table/index` or `database.table/index`, or `database.table` for all its
    indexes; all shards of an index by its own. Raises ConfigError for one that names nothing.
    """
    if not names:
        return [(table, None) for table in tables if table.indexes]
    found = [(name, pairs) for name in names for pairs in [list(_named(name, tables))]]
    for name, pairs in found:
        if not pairs:
            known = ", ".join(f"{t.name}/{i.name}" for t in tables for i in t.indexes) or "none"
            raise ConfigError(f"No index {name!r} is declared; there are: {known}.")
    wanted = {pair: None for _, pairs in found for pair in pairs}
    picked = [(t, [i.name for i in t.indexes if (t.name, i.name) in wanted]) for t in tables]
    return [(table, indexes) for table, indexes in picked if indexes]


def _named(name: str, tables: Sequence[SourceTable]) -> Iterator[tuple[str, str]]:
    place, _, index = name.rpartition("/")
    for table in tables:
        for each in table.indexes:
            whole = not place and index == table.name
            here = place in {"", table.table, table.name} and index in {each.name, each.shown}
            if whole or here:
                yield table.name, each.name
