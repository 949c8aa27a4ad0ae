"""The outputs of a run: what Dagster shows of each index and trigger, and in which order."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from dagster import AssetOut, MetadataValue

from iscp_dagster.location.names import SHARD, TENANT_COLUMN, get_job_asset_key
from iscp_dagster.model.consumers.kinds import consumer_kind
from iscp_dagster.model.declared.lineage import get_definition
from iscp_dagster.model.declared.tables import Consuming, Index, SourceTable, qualify_view_name

T = TypeVar("T")


class InOrder(Generic[T]):
    """Holds each output back until that of the view it is of: Dagster takes them in this order.

    `parents` names the view of each output; only those of `selected` are waited for.
    """

    def __init__(self, parents: Mapping[str, str], selected: Collection[str]) -> None:
        self._parents = parents
        self._missing = set(selected)
        self._waiting: dict[str, T] = {}

    def put(self, name: str, output: T) -> Iterator[T]:
        """Yield the output and those that waited for it, if it need not wait itself."""
        self._waiting[name] = output
        while ready := [
            each for each in self._waiting if self._get_parent(each) not in self._missing
        ]:
            for each in ready:
                self._missing.discard(each)
                yield self._waiting.pop(each)

    def release_rest(self) -> Iterator[T]:
        """Yield what waited for an output that did not come, each after that of its view."""
        while self._waiting:
            first = next(
                each for each in self._waiting if self._get_parent(each) not in self._waiting
            )
            yield self._waiting.pop(first)

    def _get_parent(self, name: str) -> str | None:
        return self._parents.get(name)


def build_asset_out(
    source: SourceTable, each: Consuming, databases: Sequence[str] = ()
) -> AssetOut:
    """The asset of an index, a trigger or a service consumer of `source`.

    `databases` are those that the deployment names for its shards.
    """
    return AssetOut(
        key=get_job_asset_key(source, each.name),
        io_manager_key=consumer_kind(each.kind).io_manager,
        is_required=False,
        owners=list(each.owners or source.owners),
        group_name=source.database,
        **_build_out_settings(source, each, databases),
    )


def _build_out_settings(
    source: SourceTable, each: Consuming, databases: Sequence[str]
) -> dict[str, Any]:
    if isinstance(each, Index):
        return _build_index_settings(source, each, databases)
    said, settings = consumer_kind(each.kind).describe(source, each)
    return {
        "kinds": {each.kind},
        "description": each.description or said,
        "tags": {**source.tags, **each.tags, "iscp/index": each.kind},
        "metadata": {name: _to_url_metadata(value) for name, value in settings.items()},
    }


def _to_url_metadata(value: Any) -> Any:
    is_address = str(value).startswith(("http://", "https://"))
    return MetadataValue.url(value) if is_address else value


def _build_index_settings(
    source: SourceTable, index: Index, databases: Sequence[str]
) -> dict[str, Any]:
    return {
        "kinds": {"clickhouse"},
        "description": index.description or _describe_index(source, index),
        "tags": {**source.tags, **index.tags, "iscp/index": index.kind},
        "metadata": {
            "dagster/table_name": qualify_view_name(source, index, databases),
            TENANT_COLUMN: source.tenant or "",
            **({SHARD: index.shard} if index.placement else {}),
            **(
                {"view": _render_definition(get_definition(index))} if get_definition(index) else {}
            ),
        },
    }


def _describe_index(source: SourceTable, index: Index) -> str:
    held = index.placement
    which = f"Shard {held.shard} of {held.shards} of the" if held else "The"
    if get_definition(index):
        return f"The changes of the view `{index.name}` of `{source.name}`, one row for each image."
    return f"{which} {index.kind} index of `{source.name}`, kept in step by its jobs."


def _render_definition(definition: Sequence[Any]) -> MetadataValue[Any]:
    """What picks a view's rows and makes its columns, as text: from the source up."""
    lines = []
    for step in definition:
        made = "".join(f", {each} AS {name}" for name, each in step["columns"].items())
        lines.append(f"*{made}" + (f" WHERE {step['where']}" if step["where"] else ""))
    return MetadataValue.md("\n".join(f"{at}. `{line}`" for at, line in enumerate(lines, start=1)))
