"""The component that declares one source table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

import dagster as dg
from pydantic import BaseModel

from iscp_dagster.location.build import (
    build_shared_definitions,
    build_table_definitions,
    filter_declarations,
)
from iscp_dagster.location.component.reading import format_position, parse_declarations
from iscp_dagster.location.component.scaffold import SourceTableScaffolder
from iscp_dagster.location.component.schema import build_table_model
from iscp_dagster.location.resources.environment import resources_from_environment
from iscp_dagster.model.declared.endpoints import Endpoint
from iscp_dagster.model.declared.eventtriggers import Trigger
from iscp_dagster.model.declared.linking.attach import Declarations
from iscp_dagster.model.declared.linking.sound import ConsistentDeclarations
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.declared.views import View
from iscp_dagster.model.errors import ConfigError

_PRODUCES = ("asset", "asset_check", "job", "resource", "schedule", "sensor")


@dg.scaffold_with(SourceTableScaffolder)
class SourceTableComponent(dg.Component, dg.Resolvable):
    """A Delta table, the ClickHouse indexes that are kept in step with it, exactly once, and the
    views and triggers over it.

    A project may have many. The first one also defines what they share: the runner and the
    resources from the environment.
    """

    def __init__(
        self,
        table: SourceTable,
        *,
        views: Sequence[View] = (),
        triggers: Sequence[Trigger] = (),
        endpoints: Sequence[Endpoint] = (),
        declared_at: str = "",
    ) -> None:
        self.table = table
        self.views, self.triggers, self.endpoints = views, triggers, endpoints
        self.declared_at = declared_at

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        return dg.ComponentTypeSpec(produces=_PRODUCES)

    @classmethod
    def model(cls) -> type[BaseModel]:
        return build_table_model()

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Any:
        """Load as Dagster does. Raises ConfigError for attributes that declare no table."""
        if attributes is None:
            raise ConfigError(
                f"{context.path / 'defs.yaml'}: the table has no attributes; give name, key and "
                "indexes, as `dg scaffold defs` writes them."
            )
        return super().load(attributes, context)

    @classmethod
    def resolve_from_model(cls, context: dg.ResolutionContext, model: BaseModel) -> Any:
        """Make the component from the attributes of a `defs.yaml`. Raises ConfigError."""
        declarations = parse_declarations(context, cast("dg.Model", model))
        return cls(
            declarations.tables[0],
            views=declarations.views,
            triggers=declarations.triggers,
            endpoints=declarations.endpoints,
            declared_at=format_position(context),
        )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The table's assets and checks, and the runner for the project's first table.

        Declarations that conflict with others are left out, as by `build_definitions`.
        """
        # Outside a defs folder this component is the only one.
        components = context.component_tree.get_all_components(SourceTableComponent) or [self]
        if all(component is not self for component in components):
            raise ConfigError(
                f"The function that makes the component of {self.table.name!r} does not declare "
                "its return type; annotate it with `-> SourceTableComponent`, without quotes or "
                "`from __future__ import annotations`."
            )
        sound = _filter_declarations(tuple(components))
        table = sound.declared.get(id(self.table))
        table_definitions = [] if table is None else [build_table_definitions(table)]
        return dg.Definitions.merge(
            *table_definitions,
            *([_build_shared_definitions(components)] if components[0] is self else []),
        )


def _collect_declarations(components: Sequence[SourceTableComponent]) -> Declarations:
    declared: dict[int, object] = {}
    files: dict[int, str] = {}
    for component in components:
        for declaration in (
            component.table,
            *component.views,
            *component.triggers,
            *component.endpoints,
        ):
            declared[id(declaration)] = declaration
            files[id(declaration)] = component.declared_at
    return Declarations.of(declared.values(), files)


@lru_cache(maxsize=1)
def _filter_declarations(components: tuple[SourceTableComponent, ...]) -> ConsistentDeclarations:
    """Cached for the next component of the project: each one calls it."""
    return filter_declarations(_collect_declarations(components), os.environ)


def _build_shared_definitions(components: Sequence[SourceTableComponent]) -> dg.Definitions:
    tables = _filter_declarations(tuple(components)).tables
    return build_shared_definitions(
        tables, resources_from_environment(), declarations=_collect_declarations(components)
    )
