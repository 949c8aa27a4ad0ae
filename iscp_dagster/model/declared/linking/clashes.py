"""Names and places that two declarations of a location would both have."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Sequence

from iscp_dagster.model.declared.names import view_name
from iscp_dagster.model.declared.tables import SourceTable, format_unique_view_name
from iscp_dagster.model.errors import ConfigError


class ClashError(ConfigError):
    """Two declarations would share a name; `beside` is the table that has it."""

    code = 10_130

    def __init__(self, message: str, beside: str = "") -> None:
        super().__init__(message)
        self.beside = beside


Owner = tuple[str, SourceTable, str]
"""A name, the table that would have it, and what of the table, as messages name it."""


def check_declared_once(tables: Sequence[SourceTable], databases: Sequence[str] = ()) -> None:
    """Reject tables, index views and names in Dagster that two declarations would both have.

    `databases` are the names that the deployment gives its shards' databases; see
    `qualify_view_name`.
    Raises ClashError.
    """
    _refuse_one_name(tables)
    _refuse_one_path(tables)
    _refuse_shared("index view", _list_index_views(tables, databases))
    _refuse_shared("asset", _list_assets(tables))
    # Dagster's names of jobs, ops, checks and partitions definitions have no dot; each sort has its
    # own prefix.
    for middle in ("_", "__"):
        names = [(f"{table.database}{middle}{table.table}", table, table.name) for table in tables]
        _refuse_shared("name in Dagster", names)


def _list_index_views(tables: Iterable[SourceTable], databases: Sequence[str]) -> Iterator[Owner]:
    for table in tables:
        for index in table.indexes:
            yield (
                format_unique_view_name(table, index, databases),
                table,
                f"{table.name}/{index.name}",
            )


def _list_assets(tables: Sequence[SourceTable]) -> Iterator[Owner]:
    for table in tables:
        yield table.name, table, f"the table {table.name}"
        for consumer in table.consumers:
            name = f"{table.database}.{view_name(table.table, consumer.name)}"
            yield name, table, f"{table.name}/{consumer.name}"


def _refuse_shared(what: str, owners: Iterable[Owner]) -> None:
    by_name: dict[str, tuple[SourceTable, str]] = {}
    for name, table, label in owners:
        if name in by_name:
            other, other_label = by_name[name]
            raise ClashError(
                f"The location: {other_label} and {label} would both have the {what} {name!r}; "
                "rename one of them.",
                other.name,
            )
        by_name[name] = table, label


def _refuse_one_name(tables: Sequence[SourceTable]) -> None:
    names: set[str] = set()
    for table in tables:
        if table.name in names:
            raise ClashError(
                f"The location: source table {table.name!r} is declared twice; give each its own "
                "name.",
                table.name,
            )
        names.add(table.name)


def _refuse_one_path(tables: Sequence[SourceTable]) -> None:
    """Reject two tables with one path: jobs are identified by the Delta table's id.

    An alias of a path is found later, by that id.
    """
    by_path: dict[str, str] = {}
    for table in tables:
        path = posixpath.normpath((table.path or "").removeprefix("file:"))
        other = by_path.setdefault(path, table.name) if table.path else table.name
        if other != table.name:
            raise ClashError(
                f"The location: {other!r} and {table.name!r} are both declared at the path "
                f"{table.path!r}; declare the Delta table once, with the indexes of both.",
                other,
            )
