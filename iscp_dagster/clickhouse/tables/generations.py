"""The tables of an index in every generation: which is served, which are left over.

Needs nothing from the source, which may be gone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from iscp_dagster.clickhouse.connect.barrier import shown
from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.clickhouse.connect.gate import Gate
from iscp_dagster.clickhouse.connect.portions import portions
from iscp_dagster.clickhouse.connect.quoting import ident, text
from iscp_dagster.clickhouse.tables.ddl import MADE_BY, SETTINGS, table_name
from iscp_dagster.clickhouse.tables.staging import ATTEMPT, new_attempt
from iscp_dagster.model.declared.kinds import views_beside

_TABLE = re.compile(
    rf"(?P<view>.+)__(?P<role>rows|staging)(_(?P<generation>[1-9][0-9]*))?(_{ATTEMPT})?"
)


@dataclass(frozen=True, kw_only=True)
class IndexData:
    """The tables and views of the index `view` in `database`. Every method may be repeated."""

    endpoint: Endpoint
    database: str
    view: str

    def served(self) -> int | None:
        """Return the generation that the view reads; None while there is no view."""
        query = (
            "SELECT as_select FROM system.tables "
            "WHERE database = {database:String} AND name = {view:String}"
        )
        found = self._names(query, database=self.database, view=self.view)
        return read_generation(self.view, found[0]) if found else None

    def shows(self, generation: int, column: str | None, tenants: Collection[str]) -> bool:
        """Whether a generation has rows of any of the tenants; without a `column`, any rows.

        Where its tenants are in a column of another name, it may have.
        """
        if not tenants:
            return False
        if column and column not in self._columns(table_name(self.view, "rows", generation)):
            return True
        rows = ident(self.database, table_name(self.view, "rows", generation))
        where = f"WHERE toString({ident(column)}) IN {{tenants:Array(String)}}" if column else ""
        query = f"SELECT 1 FROM {rows} {where} LIMIT 1"
        return bool(self._names(query, tenants=sorted(tenants)))

    def drop_tenants(self, column: str | None, tenants: Collection[str]) -> None:
        """Drop these tenants' rows, served and staged; without a `column`, all.

        Rejects inserts still in flight. A delayed statement of this method cannot drop rows built
        later.
        """
        for table, generation in self.tables().items():
            served = _role(table) == "rows"
            if served:
                self.gate(table, column).shut_out(tenants)
            partitions = self._partitions(table, column, tenants)
            if served and partitions:
                self._empty(table, generation, partitions)
            elif partitions:
                self._alter(table, "DROP PARTITION ID", partitions)

    def _empty(self, table: str, generation: int, partitions: Sequence[str]) -> None:
        """Replace the partitions by empty ones, from a temporary table of this call."""
        nothing = self._own(generation)
        name, source = ident(self.database, table), ident(self.database, nothing)
        self._run(f"CREATE TABLE {source} AS {name}", SETTINGS)
        try:
            self._alter(
                table,
                "REPLACE PARTITION ID",
                partitions,
                f" FROM {source}",
                {"allow_replace_partition_from_empty_source": 1, **shown(self.database, table)},
            )
        finally:
            self._drop(nothing)

    def _alter(
        self,
        table: str,
        action: str,
        partitions: Iterable[str],
        source: str = "",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        for some in portions(partitions):
            actions = ", ".join(f"{action} {text(each)}{source}" for each in some)
            self._run(f"ALTER TABLE {ident(self.database, table)} {actions}", settings)

    def gate(self, table: str, column: str | None) -> Gate:
        """Return the gate that inserts into the table must pass."""
        return Gate(endpoint=self.endpoint, database=self.database, table=table, column=column)

    def stagings(self) -> list[str]:
        """Return the staging tables, including those that dead runs left."""
        return [name for name in self.tables() if _role(name) == "staging"]

    def drop_staging(self, table: str) -> None:
        """Drop the table of an attempt; a run that still uses it no longer finds it."""
        self._drop(table)

    def drop(self) -> None:
        """Drop the views, then the tables. A delayed statement cannot drop tables created later."""
        for view in (*(f"{self.view}_{end}" for end in views_beside()), self.view):
            self._run(f"DROP VIEW IF EXISTS {ident(self.database, view)}")
        for table, generation in self.tables().items():
            if _role(table) == "rows":
                self._take_away(table, generation)
            else:
                self._drop(table, "SYNC")

    def _take_away(self, table: str, generation: int) -> None:
        """Rename the table to a name that only this call uses, then drop it.

        The RENAME also moves a temporary table; a delayed RENAME does not find that one, and fails.
        """
        ticket, used, away = (ident(self.database, self._own(generation)) for _ in range(3))
        name = ident(self.database, table)
        self._run(f"CREATE TABLE {ticket} AS {name}", SETTINGS)
        try:
            self._run(f"RENAME TABLE {ticket} TO {used}, {name} TO {away}")
        finally:
            for each in (ticket, used):
                self._run(f"DROP TABLE IF EXISTS {each}")
        self._run(f"DROP TABLE IF EXISTS {away} SYNC")

    def _own(self, generation: int) -> str:
        """Return a table name that nobody else knows; leftovers are cleaned up like staging."""
        return f"{table_name(self.view, 'staging', generation)}_{new_attempt('nobody')}"

    def drop_before(self, generation: int) -> None:
        """Drop the tables of earlier generations; queries that still read them run to the end."""
        for table, its in self.tables().items():
            if its < generation:
                self._drop(table)

    def tables(self) -> dict[str, int]:
        """Return the index's existing tables, staging first, with their generations."""
        heads = [table_name(self.view, role, 0) for role in ("staging", "rows")]
        query = (
            "SELECT name FROM system.tables WHERE database = {database:String} "
            "AND arrayExists(head -> startsWith(name, head), {heads:Array(String)})"
        )
        found = self._names(query, database=self.database, heads=heads)
        return {
            name: int(parts["generation"] or 0)
            for name in sorted(found, reverse=True)
            if (parts := _TABLE.fullmatch(name)) and parts["view"] == self.view
        }

    def _drop(self, table: str, how: str = "") -> None:
        self._run(f"DROP TABLE IF EXISTS {ident(self.database, table)} {how}".rstrip())

    def _partitions(self, table: str, column: str | None, tenants: Collection[str]) -> list[str]:
        where = f"WHERE toString({ident(column)}) IN {{tenants:Array(String)}}" if column else ""
        query = f"SELECT DISTINCT _partition_id FROM {ident(self.database, table)} {where}"
        found = (self._names(query, tenants=some) for some in portions(sorted(tenants)))
        return sorted({name for names in found for name in names})

    def _columns(self, table: str) -> list[str]:
        query = (
            "SELECT name FROM system.columns "
            "WHERE database = {database:String} AND table = {table:String}"
        )
        return self._names(query, database=self.database, table=table)

    def _names(self, query: str, **parameters: object) -> list[str]:
        with self.endpoint.errors(f"look for the data of {self.database}.{self.view}"):
            found = self.endpoint.client().query(query, parameters=parameters)
        return [str(name) for (name,) in found.result_rows]

    def _run(self, statement: str, settings: Mapping[str, Any] | None = None) -> None:
        with self.endpoint.errors(statement):
            self.endpoint.client().command(statement, settings=dict(settings or {}))


def is_table_of(view: str, name: str) -> bool:
    """Whether `name` is a table of the index with this `view`."""
    parts = _TABLE.fullmatch(name)
    return parts is not None and parts["view"] == view


def _role(table: str) -> str:
    found = _TABLE.fullmatch(table)
    return found["role"] if found else ""


def read_generation(view: str, select: str) -> int:
    """Return the generation of the rows that a view's SELECT reads."""
    head = re.escape(table_name(view, "rows", 0))
    found = re.search(rf"\b{head}(?:_([1-9][0-9]*))?\b", select)
    return int(found[1] or 0) if found else 0


def unsettled_views(endpoint: Endpoint, database: str) -> frozenset[str]:
    """Return the views to look after.

    Another version of this package made them, or there are tables of a generation not served.
    """
    query = (
        "SELECT name, as_select, comment FROM system.tables "
        "WHERE database = {database:String} AND NOT is_temporary"
    )
    with endpoint.errors(f"look for the indexes of {database}"):
        rows = endpoint.client().query(query, {"database": database}).result_rows
    selects = {name: select for name, select, _ in rows}
    old = {name for name, _, comment in rows if not _is_made_by_us(comment)}
    tables = [parts for name in selects if (parts := _TABLE.fullmatch(name))]
    return frozenset(
        parts["view"]
        for parts in tables
        if (view := parts["view"]) in selects
        and (view in old or read_generation(view, selects[view]) != int(parts["generation"] or 0))
    )


def _is_made_by_us(comment: str) -> bool:
    """Whether a view's comment says that this version of the package made it."""
    return f'"{MADE_BY}": "{version("iscp_dagster")}"' in comment
