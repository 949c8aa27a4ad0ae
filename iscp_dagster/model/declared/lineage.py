"""Lineage: the view that another view, or a trigger, is based on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from iscp_dagster.model.declared.linking.attach import CHANGES
from iscp_dagster.model.declared.services import ServiceConsumer
from iscp_dagster.model.declared.tables import DeclaredConsumer, Index, SourceTable
from iscp_dagster.model.errors import ConfigError


def sort_views(views: Sequence[tuple[str, str | None]], table: str) -> list[str]:
    """The names of `views`, which are (name, parent), each after its parent.

    The parents None and `table` mean the source. Raises ConfigError for a parent that is neither a
    view nor the source, for a view that is declared twice, and for a cycle.
    """
    parents = dict(views)
    if len(parents) < len(views):
        repeated = next(
            name for name, count in Counter(name for name, _ in views).items() if count > 1
        )
        raise ConfigError(f"View {repeated!r} is declared twice; give each its own name.")
    for name, parent in parents.items():
        if parent not in {None, table, *parents}:
            raise ConfigError(
                f"View {name!r}: of={parent!r} is neither the table {table!r} nor a view declared "
                f"with it, which are: {', '.join(parents)}."
            )
    try:
        dependencies = {name: {parent} & set(parents) for name, parent in parents.items()}
        return [str(name) for name in TopologicalSorter(dependencies).static_order()]
    except CycleError as error:
        cycle = " of ".join(map(repr, reversed(error.args[1])))
        raise ConfigError(
            f"The views form a cycle: {cycle}. Make one of them a view of the table: leave its "
            "of: out."
        ) from error


def find_parents(source: SourceTable) -> dict[str, str]:
    """For each view and trigger over a view of the table, the name of that view's index.

    Leaves out any over the table itself, or whose view has no index.
    """
    definitions = {index.name: view for index in source.indexes if (view := get_definition(index))}
    parents = {consumer.name: _find_parent(consumer, definitions) for consumer in source.consumers}
    return {name: parent for name, parent in parents.items() if parent is not None}


def get_definition(index: Index) -> list[Any]:
    """The definition of the view that an index keeps; empty for an index of the table itself."""
    return list(getattr(index, "view", ())) if index.kind == CHANGES else []


def _find_parent(consumer: DeclaredConsumer, definitions: Mapping[str, list[Any]]) -> str | None:
    if isinstance(consumer, Index):
        parent = get_definition(consumer)[:-1]
        return next((name for name, view in definitions.items() if view == parent), None)
    if isinstance(consumer, ServiceConsumer):
        return None
    definition = definitions.get(consumer.on.name)
    return consumer.on.name if definition and definition == consumer.on.definition else None
