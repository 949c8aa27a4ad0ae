"""Checks who owns the tables and views with an index's names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.clickhouse.tables.ddl import OWNER, IndexTable, table_name
from iscp_dagster.clickhouse.tables.generations import is_table_of
from iscp_dagster.model.errors import SchemaError

_NAMED = (
    "SELECT name, engine, comment, as_select, (SELECT groupArray((table, name, type)) "
    "FROM system.columns WHERE database = {database:String} AND table IN {shown:Array(String)}"
    ") AS columns FROM system.tables "
    "WHERE database = {database:String} AND (name IN {views:Array(String)} "
    "OR arrayExists(head -> startsWith(name, head), {heads:Array(String)}))"
)


@dataclass(frozen=True, kw_only=True)
class Existing:
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
            found = json.loads(self.comment)
            return found if isinstance(found, dict) else {}
        return {}


def namesakes(endpoint: Endpoint, shape: IndexTable) -> dict[str, Existing]:
    """Return what exists under names of the index's views and tables, in any generation."""
    views = list(shape.views)
    heads = [table_name(shape.view, role, 0) for role in ("rows", "staging")]
    parameters = {
        "database": shape.database,
        "views": views,
        "heads": heads,
        "shown": [shape.rows, shape.view],
    }
    with endpoint.errors(f"look for tables named like {shape.database}.{shape.view}"):
        found = list(endpoint.client().query(_NAMED, parameters=parameters).named_results())
    named = [row for row in found if row["name"] in views or is_table_of(shape.view, row["name"])]
    return {row["name"]: _held(row) for row in named}


def stored_definition(endpoint: Endpoint, shape: IndexTable) -> dict[str, Any]:
    """Return the definition that the index's table was made from; empty without a table."""
    query = (
        "SELECT comment FROM system.tables "
        "WHERE database = {database:String} AND name = {table:String}"
    )
    parameters = {"database": shape.database, "table": shape.rows}
    with endpoint.errors(f"look for {shape.database}.{shape.rows}"):
        found = endpoint.client().query(query, parameters=parameters).result_rows
    comment = found[0][0] if found else ""
    return Existing(name=shape.rows, engine="", comment=comment, as_select="").definition


def _held(row: Mapping[str, Any]) -> Existing:
    columns = {name: type_ for table, name, type_ in row["columns"] if table == row["name"]}
    return Existing(**{**row, "columns": columns})


def check_owned(shape: IndexTable, found: dict[str, Existing]) -> None:
    """Reject tables and views that are not the index's own. Raises SchemaError."""
    for name, each in found.items():
        whose = each.definition.get(OWNER)
        view = name in shape.views
        own = f"{shape.view}__rows" in each.as_select if view else whose == shape.owner
        if not own:
            said = (
                f"belongs to index {whose}"
                if whose
                else f"is a {each.engine} that belongs to no index"
            )
            raise SchemaError(
                f"Index {shape.owner}: {shape.name(name)} {said}. Give the index another name, or "
                "drop what is there."
            )
