"""Checks who owns the tables and views with an index's names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.tables.ddl import OWNER, IndexShape, format_table_name
from iscp_dagster.clickhouse.tables.generations import is_table_of
from iscp_dagster.model.errors import SchemaError

_EXISTING_QUERY = (
    "SELECT name, engine, comment, as_select, (SELECT groupArray((table, name, type)) "
    "FROM system.columns WHERE database = {database:String} AND table IN {shown:Array(String)}"
    ") AS columns FROM system.tables "
    "WHERE database = {database:String} AND (name IN {views:Array(String)} "
    "OR arrayExists(head -> startsWith(name, head), {heads:Array(String)}))"
)


@dataclass(frozen=True, kw_only=True)
class ExistingTable:
    """An existing table or view."""

    name: str
    engine: str
    comment: str
    as_select: str
    columns: Mapping[str, str] = field(default_factory=dict)
    """The types of its columns; known only for the index's own table and view."""

    @property
    def definition(self) -> dict[str, Any]:
        """The definition that an index's table was made from; empty for any other table."""
        with suppress(ValueError):
            parsed = json.loads(self.comment)
            return parsed if isinstance(parsed, dict) else {}
        return {}


def find_existing_tables(
    endpoint: ClickHouseEndpoint, shape: IndexShape
) -> dict[str, ExistingTable]:
    """Return what exists under names of the index's views and tables, in any generation."""
    views = list(shape.views)
    heads = [format_table_name(shape.view, role, 0) for role in ("rows", "staging")]
    parameters = {
        "database": shape.database,
        "views": views,
        "heads": heads,
        "shown": [shape.rows, shape.view],
    }
    with endpoint.translate_errors(f"look for tables named like {shape.database}.{shape.view}"):
        rows = list(
            endpoint.get_client().query(_EXISTING_QUERY, parameters=parameters).named_results()
        )
    matching = [row for row in rows if row["name"] in views or is_table_of(shape.view, row["name"])]
    return {row["name"]: _build_existing(row) for row in matching}


def read_definition(endpoint: ClickHouseEndpoint, shape: IndexShape) -> dict[str, Any]:
    """Return the definition that the index's table was made from; empty without a table."""
    query = (
        "SELECT comment FROM system.tables "
        "WHERE database = {database:String} AND name = {table:String}"
    )
    parameters = {"database": shape.database, "table": shape.rows}
    with endpoint.translate_errors(f"look for {shape.database}.{shape.rows}"):
        rows = endpoint.get_client().query(query, parameters=parameters).result_rows
    comment = rows[0][0] if rows else ""
    return ExistingTable(name=shape.rows, engine="", comment=comment, as_select="").definition


def _build_existing(row: Mapping[str, Any]) -> ExistingTable:
    columns = {name: type_ for table, name, type_ in row["columns"] if table == row["name"]}
    return ExistingTable(**{**row, "columns": columns})


def check_owned(shape: IndexShape, existing: dict[str, ExistingTable]) -> None:
    """Reject tables and views that are not the index's own. Raises SchemaError."""
    for name, table in existing.items():
        owner = table.definition.get(OWNER)
        is_view = name in shape.views
        is_own = f"{shape.view}__rows" in table.as_select if is_view else owner == shape.owner
        if not is_own:
            problem = (
                f"belongs to index {owner}"
                if owner
                else f"is a {table.engine} that belongs to no index"
            )
            raise SchemaError(
                f"Index {shape.owner}: {shape.qualify_name(name)} {problem}. Give the index "
                "another name, "
                "or drop what is there."
            )
