"""The tables of an index in every generation: which is served, which are left over.

Needs nothing from the source, which may be gone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from iscp_dagster.clickhouse.connect.barrier import build_epoch_settings
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.connect.portions import split_names
from iscp_dagster.clickhouse.connect.quoting import quote_identifier, quote_string
from iscp_dagster.clickhouse.connect.table_barrier import TableBarrier
from iscp_dagster.clickhouse.tables.buckets import render_attachments, render_tombstones
from iscp_dagster.clickhouse.tables.ddl import MADE_BY, SETTINGS, format_table_name
from iscp_dagster.clickhouse.tables.staging import ATTEMPT, make_attempt_id
from iscp_dagster.model.declared.kinds import list_view_suffixes
from iscp_dagster.model.declared.schema import BUCKET

_TABLE = re.compile(
    rf"(?P<view>.+)__(?P<role>rows|staging)(_(?P<generation>[1-9][0-9]*))?(_{ATTEMPT})?"
)


@dataclass(frozen=True, kw_only=True)
class IndexGenerations:
    """The tables and views of the index `view` in `database`. Every method may be repeated."""

    endpoint: ClickHouseEndpoint
    database: str
    view: str

    def find_served_generation(self) -> int | None:
        """Return the generation that the view reads; None while there is no view."""
        query = (
            "SELECT as_select FROM system.tables "
            "WHERE database = {database:String} AND name = {view:String}"
        )
        selects = self._query_names(query, database=self.database, view=self.view)
        return parse_generation(self.view, selects[0]) if selects else None

    def has_rows(self, generation: int, column: str | None, tenants: Collection[str]) -> bool:
        """Whether a generation has rows of any of the tenants; without a `column`, any rows.

        True if it has no such column, since its tenants may be in another one.
        """
        if not tenants:
            return False
        if column and column not in self._list_columns(
            format_table_name(self.view, "rows", generation)
        ):
            return True
        rows = quote_identifier(self.database, format_table_name(self.view, "rows", generation))
        where = (
            f"WHERE toString({quote_identifier(column)}) IN {{tenants:Array(String)}}"
            if column
            else ""
        )
        query = f"SELECT 1 FROM {rows} {where} LIMIT 1"
        return bool(self._query_names(query, tenants=sorted(tenants)))

    def drop_tenants(self, column: str | None, tenants: Collection[str]) -> None:
        """Drop these tenants' rows, served and staged; without a `column`, all.

        Rejects inserts still in flight. A delayed statement of this method cannot drop rows built
        later.
        """
        for table, generation in self.list_tables().items():
            if _get_role(table) == "staging":
                self.drop_staged_tenants(table, column, tenants)
                continue
            epoch = self.get_barrier(table, column).reject_earlier_inserts(tenants)
            partitions = self._list_partitions(table, column, tenants)
            if partitions and self._is_shared(table):
                self._delete_tenants(table, generation, column, tenants, epoch)
            elif partitions:
                self._clear_partitions(table, generation, partitions)

    def drop_staged_tenants(self, table: str, column: str | None, tenants: Collection[str]) -> None:
        """Drop these tenants' rows from the table of an attempt, so that it cannot publish them.

        If it has tenants in shared partitions, this drops the table if it has rows of any: its run
        then fails to publish the others, too, and builds them again.
        """
        partitions = self._list_partitions(table, column, tenants)
        if partitions and self._is_shared(table):
            self.drop_staging(table)
        elif partitions:
            self._alter_partitions(table, "DROP PARTITION ID", partitions)

    def _is_shared(self, table: str) -> bool:
        """Whether tenants share the table's partitions."""
        return BUCKET in self._list_columns(table)

    def _delete_tenants(
        self, table: str, generation: int, column: str | None, tenants: Collection[str], epoch: int
    ) -> None:
        """Attach tombstones for the tenants' rows, from a temporary table of this call."""
        assert column is not None
        name = quote_identifier(self.database, table)
        with self._make_temporary_table(table, generation) as temporary:
            source = quote_identifier(self.database, temporary)
            condition = f"toString({quote_identifier(column)}) IN {{tenants:Array(String)}}"
            columns = self._list_columns(table)
            for portion in split_names(sorted(tenants)):
                self._run_statement(
                    render_tombstones(source, name, columns, condition),
                    build_epoch_settings(self.database, table, epoch),
                    tenants=portion,
                )
            self.attach_partitions(table, temporary)

    def attach_partitions(self, table: str, source: str) -> None:
        """Add all partitions of another table to the table's, each at once for its readers."""
        name, source_name = (
            quote_identifier(self.database, table),
            quote_identifier(self.database, source),
        )
        query = f"SELECT DISTINCT _partition_id FROM {source_name} ORDER BY 1"
        with self.endpoint.translate_errors(f"list the partitions of {source_name}"):
            result = self.endpoint.get_client().query(query, settings=self.endpoint.read_settings)
        partitions = [str(id_) for (id_,) in result.result_rows]
        for statement in render_attachments(name, source_name, partitions):
            self._run_statement(statement, build_epoch_settings(self.database, table))

    def _clear_partitions(self, table: str, generation: int, partitions: Sequence[str]) -> None:
        """Replace the partitions by empty ones, from a temporary table of this call."""
        with self._make_temporary_table(table, generation) as empty:
            self._alter_partitions(
                table,
                "REPLACE PARTITION ID",
                partitions,
                f" FROM {quote_identifier(self.database, empty)}",
                {
                    "allow_replace_partition_from_empty_source": 1,
                    **build_epoch_settings(self.database, table),
                },
            )

    @contextmanager
    def _make_temporary_table(self, table: str, generation: int) -> Iterator[str]:
        """Give an empty table like `table`, under a name that only this call knows."""
        name = self._make_temporary_name(generation)
        temporary = quote_identifier(self.database, name)
        like = quote_identifier(self.database, table)
        self._run_statement(f"CREATE TABLE {temporary} AS {like}", SETTINGS)
        try:
            yield name
        finally:
            self._drop_table(name)

    def _alter_partitions(
        self,
        table: str,
        action: str,
        partitions: Iterable[str],
        source: str = "",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        for portion in split_names(partitions):
            actions = ", ".join(
                f"{action} {quote_string(partition)}{source}" for partition in portion
            )
            self._run_statement(
                f"ALTER TABLE {quote_identifier(self.database, table)} {actions}", settings
            )

    def get_barrier(self, table: str, column: str | None) -> TableBarrier:
        """Return the gate that inserts into the table must pass."""
        return TableBarrier(
            endpoint=self.endpoint, database=self.database, table=table, column=column
        )

    def list_staging_tables(self) -> list[str]:
        """Return the staging tables, including those that dead runs left."""
        return [name for name in self.list_tables() if _get_role(name) == "staging"]

    def drop_staging(self, table: str) -> None:
        """Drop the table of an attempt; a run that still uses it no longer finds it."""
        self._drop_table(table)

    def drop_index(self) -> None:
        """Drop the views, then the tables. A delayed statement cannot drop tables created later."""
        for view in (*(f"{self.view}_{end}" for end in list_view_suffixes()), self.view):
            self._run_statement(f"DROP VIEW IF EXISTS {quote_identifier(self.database, view)}")
        for table, generation in self.list_tables().items():
            if _get_role(table) == "rows":
                self._rename_and_drop(table, generation)
            else:
                self._drop_table(table, "SYNC")

    def _rename_and_drop(self, table: str, generation: int) -> None:
        """Rename the table to a name that only this call uses, then drop it.

        The RENAME also moves a temporary table; a delayed RENAME does not find that one, and fails.
        """
        ticket, used, away = (
            quote_identifier(self.database, self._make_temporary_name(generation)) for _ in range(3)
        )
        name = quote_identifier(self.database, table)
        self._run_statement(f"CREATE TABLE {ticket} AS {name}", SETTINGS)
        try:
            self._run_statement(f"RENAME TABLE {ticket} TO {used}, {name} TO {away}")
        finally:
            for temporary in (ticket, used):
                self._run_statement(f"DROP TABLE IF EXISTS {temporary}")
        self._run_statement(f"DROP TABLE IF EXISTS {away} SYNC")

    def _make_temporary_name(self, generation: int) -> str:
        """Return a table name that nobody else knows; leftovers are cleaned up like staging."""
        return f"{format_table_name(self.view, 'staging', generation)}_{make_attempt_id('nobody')}"

    def drop_before(self, generation: int) -> None:
        """Drop the tables of earlier generations; queries that still read them run to the end."""
        for table, table_generation in self.list_tables().items():
            if table_generation < generation:
                self._drop_table(table)

    def list_tables(self) -> dict[str, int]:
        """Return the index's existing tables, staging first, with their generations."""
        heads = [format_table_name(self.view, role, 0) for role in ("staging", "rows")]
        query = (
            "SELECT name FROM system.tables WHERE database = {database:String} "
            "AND arrayExists(head -> startsWith(name, head), {heads:Array(String)})"
        )
        names = self._query_names(query, database=self.database, heads=heads)
        return {
            name: int(parts["generation"] or 0)
            for name in sorted(names, reverse=True)
            if (parts := _TABLE.fullmatch(name)) and parts["view"] == self.view
        }

    def _drop_table(self, table: str, modifier: str = "") -> None:
        self._run_statement(
            f"DROP TABLE IF EXISTS {quote_identifier(self.database, table)} {modifier}".rstrip()
        )

    def _list_partitions(
        self, table: str, column: str | None, tenants: Collection[str]
    ) -> list[str]:
        where = (
            f"WHERE toString({quote_identifier(column)}) IN {{tenants:Array(String)}}"
            if column
            else ""
        )
        query = (
            f"SELECT DISTINCT _partition_id FROM {quote_identifier(self.database, table)} {where}"
        )
        partitions = (
            self._query_names(query, tenants=portion) for portion in split_names(sorted(tenants))
        )
        return sorted({name for names in partitions for name in names})

    def _list_columns(self, table: str) -> list[str]:
        query = (
            "SELECT name FROM system.columns "
            "WHERE database = {database:String} AND table = {table:String}"
        )
        return self._query_names(query, database=self.database, table=table)

    def _query_names(self, query: str, **parameters: object) -> list[str]:
        with self.endpoint.translate_errors(f"look for the data of {self.database}.{self.view}"):
            result = self.endpoint.get_client().query(query, parameters=parameters)
        return [str(name) for (name,) in result.result_rows]

    def _run_statement(
        self, statement: str, settings: Mapping[str, Any] | None = None, **parameters: object
    ) -> None:
        with self.endpoint.translate_errors(statement):
            client = self.endpoint.get_client()
            client.command(statement, parameters=parameters, settings=dict(settings or {}))


def is_table_of(view: str, name: str) -> bool:
    """Whether `name` is a table of the index with this `view`."""
    parts = _TABLE.fullmatch(name)
    return parts is not None and parts["view"] == view


def _get_role(table: str) -> str:
    match = _TABLE.fullmatch(table)
    return match["role"] if match else ""


def parse_generation(view: str, select: str) -> int:
    """Return the generation of the rows that a view's SELECT reads."""
    head = re.escape(format_table_name(view, "rows", 0))
    match = re.search(rf"\b{head}(?:_([1-9][0-9]*))?\b", select)
    return int(match[1] or 0) if match else 0


def find_outdated_views(endpoint: ClickHouseEndpoint, database: str) -> frozenset[str]:
    """Return the views to look after.

    Another package version made them, or they have tables of generations not served.
    """
    query = (
        "SELECT name, as_select, comment FROM system.tables "
        "WHERE database = {database:String} AND NOT is_temporary"
    )
    with endpoint.translate_errors(f"look for the indexes of {database}"):
        rows = endpoint.get_client().query(query, {"database": database}).result_rows
    selects = {name: select for name, select, _ in rows}
    outdated = {name for name, _, comment in rows if not _is_current_version(comment)}
    tables = [parts for name in selects if (parts := _TABLE.fullmatch(name))]
    return frozenset(
        parts["view"]
        for parts in tables
        if (view := parts["view"]) in selects
        and (
            view in outdated
            or parse_generation(view, selects[view]) != int(parts["generation"] or 0)
        )
    )


def _is_current_version(comment: str) -> bool:
    """Whether a view's comment says that this version of the package made it."""
    return f'"{MADE_BY}": "{version("iscp_dagster")}"' in comment
