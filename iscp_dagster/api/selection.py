"""The declared tables and indexes that arguments name."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.jobs import JobID


def select_indexes(
    names: Sequence[str], tables: Sequence[SourceTable], registered: Collection[JobID] = ()
) -> list[tuple[SourceTable, list[str] | None]]:
    """The named indexes by table; None means all indexes of the table.

    A name is `index`, `table/index` or `database.table/index`, or `database.table` for all its
    indexes; the name of a sharded index selects all its shards. An index may be declared or only
    `registered`. Raises ConfigError for a name that matches no index.
    """
    candidates = [(table, _collect_names(table, registered)) for table in tables]
    if not names:
        return [(table, None) for table, indexes in candidates if indexes]
    for name in names:
        if not any(
            _is_match(name, table, aliases)
            for table, indexes in candidates
            for aliases in indexes.values()
        ):
            known_names = sorted(
                f"{table.name}/{index}" for table, indexes in candidates for index in indexes
            )
            listed = ", ".join(known_names) or "none"
            raise ConfigError(f"No index {name!r} is declared or registered; there are: {listed}.")

    def pick_named(table: SourceTable, indexes: dict[str, frozenset[str]]) -> list[str]:
        return [
            index
            for index, aliases in indexes.items()
            if any(_is_match(name, table, aliases) for name in names)
        ]

    selected = [(table, pick_named(table, indexes)) for table, indexes in candidates]
    return [(table, indexes) for table, indexes in selected if indexes]


def _collect_names(table: SourceTable, registered: Collection[JobID]) -> dict[str, frozenset[str]]:
    """The table's indexes, each with its aliases."""
    registered_names = [job.job for job in registered if f"{job.db}.{job.table}" == table.name]
    declared = {index.name: frozenset({index.name, index.shown}) for index in table.indexes}
    return declared | {
        name: frozenset({name}) for name in sorted(registered_names) if name not in declared
    }


def _is_match(name: str, table: SourceTable, aliases: Collection[str]) -> bool:
    table_name, _, index = name.rpartition("/")
    is_table = not table_name and index == table.name
    return is_table or (table_name in {"", table.table, table.name} and index in aliases)
