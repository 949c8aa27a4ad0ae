"""One statement to run, with everything that its request sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chdb_http.engine.options import Options
    from chdb_http.sql.statement import Statement


@dataclass(frozen=True, kw_only=True)
class ExternalTable:
    """Rows sent with a query, which can read them as a table (ClickHouse doc: external data)."""

    name: str
    structure: str
    format: str
    data: bytes


@dataclass(frozen=True, kw_only=True)
class Query:
    """A statement with its request's options; `uses_files` lets it read and write files."""

    statement: Statement
    options: Options
    tables: tuple[ExternalTable, ...] = ()
    uses_files: bool = False

    @property
    def output_format(self) -> str:
        """The format that the text names, else the request's default."""
        return self.statement.format or self.options.default_format
