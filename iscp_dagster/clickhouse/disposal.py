"""The data of an index whose jobs are gone: dropped by tenant, or whole.

Asks nothing of the source, which may be gone too.
"""

from __future__ import annotations

from dataclasses import dataclass

from iscp_dagster.clickhouse.endpoint import Endpoint
from iscp_dagster.clickhouse.quoting import ident, text


@dataclass(frozen=True, kw_only=True)
class IndexData:
    """What ClickHouse holds of the index `view` of `database`. Every method may be repeated."""

    endpoint: Endpoint
    database: str
    view: str

    def drop_tenant(self, column: str | None, tenant: str) -> None:
        """Drop one tenant's rows, built and being built; without a `column`, all."""
        for table in self._tables():
            for partition in self._partitions(table, column, tenant):
                name = ident(self.database, table)
                self._run(f"ALTER TABLE {name} DROP PARTITION ID {text(partition)}")

    def drop(self) -> None:
        """Drop the views, then the tables."""
        for view in (f"{self.view}_nearest", self.view):
            self._run(f"DROP VIEW IF EXISTS {ident(self.database, view)}")
        for table in (f"{self.view}__staging", f"{self.view}__rows"):
            self._run(f"DROP TABLE IF EXISTS {ident(self.database, table)} SYNC")

    def _tables(self) -> list[str]:
        """Those of its tables that are there."""
        query = (
            "SELECT name FROM system.tables "
            "WHERE database = {database:String} AND name IN {names:Array(String)}"
        )
        names = [f"{self.view}__rows", f"{self.view}__staging"]
        return self._names(query, database=self.database, names=names)

    def _partitions(self, table: str, column: str | None, tenant: str) -> list[str]:
        where = f"WHERE toString({ident(column)}) = {{tenant:String}}" if column else ""
        query = f"SELECT DISTINCT _partition_id FROM {ident(self.database, table)} {where}"
        return self._names(query, tenant=tenant)

    def _names(self, query: str, **parameters: object) -> list[str]:
        with self.endpoint.errors(f"look for the data of {self.database}.{self.view}"):
            found = self.endpoint.client().query(query, parameters=parameters)
        return [str(name) for (name,) in found.result_rows]

    def _run(self, statement: str) -> None:
        with self.endpoint.errors(statement):
            self.endpoint.client().command(statement)
