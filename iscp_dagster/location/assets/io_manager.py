"""The ClickHouse IO manager: stores rows, shows what was stored, and loads served rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import dagster as dg

from iscp_dagster.clickhouse.connect.quoting import quote_identifier
from iscp_dagster.clickhouse.tables.index_store import IndexStore
from iscp_dagster.location.assets.iterations import InStepJob
from iscp_dagster.location.assets.metadata import build_consumer_metadata
from iscp_dagster.location.frames import Frame, build_frame_table, get_database_and_table, to_arrow
from iscp_dagster.location.names import CLICKHOUSE_IO_MANAGER, SHARD, TENANT_COLUMN
from iscp_dagster.model.consumers.kinds import ConsumerKind
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import ConfigError, IscpError
from iscp_dagster.model.jobs import Job
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.iteration.outcomes import RowDelivery
from iscp_dagster.sync.writing.writer import IndexWriter


@dataclass(frozen=True)
class OutcomeIOManager(dg.IOManager):
    """Reports what iterations did for consumers whose kind keeps no tables."""

    kind: ConsumerKind

    def handle_output(
        self, context: dg.OutputContext, obj: RowDelivery | InStepJob | ConsumerOutcomes
    ) -> None:
        """Show on the output what was done; the watermarks have moved already."""
        _show_outcome(context, obj)

    def load_input(self, context: dg.InputContext) -> Any:
        """Raises ConfigError: there is no table."""
        name = context.asset_key.to_user_string()
        raise ConfigError(
            f"The asset {name} is a {self.kind.noun}, which keeps no rows; depend on it without "
            f"loading it (deps=){self.kind.see and ', and '}{self.kind.see}."
        )


class ClickHouseIOManager(dg.IOManager):
    """Writes index tables, and user-defined assets' frames, into ClickHouse: a run's only writer.

    An iteration calls its `writer` index by index, before Dagster has the outputs; when Dagster
    then calls `handle_output`, the rows are in place (decision 44).
    """

    def __init__(self, deployment: Callable[[], Deployment]) -> None:
        self._deployment = deployment

    @cached_property
    def writer(self) -> IndexWriter:
        """The writer for iterations."""
        return IndexWriter(self._deployment())

    def handle_output(
        self, context: dg.OutputContext, obj: RowDelivery | InStepJob | ConsumerOutcomes | Frame
    ) -> None:
        """Put in place what is not yet, and show on the output what was stored. Idempotent.

        A frame replaces the rows of the run's partitions, or all rows if the asset has no
        partitions. Raises IscpError.
        """
        if isinstance(obj, ConsumerOutcomes):
            self.writer.place(obj.delivered)
        elif isinstance(obj, RowDelivery):
            self.writer.place([obj])
        elif not isinstance(obj, InStepJob):
            return context.add_output_metadata(self._store_frame(context, obj))
        return _show_outcome(context, obj)

    def _store_frame(self, context: dg.OutputContext, frame: Frame) -> dict[str, Any]:
        rows = to_arrow(frame, context.asset_key.to_user_string())
        table = build_frame_table(self._deployment().endpoint, context, context.definition_metadata)
        if table.partition is not None and not context.has_asset_partitions:
            raise ConfigError(
                f"The asset {context.asset_key.to_user_string()} has partitions, and the run is "
                "for none of them. Choose the partitions to write."
            )
        partitions = context.asset_partition_keys if table.partition is not None else []
        table.replace(rows, partitions=partitions, run_id=context.run_id)
        return {"dagster/row_count": rows.num_rows, "dagster/table_name": table.qualified_name}

    def load_input(self, context: dg.InputContext) -> Any:
        """The rows of the input's partitions, as an Arrow table with the user's columns."""
        upstream = context.upstream_output
        metadata = upstream.definition_metadata if upstream else {}
        if TENANT_COLUMN not in metadata:
            table = build_frame_table(self._deployment().endpoint, context, metadata)
            partitioned = context.has_asset_partitions
            return table.load(context.asset_partition_keys if partitioned else None)
        column = str(metadata[TENANT_COLUMN])
        database, name = get_database_and_table(context.asset_key, metadata)
        where = (
            f" WHERE toString({quote_identifier(column)}) IN {{tenants:Array(String)}}"
            if column
            else ""
        )
        endpoint = self._deployment().endpoints[int(metadata.get(SHARD, 0))]
        view = quote_identifier(endpoint.resolve_database(database), name)
        with endpoint.translate_errors(f"read {view}"):
            parameters = {"tenants": list(context.asset_partition_keys)} if column else {}
            client = endpoint.get_client()
            return client.query_arrow(f"SELECT * FROM {view}{where}", parameters=parameters)


def _show_outcome(
    context: dg.OutputContext, obj: RowDelivery | InStepJob | ConsumerOutcomes
) -> None:
    metadata = (
        obj.summarize() if isinstance(obj, ConsumerOutcomes) else build_outcome_metadata(obj, {})
    )
    context.add_output_metadata(metadata)


def get_required_resources(source: SourceTable) -> set[str]:
    """The resources that an iteration of the table needs."""
    return {"iscp", *([CLICKHOUSE_IO_MANAGER] if source.indexes else [])}


def get_index_writer(
    context: dg.AssetExecutionContext | dg.OpExecutionContext, source: SourceTable
) -> IndexWriter | None:
    """The writer of the run's IO manager; None if the table has no index."""
    return getattr(context.resources, CLICKHOUSE_IO_MANAGER).writer if source.indexes else None


@dataclass(frozen=True, kw_only=True)
class ConsumerOutcomes:
    """What a run of several tenants stored in one index, or found in step.

    Each tenant's materialization is reported while the run continues (`reporting`).
    """

    outcomes: Sequence[RowDelivery | InStepJob]

    @property
    def delivered(self) -> list[RowDelivery]:
        return [outcome for outcome in self.outcomes if isinstance(outcome, RowDelivery)]

    def summarize(self) -> dict[str, Any]:
        """The totals, for the run's page."""
        invoked = sum(delivery.total_report.get("invocations", 0) for delivery in self.delivered)
        return {
            **({"invocations": invoked} if invoked else {}),
            "tenants": len({outcome.tenant for outcome in self.outcomes}),
            "rows_inserted": sum(delivery.inserted for delivery in self.delivered),
            "rows_deleted": sum(delivery.deleted for delivery in self.delivered),
            "bytes": sum(delivery.bytes for delivery in self.delivered),
        }


def build_clickhouse_schema(store: IndexStore) -> dg.TableSchema:
    """The index's columns with their ClickHouse types."""
    types = store.shape.get_column_types()
    return dg.TableSchema(
        [
            dg.TableColumn(
                name=field.name, type=types[field.name], description=field.comment or None
            )
            for field in store.shape.fields
        ]
    )


def build_outcome_metadata(
    outcome: RowDelivery | InStepJob, tables: dict[int, Mapping[str, Any]]
) -> dict[str, Any]:
    """The metadata of a materialization; Dagster plots the numbers.

    `tables` caches what ClickHouse says about a table, for deliveries that share it.
    """
    if isinstance(outcome, InStepJob):
        return dict(build_in_step_metadata(outcome.job))
    store = outcome.store
    if store is None:
        return _build_delivery_metadata(outcome)
    if id(store) not in tables:
        tables[id(store)] = read_table_metadata(store)
    return {**_build_delivery_metadata(outcome), **tables[id(store)]}


def _build_delivery_metadata(delivery: RowDelivery) -> dict[str, Any]:
    written = delivery.written
    rows = delivery.inserted + delivery.deleted
    # Not the current time: Dagster stores events one by one, maybe long after rows were searchable.
    assert delivery.published is not None
    lag = (delivery.published - delivery.to.at).total_seconds()
    return {
        "from_version": delivery.range.from_.version,
        "to_version": delivery.to.version,
        "source_time": dg.MetadataValue.timestamp(delivery.to.at),
        "read": dg.MetadataValue.text(f"{delivery.plan.kind.value}: {delivery.plan.reason}"),
        **({"gap": dg.MetadataValue.text(delivery.gap)} if delivery.gap else {}),
        "rows_inserted": delivery.inserted,
        "rows_deleted": delivery.deleted,
        "lag_seconds": round(lag, 3),
        "read_seconds": round(max(written.seconds - written.write_seconds, 0.0), 3),
        "write_seconds": round(written.write_seconds, 3),
        "rows_per_second": round(rows / written.seconds, 1) if written.seconds else 0.0,
        "bytes": delivery.bytes,
        "chunks": written.chunks,
        "registration": str(delivery.claim.registration),
        **build_consumer_metadata(delivery.total_report),
    }


def build_in_step_metadata(job: Job) -> Mapping[str, Any]:
    """The materialization metadata of a job that was in step already."""
    watermark = job.watermark
    return {
        "from_version": watermark.version,
        "to_version": watermark.version,
        "source_time": dg.MetadataValue.timestamp(watermark.at),
        "read": dg.MetadataValue.text("nothing: already in step with the source"),
        "rows_inserted": 0,
        "rows_deleted": 0,
        "registration": str(job.registration),
    }


def read_table_metadata(store: IndexStore) -> Mapping[str, Any]:
    """The index's name and columns in ClickHouse; its name alone while that does not answer."""
    lost_columns: list[str] = []
    # The rows are served already: a ClickHouse that has stopped since must not fail the run.
    with suppress(IscpError):
        lost_columns = store.list_dropped_columns()
    return {
        "dagster/table_name": f"{store.shape.database}.{store.shape.view}",
        "dagster/column_schema": build_clickhouse_schema(store),
        **({"lost_columns": lost_columns} if lost_columns else {}),
    }
