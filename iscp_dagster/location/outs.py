"""The outputs of a run: what Dagster shows of each index and trigger, and in which order."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from dagster import AssetOut, MetadataValue

from iscp_dagster.location.names import SHARD, TENANT_COLUMN, job_key
from iscp_dagster.model.consumers.kinds import consumer_kind
from iscp_dagster.model.declared.lineage import definition_of
from iscp_dagster.model.declared.tables import Consuming, Index, SourceTable, shown_in

T = TypeVar("T")


class InOrder(Generic[T]):
    """Holds each output back until that of the view it is of: Dagster takes them in this order.

    `parents` names the view of each output; only those of `selected` are waited for.
    """

    def __init__(self, parents: Mapping[str, str], selected: Collection[str]) -> None:
        self._parents = parents
        self._missing = set(selected)
        self._held: dict[str, T] = {}

    def put(self, name: str, output: T) -> Iterator[T]:
        """Yield the output and those that waited for it, if it need not wait itself."""
        self._held[name] = output
        while ready := [each for each in self._held if self._before(each) not in self._missing]:
            for each in ready:
                self._missing.discard(each)
                yield self._held.pop(each)

    def rest(self) -> Iterator[T]:
        """Yield what waited for an output that did not come, each after that of its view."""
        while self._held:
            first = next(each for each in self._held if self._before(each) not in self._held)
            yield self._held.pop(first)

    def _before(self, name: str) -> str | None:
        return self._parents.get(name)


def asset_out(source: SourceTable, each: Consuming, databases: Sequence[str] = ()) -> AssetOut:
    """The asset of an index, a trigger or a service consumer of `source`.

    `databases` are those that the deployment names for its shards.
    """
    return AssetOut(
        key=job_key(source, each.name),
        io_manager_key=consumer_kind(each.kind).io_manager,
        is_required=False,
        owners=list(each.owners or source.owners),
        group_name=source.database,
        **_told(source, each, databases),
    )


def _told(source: SourceTable, each: Consuming, databases: Sequence[str]) -> dict[str, Any]:
    if isinstance(each, Index):
        return _index(source, each, databases)
    said, settings = consumer_kind(each.kind).describe(source, each)
    return {
        "kinds": {each.kind},
        "description": each.description or said,
        "tags": {**source.tags, **each.tags, "iscp/index": each.kind},
        "metadata": {name: _link(value) for name, value in settings.items()},
    }


def _link(value: Any) -> Any:
    is_address = str(value).startswith(("http://", "https://"))
    return MetadataValue.url(value) if is_address else value


def _index(source: SourceTable, index: Index, databases: Sequence[str]) -> dict[str, Any]:
    return {
        "kinds": {"clickhouse"},
        "description": index.description or _described(source, index),
        "tags": {**source.tags, **index.tags, "iscp/index": index.kind},
        "metadata": {
            "dagster/table_name": shown_in(source, index, databases),
            TENANT_COLUMN: source.tenant or "",
            **({SHARD: index.shard} if index.placement else {}),
            **({"view": _sql(definition_of(index))} if definition_of(index) else {}),
        },
    }


def _described(source: SourceTable, index: Index) -> str:
    held = index.placement
    which = f"Shard {held.shard} of {held.shards} of the" if held else "The"
    if definition_of(index):
        return f"The changes of the view `{index.name}` of `{source.name}`, one row for each image."
    return f"{which} {index.kind} index of `{source.name}`, kept in step by its jobs."


def _sql(definition: Sequence[Any]) -> MetadataValue[Any]:
    """What picks a view's rows and makes its columns, as text: from the source up."""
    lines = []
    for step in definition:
        made = "".join(f", {each} AS {name}" for name, each in step["columns"].items())
        lines.append(f"*{made}" + (f" WHERE {step['where']}" if step["where"] else ""))
    return MetadataValue.md("\n".join(f"{at}. `{line}`" for at, line in enumerate(lines, start=1)))
