"""The known kinds of index: built in, or offered by another package."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any

from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.imports import load_object

GROUP = "iscp_dagster.index_kinds"
"""The entry point group that packages offer kinds in; an entry's name is its `kind`."""
BUILT_IN = {
    "mirror": "iscp_dagster.clickhouse.kinds.mirror:Mirror",
    "text": "iscp_dagster.clickhouse.kinds.text:FullText",
    "vector": "iscp_dagster.clickhouse.kinds.vector:Vector",
    "changes": "iscp_dagster.clickhouse.kinds.changes:Changes",
}


@cache
def list_kind_names() -> tuple[str, ...]:
    """The kinds' names, built-in ones first. Loads none."""
    offered = sorted(
        {entry_point.name for entry_point in entry_points(group=GROUP)} - set(BUILT_IN)
    )
    return (*BUILT_IN, *offered)


def check_kind(where: str, index: Any) -> None:
    """Reject an index of an unknown kind: nothing would store it. Raises ConfigError."""
    if index.kind not in list_kind_names():
        place = f"{type(index).__module__}:{type(index).__name__}"
        raise ConfigError(
            f"Index {where}: no package offers the kind {index.kind!r} (known: "
            f"{', '.join(list_kind_names())}). "
            f"Offer {place} under that name as an entry point of {GROUP}, and install its package "
            "where Dagster, `iscp` and Spark run."
        )


@cache
def load_kinds() -> Mapping[str, type[Any]]:
    """The class that declares an index of each kind, derived from `IndexKind`.

    Raises ConfigError for one that cannot be imported, or whose `kind` is not its offered name.
    """
    classes: dict[str, type[Any]] = {}
    for name in list_kind_names():
        kind = load_object(BUILT_IN.get(name, name), GROUP, "index kind")
        if getattr(kind, "kind", None) != name:
            raise ConfigError(
                f"The index kind {name!r} is offered by {kind!r}, whose `kind` is "
                f"{getattr(kind, 'kind', None)!r}; give both the same name."
            )
        classes[name] = kind
    return MappingProxyType(classes)


@cache
def list_view_suffixes() -> tuple[str, ...]:
    """The suffixes of the index views that kinds have beside the first."""
    return tuple(
        sorted({suffix for kind in load_kinds().values() for suffix in kind.view_suffixes})
    )
