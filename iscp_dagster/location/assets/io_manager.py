"""The IO manager of ClickHouse: stores rows, shows what was stored, and loads served rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import dagster as dg

from iscp_dagster.clickhouse.connect.quoting import ident
from iscp_dagster.clickhouse.tables.indexes import IndexStore
from iscp_dagster.location.assets.iterations import InStep
from iscp_dagster.location.assets.metadata import told_metadata
from iscp_dagster.location.frames import Frame, arrow_of, frame_table, table_of
from iscp_dagster.location.names import CLICKHOUSE, SHARD, TENANT_COLUMN
from iscp_dagster.model.consumers.kinds import ConsumerKind
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import ConfigError, IscpError
from iscp_dagster.model.jobs import Job
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.iteration.outcomes import Delivery
from iscp_dagster.sync.writing.writer import IndexWriter


@dataclass(frozen=True)
class OutcomeIOManager(dg.IOManager):
    """Reports what iterations did for consumers of a kind that keeps no tables."""

    kind: ConsumerKind

    def handle_output(self, context: dg.OutputContext, obj: Delivery | InStep | Outcomes) -> None:
        """Show on the output what was done; the watermarks have moved already."""
        _show(context, obj)

    def load_input(self, context: dg.InputContext) -> Any:
        """Raises ConfigError: there is no table."""
        name = context.asset_key.to_user_string()
        raise ConfigError(
            f"The asset {name} is a {self.kind.called}, which keeps no rows; depend on it without "
            f"loading it (deps=){self.kind.see and ', and '}{self.kind.see}."
        )


class ClickHouseIOManager(dg.IOManager):
    """Writes index tables, and people's own frames, into ClickHouse; nothing else of a run does.

    An iteration calls its `writer` index by index, before Dagster has the outputs; when Dagster
    then calls `handle_output`, that finds the rows in place (decision 44).
    """

    def __init__(self, deployment: Callable[[], Deployment]) -> None:
        self._deployment = deployment

    @cached_property
    def writer(self) -> IndexWriter:
        """What an iteration writes with."""
        return IndexWriter(self._deployment())

    def handle_output(
        self, context: dg.OutputContext, obj: Delivery | InStep | Outcomes | Frame
    ) -> None:
        """Put in place what is not yet, and show on the output what was stored. Idempotent.

        A frame replaces the rows of the run's partitions, or of an asset without partitions the
        table's. Raises IscpError.
        """
        if isinstance(obj, Outcomes):
            self.writer.place(obj.delivered)
        elif isinstance(obj, Delivery):
            self.writer.place([obj])
        elif not isinstance(obj, InStep):
            return context.add_output_metadata(self._store(context, obj))
        return _show(context, obj)

    def _store(self, context: dg.OutputContext, frame: Frame) -> dict[str, Any]:
        rows = arrow_of(frame, context.asset_key.to_user_string())
        table = frame_table(self._deployment().endpoint, context, context.definition_metadata)
        if table.partition is not None and not context.has_asset_partitions:
            raise ConfigError(
                f"The asset {context.asset_key.to_user_string()} has partitions, and the run is "
                "for none of them. Choose those that it writes."
            )
        partitions = context.asset_partition_keys if table.partition is not None else []
        table.replace(rows, partitions=partitions, run_id=context.run_id)
        return {"dagster/row_count": rows.num_rows, "dagster/table_name": table.shown}

    def load_input(self, context: dg.InputContext) -> Any:
        """The rows of the input's partitions, as an Arrow table of the user's columns."""
        upstream = context.upstream_output
        metadata = upstream.definition_metadata if upstream else {}
        if TENANT_COLUMN not in metadata:
            table = frame_table(self._deployment().endpoint, context, metadata)
            chosen = context.has_asset_partitions
            return table.load(context.asset_partition_keys if chosen else None)
        column = str(metadata[TENANT_COLUMN])
        database, name = table_of(context.asset_key, metadata)
        where = f" WHERE toString({ident(column)}) IN {{tenants:Array(String)}}" if column else ""
        endpoint = self._deployment().endpoints[int(metadata.get(SHARD, 0))]
        view = ident(endpoint.holds(database), name)
        with endpoint.errors(f"read {view}"):
            parameters = {"tenants": list(context.asset_partition_keys)} if column else {}
            client = endpoint.client()
            return client.query_arrow(f"SELECT * FROM {view}{where}", parameters=parameters)


def _show(context: dg.OutputContext, obj: Delivery | InStep | Outcomes) -> None:
    shown_ = obj.summary() if isinstance(obj, Outcomes) else shown(obj, {})
    context.add_output_metadata(shown_)


def needed(source: SourceTable) -> set[str]:
    """The resources that an iteration of the table needs."""
    return {"iscp", *([CLICKHOUSE] if source.indexes else [])}


def writer_of(
    context: dg.AssetExecutionContext | dg.OpExecutionContext, source: SourceTable
) -> IndexWriter | None:
    """The writer of the run's IO manager; None where the table has no index."""
    return getattr(context.resources, CLICKHOUSE).writer if source.indexes else None


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """What a run of many tenants stored in one index, or found in step.

    Each tenant's materialization is reported while the run goes on (`reporting`).
    """

    outcomes: Sequence[Delivery | InStep]

    @property
    def delivered(self) -> list[Delivery]:
        return [each for each in self.outcomes if isinstance(each, Delivery)]

    def summary(self) -> dict[str, Any]:
        """The totals for the run's page."""
        invoked = sum(each.told_in_all.get("invocations", 0) for each in self.delivered)
        return {
            **({"invocations": invoked} if invoked else {}),
            "tenants": len({each.tenant for each in self.outcomes}),
            "rows_inserted": sum(each.inserted for each in self.delivered),
            "rows_deleted": sum(each.deleted for each in self.delivered),
            "bytes": sum(each.bytes for each in self.delivered),
        }


def clickhouse_schema(store: IndexStore) -> dg.TableSchema:
    """The index's columns with their ClickHouse types."""
    types = store.shape.column_types()
    return dg.TableSchema(
        [
            dg.TableColumn(name=f.name, type=types[f.name], description=f.comment or None)
            for f in store.shape.fields
        ]
    )


def shown(outcome: Delivery | InStep, tables: dict[int, Mapping[str, Any]]) -> dict[str, Any]:
    """The metadata of a materialization; Dagster plots the numbers.

    `tables` keeps what ClickHouse says about a table, for deliveries that share it.
    """
    if isinstance(outcome, InStep):
        return dict(in_step(outcome.job))
    store = outcome.store
    if store is None:
        return _delivered(outcome)
    if id(store) not in tables:
        tables[id(store)] = _table(store)
    return {**_delivered(outcome), **tables[id(store)]}


def _delivered(delivery: Delivery) -> dict[str, Any]:
    written = delivery.written
    rows = delivery.inserted + delivery.deleted
    # Not the time now: Dagster stores events one by one, maybe long after rows were searchable.
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
        **told_metadata(delivery.told_in_all),
    }


def in_step(job: Job) -> Mapping[str, Any]:
    """The metadata of the materialization of a job that had nothing to catch up with."""
    at = job.watermark
    return {
        "from_version": at.version,
        "to_version": at.version,
        "source_time": dg.MetadataValue.timestamp(at.at),
        "read": dg.MetadataValue.text("nothing: already in step with the source"),
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
