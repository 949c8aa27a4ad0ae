"""One statement to run, with all that a request said about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iscp_dagster.local.clickhouse.engine.options import Options
    from iscp_dagster.local.clickhouse.sql.statement import Statement


@dataclass(frozen=True, kw_only=True)
class ExternalTable:
    """Rows that come with a query and are a table to it (ClickHouse doc: external data)."""

    name: str
    structure: str
    format: str
    data: bytes


@dataclass(frozen=True, kw_only=True)
class Query:
    """`reads_files` is for a statement that names files which it may read or write."""

    statement: Statement
    options: Options
    tables: tuple[ExternalTable, ...] = ()
    reads_files: bool = False

    @property
    def output_format(self) -> str:
        """The format that the text names, else the request's default."""
        return self.statement.format or self.options.default_format
