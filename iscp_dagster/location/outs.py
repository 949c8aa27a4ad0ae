"""The outputs of a run: what Dagster shows for each index and trigger, and their order."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from dagster import AssetOut, MetadataValue

from iscp_dagster.location.names import SHARD, TENANT_COLUMN, get_job_asset_key
from iscp_dagster.model.consumers.kinds import get_consumer_kind
from iscp_dagster.model.declared.lineage import get_definition
from iscp_dagster.model.declared.tables import (
    DeclaredConsumer,
    Index,
    SourceTable,
    qualify_view_name,
)

T = TypeVar("T")


class ParentFirstOutputs(Generic[T]):
    """Holds each output back until its view's output: Dagster requires this order.

    `parents` names the view of each output; only views in `selected` are waited for.
    """

    def __init__(self, parents: Mapping[str, str], selected: Collection[str]) -> None:
        self._parents = parents
        self._missing = set(selected)
        self._waiting: dict[str, T] = {}

    def put(self, name: str, output: T) -> Iterator[T]:
        """Yield the output and the outputs that waited for it, unless it must wait itself."""
        self._waiting[name] = output
        while ready := [
            output_name
            for output_name in self._waiting
            if self._get_parent(output_name) not in self._missing
        ]:
            for output_name in ready:
                self._missing.discard(output_name)
                yield self._waiting.pop(output_name)

    def release_rest(self) -> Iterator[T]:
        """Yield the outputs whose view had no output, each after its own view's."""
        while self._waiting:
            output_name = next(
                output_name
                for output_name in self._waiting
                if self._get_parent(output_name) not in self._waiting
            )
            yield self._waiting.pop(output_name)

    def _get_parent(self, name: str) -> str | None:
        return self._parents.get(name)


def build_asset_out(
    source: SourceTable, consumer: DeclaredConsumer, databases: Sequence[str] = ()
) -> AssetOut:
    """The asset of an index, a trigger or a service consumer of `source`.

    `databases` are the deployment's databases by shard.
    """
    return AssetOut(
        key=get_job_asset_key(source, consumer.name),
        io_manager_key=get_consumer_kind(consumer.kind).io_manager,
        is_required=False,
        owners=list(consumer.owners or source.owners),
        group_name=source.database,
        **_build_out_settings(source, consumer, databases),
    )


def _build_out_settings(
    source: SourceTable, consumer: DeclaredConsumer, databases: Sequence[str]
) -> dict[str, Any]:
    if isinstance(consumer, Index):
        return _build_index_settings(source, consumer, databases)
    description, settings = get_consumer_kind(consumer.kind).describe(source, consumer)
    return {
        "kinds": {consumer.kind},
        "description": consumer.description or description,
        "tags": {**source.tags, **consumer.tags, "iscp/index": consumer.kind},
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
    placement = index.placement
    subject = f"Shard {placement.shard} of {placement.shards} of the" if placement else "The"
    if get_definition(index):
        return f"The changes of the view `{index.name}` of `{source.name}`, one row for each image."
    return f"{subject} {index.kind} index of `{source.name}`, kept in step by its jobs."


def _render_definition(definition: Sequence[Any]) -> MetadataValue[Any]:
    """A view's conditions and calculated columns as text, from the source up."""
    lines = []
    for step in definition:
        columns = "".join(
            f", {expression} AS {name}" for name, expression in step["columns"].items()
        )
        lines.append(f"*{columns}" + (f" WHERE {step['where']}" if step["where"] else ""))
    return MetadataValue.md(
        "\n".join(f"{number}. `{line}`" for number, line in enumerate(lines, start=1))
    )
