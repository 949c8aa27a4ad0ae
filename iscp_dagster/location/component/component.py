"""The component that declares one source table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

import dagster as dg
from pydantic import BaseModel

from iscp_dagster.location.build import runner_definitions, standing, table_definitions
from iscp_dagster.location.component.reading import declared_of, place
from iscp_dagster.location.component.scaffold import SourceTableScaffolder
from iscp_dagster.location.component.schema import table_model
from iscp_dagster.location.resources.environment import resources_from_environment
from iscp_dagster.model.declared.endpoints import Endpoint
from iscp_dagster.model.declared.eventtriggers import Trigger
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.declared.together.attach import Declared
from iscp_dagster.model.declared.together.sound import Sound
from iscp_dagster.model.declared.views import View
from iscp_dagster.model.errors import ConfigError

_PRODUCES = ("asset", "asset_check", "job", "resource", "schedule", "sensor")


@dg.scaffold_with(SourceTableScaffolder)
class SourceTableComponent(dg.Component, dg.Resolvable):
    """A Delta table, the ClickHouse indexes that are kept in step with it, exactly once, and the
    views and triggers over it.

    A project may hold many. The first one also defines what they share: the runner, and the
    resources that the environment names.
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
        return table_model()

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
        found = declared_of(context, cast("dg.Model", model))
        return cls(
            found.tables[0],
            views=found.views,
            triggers=found.triggers,
            endpoints=found.endpoints,
            declared_at=place(context),
        )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The table's assets and checks; for the project's first table the runner as well.

        What cannot stand beside the others is left out, as by `build_definitions`.
        """
        # Outside of a defs folder this component is the only one.
        every = context.component_tree.get_all_components(SourceTableComponent) or [self]
        if all(each is not self for each in every):
            raise ConfigError(
                f"The function that makes the component of {self.table.name!r} does not declare "
                "its return type; annotate it with `-> SourceTableComponent`, without quotes or "
                "`from __future__ import annotations`."
            )
        found = _standing(tuple(every))
        table = found.declared.get(id(self.table))
        own = [] if table is None else [table_definitions(table)]
        return dg.Definitions.merge(*own, *([_shared(every)] if every[0] is self else []))


def _declared(every: Sequence[SourceTableComponent]) -> Declared:
    declared: dict[int, object] = {}
    files: dict[int, str] = {}
    for each in every:
        for one in (each.table, *each.views, *each.triggers, *each.endpoints):
            declared[id(one)] = one
            files[id(one)] = each.declared_at
    return Declared.of(declared.values(), files)


@lru_cache(maxsize=1)
def _standing(every: tuple[SourceTableComponent, ...]) -> Sound:
    """Kept for the next component of the same project, since each asks for it."""
    return standing(_declared(every), os.environ)


def _shared(every: Sequence[SourceTableComponent]) -> dg.Definitions:
    tables = _standing(tuple(every)).tables
    return runner_definitions(tables, resources_from_environment(), given=_declared(every))
