"""The IO manager of index tables: reports what was stored, and loads the served rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dagster import (
    AssetKey,
    AssetMaterialization,
    InputContext,
    IOManager,
    MetadataValue,
    OutputContext,
    TableColumn,
    TableSchema,
)
from dagster._core.definitions.data_version import DATA_VERSION_TAG

from iscp_dagster.clickhouse.connect.quoting import ident
from iscp_dagster.clickhouse.tables.indexes import IndexStore
from iscp_dagster.location.assets.iterations import InStep
from iscp_dagster.model.errors import IscpError
from iscp_dagster.model.jobs import Job
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.publish import Delivery

TENANT_COLUMN = "iscp/tenant_column"
"""Definition metadata: the column of the view that holds the tenant."""

SHARD = "iscp/shard"
"""Definition metadata: the number of the ClickHouse server that the index is on."""


class IndexIOManager(IOManager):
    """Reports what an iteration stored in one index, and reads the index back.

    The iteration itself stores rows (`sync.publish.publish`): that must be done before the next
    index's turn, and one index that cannot be stored must not stop the others (decision 24).
    """

    def __init__(self, deployment: Callable[[], Deployment]) -> None:
        self._deployment = deployment

    def handle_output(self, context: OutputContext, obj: Delivery | InStep | Stored) -> None:
        """Report a delivery to Dagster; its rows are already served and its watermarks moved."""
        if isinstance(obj, Stored):
            for event in obj.events():
                context.log_event(event)
            return context.add_output_metadata(obj.summary())
        if isinstance(obj, InStep):
            return context.add_output_metadata(dict(in_step(obj.job)))
        return context.add_output_metadata(dict(delivered(obj)))

    def load_input(self, context: InputContext) -> Any:
        """The served rows of the input's tenants, as an Arrow table of the user's columns."""
        upstream = context.upstream_output
        metadata = upstream.definition_metadata if upstream else {}
        tenant = str(metadata.get(TENANT_COLUMN, ""))
        shown = str(metadata.get("dagster/table_name") or ".".join(context.asset_key.path))
        database, _, name = shown.partition(".")
        where = f" WHERE toString({ident(tenant)}) IN {{tenants:Array(String)}}" if tenant else ""
        endpoint = self._deployment().endpoints[int(metadata.get(SHARD, 0))]
        view = ident(endpoint.holds(database), name)
        with endpoint.errors(f"read {view}"):
            parameters = {"tenants": list(context.asset_partition_keys)}
            client = endpoint.client()
            return client.query_arrow(f"SELECT * FROM {view}{where}", parameters=parameters)


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What a run of many tenants stored in one index, or found in step."""

    key: AssetKey
    outcomes: Sequence[Delivery | InStep]
    tags: Mapping[str, Mapping[str, str]]
    """By tenant, what its rows were built from; see `provenance`."""

    def events(self) -> Iterator[AssetMaterialization]:
        """One materialization per tenant, as a run for that tenant alone would report it."""
        stores = {id(each.store): each.store for each in self.delivered if each.store is not None}
        tables = {name: _table(store) for name, store in stores.items()}
        for each in self.outcomes:
            if isinstance(each, InStep):
                metadata = in_step(each.job)
            else:
                metadata = {**_delivered(each), **tables.get(id(each.store), {})}
            yield AssetMaterialization(
                asset_key=self.key,
                partition=each.tenant,
                metadata=metadata,
                tags={**self.tags.get(each.tenant, {}), DATA_VERSION_TAG: str(each.data_version)},
            )

    @property
    def delivered(self) -> list[Delivery]:
        return [each for each in self.outcomes if isinstance(each, Delivery)]

    def summary(self) -> dict[str, Any]:
        """The totals for the run's page."""
        return {
            "tenants": len({each.tenant for each in self.outcomes}),
            "rows_inserted": sum(each.inserted for each in self.delivered),
            "rows_deleted": sum(each.deleted for each in self.delivered),
            "bytes": sum(each.bytes for each in self.delivered),
        }


def clickhouse_schema(store: IndexStore) -> TableSchema:
    """The index's columns with their ClickHouse types."""
    types = store.shape.column_types()
    return TableSchema(
        [
            TableColumn(name=f.name, type=types[f.name], description=f.comment or None)
            for f in store.shape.fields
        ]
    )


def delivered(delivery: Delivery) -> Mapping[str, Any]:
    """The metadata of an index's materialization; Dagster plots the numbers."""
    table = {} if delivery.store is None else _table(delivery.store)
    return {**_delivered(delivery), **table}


def _delivered(delivery: Delivery) -> dict[str, Any]:
    written = delivery.written
    rows = delivery.inserted + delivery.deleted
    # Not the time now: Dagster stores events one by one, maybe long after rows were searchable.
    assert delivery.published is not None
    lag = (delivery.published - delivery.to.at).total_seconds()
    return {
        "from_version": delivery.range.from_.version,
        "to_version": delivery.to.version,
        "source_time": MetadataValue.timestamp(delivery.to.at),
        "read": MetadataValue.text(f"{delivery.plan.kind.value}: {delivery.plan.reason}"),
        "rows_inserted": delivery.inserted,
        "rows_deleted": delivery.deleted,
        "lag_seconds": round(lag, 3),
        "read_seconds": round(max(written.seconds - written.write_seconds, 0.0), 3),
        "write_seconds": round(written.write_seconds, 3),
        "rows_per_second": round(rows / written.seconds, 1) if written.seconds else 0.0,
        "bytes": delivery.bytes,
        "chunks": written.chunks,
        "registration": str(delivery.claim.registration),
    }


def in_step(job: Job) -> Mapping[str, Any]:
    """The metadata of the materialization of a job that had nothing to catch up with."""
    at = job.watermark
    return {
        "from_version": at.version,
        "to_version": at.version,
        "source_time": MetadataValue.timestamp(at.at),
        "read": MetadataValue.text("nothing: in step with the source already"),
        "rows_inserted": 0,
        "rows_deleted": 0,
        "registration": str(job.registration),
    }


def _table(store: IndexStore) -> Mapping[str, Any]:
    lost: list[str] = []
    # The rows are served already: a ClickHouse that has gone since must not fail the run.
    with suppress(IscpError):
        lost = store.lost()
    return {
        "dagster/table_name": f"{store.shape.database}.{store.shape.view}",
        "dagster/column_schema": clickhouse_schema(store),
        **({"lost_columns": lost} if lost else {}),
    }
