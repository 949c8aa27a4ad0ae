"""Whose the tables and views are that bear an index's names."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.clickhouse.tables.ddl import OWNER, IndexTable, table_name
from iscp_dagster.clickhouse.tables.generations import is_table_of
from iscp_dagster.model.errors import SchemaError

_NAMED = (
    "SELECT name, engine, comment, as_select FROM system.tables "
    "WHERE database = {database:String} AND (name IN {views:Array(String)} "
    "OR arrayExists(head -> startsWith(name, head), {heads:Array(String)}))"
)


@dataclass(frozen=True, kw_only=True)
class Held:
    """A table or view that is there."""

    name: str
    engine: str
    comment: str
    as_select: str

    @property
    def definition(self) -> dict[str, Any]:
        """What an index's table was made as; empty for another's."""
        with suppress(ValueError):
            found = json.loads(self.comment)
            return found if isinstance(found, dict) else {}
        return {}


def namesakes(endpoint: Endpoint, shape: IndexTable) -> dict[str, Held]:
    """What is called as the index's views and tables are, of whatever generation, by name."""
    views = list(shape.views)
    heads = [table_name(shape.view, role, 0) for role in ("rows", "staging")]
    parameters = {"database": shape.database, "views": views, "heads": heads}
    with endpoint.errors(f"look for what is called like {shape.database}.{shape.view}"):
        found = list(endpoint.client().query(_NAMED, parameters=parameters).named_results())
    return {
        row["name"]: Held(**row)
        for row in found
        if row["name"] in views or is_table_of(shape.view, row["name"])
    }


def check_owned(shape: IndexTable, found: dict[str, Held]) -> None:
    """Refuse to write, or to replace, what is not the index's own. Raises SchemaError."""
    for name, each in found.items():
        whose = each.definition.get(OWNER)
        view = name in shape.views
        own = f"{shape.view}__rows" in each.as_select if view else whose == shape.owner
        if not own:
            said = f"is index {whose}'s" if whose else f"is a {each.engine} that no index made"
            raise SchemaError(
                f"Index {shape.owner}: {shape.name(name)} {said}. Give the index another name, or "
                "drop what is there."
            )
