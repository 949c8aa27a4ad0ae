"""What `dg scaffold defs iscp_dagster.SourceTableComponent` writes."""

from __future__ import annotations

import json

from dagster import Scaffolder, ScaffoldRequest
from dagster.components import scaffold_component
from pydantic import BaseModel, Field

from iscp_dagster.model.declared.tables import SourceTable

_PYTHON = """import dagster as dg

from iscp_dagster import Mirror, SourceTable, SourceTableComponent


@dg.component_instance
def load(context: dg.ComponentLoadContext) -> SourceTableComponent:
    table = SourceTable({declared}, indexes=[Mirror()])
    return SourceTableComponent(table)
"""


class Asked(BaseModel):
    """The options of the command."""

    name: str | None = Field(default=None, description="The Delta table: database.table.")
    key: str = Field(default="id", description="The column of the primary key.")
    tenant: str | None = Field(default=None, description="The partition column of the tenant.")
    path: str | None = Field(default=None, description="The path or URL of the Delta table.")


class SourceTableScaffolder(Scaffolder[Asked]):
    """Writes the declaration of a table with a mirror."""

    @classmethod
    def get_scaffold_params(cls) -> type[Asked]:
        return Asked

    def scaffold(self, request: ScaffoldRequest[Asked]) -> None:
        asked = request.params
        name = asked.name or f"my_database.{request.target_path.name}"
        said = {"name": name, "key": asked.key, "tenant": asked.tenant, "path": asked.path}
        said = {option: value for option, value in said.items() if value is not None}
        # Raises for an invalid name before there is a file.
        SourceTable(name)
        if request.scaffold_format == "yaml":
            scaffold_component(request, {**said, "indexes": [{"kind": "mirror"}]})
            return
        quoted = {option: json.dumps(value, ensure_ascii=False) for option, value in said.items()}
        declared = ", ".join((quoted.pop("name"), *(f"{k}={v}" for k, v in quoted.items())))
        file = request.target_path / "component.py"
        file.write_text(_PYTHON.format(declared=declared), encoding="utf-8")
