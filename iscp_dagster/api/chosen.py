"""The declared tables and indexes that arguments name."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.jobs import JobID


def chosen(
    names: Sequence[str], tables: Sequence[SourceTable], registered: Collection[JobID] = ()
) -> list[tuple[SourceTable, list[str] | None]]:
    """The named indexes by table; None means all indexes of the table.

    A name is `index`, `table/index` or `database.table/index`, or `database.table` for all its
    indexes; the name of a sharded index selects all its shards. An index may be declared or only
    `registered`. Raises ConfigError for a name that matches no index.
    """
    called = [(table, _called(table, registered)) for table in tables]
    if not names:
        return [(table, None) for table, indexes in called if indexes]
    for name in names:
        if not any(_names(name, table, each) for table, its in called for each in its.values()):
            known = sorted(f"{table.name}/{each}" for table, its in called for each in its)
            there = ", ".join(known) or "none"
            raise ConfigError(f"No index {name!r} is declared or registered; there are: {there}.")

    def named(table: SourceTable, indexes: dict[str, frozenset[str]]) -> list[str]:
        return [each for each, its in indexes.items() if any(_names(n, table, its) for n in names)]

    picked = [(table, named(table, indexes)) for table, indexes in called]
    return [(table, indexes) for table, indexes in picked if indexes]


def _called(table: SourceTable, registered: Collection[JobID]) -> dict[str, frozenset[str]]:
    """The table's indexes, each with the names it goes by."""
    held = [each.job for each in registered if f"{each.db}.{each.table}" == table.name]
    own = {each.name: frozenset({each.name, each.shown}) for each in table.indexes}
    return own | {name: frozenset({name}) for name in sorted(held) if name not in own}


def _names(name: str, table: SourceTable, called: Collection[str]) -> bool:
    place, _, index = name.rpartition("/")
    whole = not place and index == table.name
    return whole or (place in {"", table.table, table.name} and index in called)
