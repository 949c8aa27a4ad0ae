"""What is of what: the view that another view, or a trigger, is of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from iscp_dagster.model.declared.services import ServiceConsumer
from iscp_dagster.model.declared.tables import Consuming, Index, SourceTable
from iscp_dagster.model.declared.together.attach import CHANGES
from iscp_dagster.model.errors import ConfigError


def in_order(views: Sequence[tuple[str, str | None]], table: str) -> list[str]:
    """The names of views, given with what each is of, each after that of the view it is of.

    None and `table` mean the source. Raises ConfigError for a name that is neither a view nor the
    source, for a view that is declared twice, and for views that are of each other.
    """
    of = dict(views)
    if len(of) < len(views):
        twice = next(
            name for name, count in Counter(name for name, _ in views).items() if count > 1
        )
        raise ConfigError(f"View {twice!r} is declared twice; give each its own name.")
    for name, below in of.items():
        if below not in {None, table, *of}:
            raise ConfigError(
                f"View {name!r}: of={below!r} is neither the table {table!r} nor a view declared "
                f"with it, which are: {', '.join(of)}."
            )
    try:
        known = {name: {below} & set(of) for name, below in of.items()}
        return [str(name) for name in TopologicalSorter(known).static_order()]
    except CycleError as error:
        circle = " of ".join(map(repr, reversed(error.args[1])))
        raise ConfigError(
            f"The views are of each other: {circle}. Make one of them a view of the table: leave "
            "its of: out."
        ) from error


def parents(source: SourceTable) -> dict[str, str]:
    """For each view and trigger over a view of the table, the name of that view's index.

    Those over the table itself are left out, as is one whose view has no index.
    """
    kept = {index.name: view for index in source.indexes if (view := definition_of(index))}
    found = {each.name: _parent(each, kept) for each in source.consumers}
    return {name: parent for name, parent in found.items() if parent is not None}


def definition_of(index: Index) -> list[Any]:
    """The definition of the view that an index keeps; empty for an index of the table itself."""
    return list(getattr(index, "view", ())) if index.kind == CHANGES else []


def _parent(each: Consuming, kept: Mapping[str, list[Any]]) -> str | None:
    if isinstance(each, Index):
        below = definition_of(each)[:-1]
        return next((name for name, view in kept.items() if view == below), None)
    if isinstance(each, ServiceConsumer):
        return None
    named = kept.get(each.on.name)
    return each.on.name if named and named == each.on.definition else None
