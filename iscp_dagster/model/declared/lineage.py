"""What is of what: the view that another view, or a trigger, is of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from iscp_dagster.model.declared.attach import CHANGES
from iscp_dagster.model.declared.tables import Consuming, Index, SourceTable


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
    named = kept.get(each.on.name)
    return each.on.name if named and named == each.on.definition else None
