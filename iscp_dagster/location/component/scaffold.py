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


class ScaffoldOptions(BaseModel):
    """The options of the command."""

    name: str | None = Field(default=None, description="The Delta table: database.table.")
    key: str = Field(default="id", description="The column of the primary key.")
    tenant: str | None = Field(default=None, description="The partition column of the tenant.")
    path: str | None = Field(default=None, description="The path or URL of the Delta table.")


class SourceTableScaffolder(Scaffolder[ScaffoldOptions]):
    """Writes the declaration of a table with a mirror."""

    @classmethod
    def get_scaffold_params(cls) -> type[ScaffoldOptions]:
        return ScaffoldOptions

    def scaffold(self, request: ScaffoldRequest[ScaffoldOptions]) -> None:
        params = request.params
        name = params.name or f"my_database.{request.target_path.name}"
        options = {"name": name, "key": params.key, "tenant": params.tenant, "path": params.path}
        options = {option: value for option, value in options.items() if value is not None}
        # Raises for an invalid name before there is a file.
        SourceTable(name)
        if request.scaffold_format == "yaml":
            scaffold_component(request, {**options, "indexes": [{"kind": "mirror"}]})
            return
        quoted = {
            option: json.dumps(value, ensure_ascii=False) for option, value in options.items()
        }
        declared = ", ".join(
            (quoted.pop("name"), *(f"{option}={value}" for option, value in quoted.items()))
        )
        file = request.target_path / "component.py"
        file.write_text(_PYTHON.format(declared=declared), encoding="utf-8")
