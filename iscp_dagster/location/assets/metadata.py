"""Facts about tables and iterations as Dagster shows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from dagster import MetadataValue, TableColumn, TableColumnConstraints, TableSchema

from iscp_dagster.clickhouse.tables.indexes import IndexStore
from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.model.clock import Clock
from iscp_dagster.model.errors import IscpError
from iscp_dagster.model.jobs import Job
from iscp_dagster.model.schema import DeltaField
from iscp_dagster.sync.iterate import Delivery


def delta_schema(fields: Iterable[DeltaField]) -> TableSchema:
    """The source's columns with their Delta types."""
    return TableSchema(
        [
            TableColumn(
                name=field.name,
                type=str(field.type),
                description=field.comment or None,
                constraints=TableColumnConstraints(nullable=field.nullable),
            )
            for field in fields
        ]
    )


def log_facts(log: DeltaLog) -> Mapping[str, Any]:
    """The table's latest commit, identity and columns, which cost no look at its files."""
    latest = log.latest()
    return {
        "source_time": MetadataValue.timestamp(latest.at),
        "table_id": log.table_id(),
        "path": MetadataValue.path(log.location),
        "dagster/column_schema": delta_schema(log.facts().fields),
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


def delivered(delivery: Delivery, clock: Clock) -> Mapping[str, Any]:
    """What an index's materialization shows; the numbers are plotted by Dagster."""
    written = delivery.written
    rows = delivery.inserted + delivery.deleted
    lag = (clock() - delivery.to.at).total_seconds()
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
        "bytes": written.bytes,
        "chunks": written.chunks,
        "job_id": str(delivery.claim.job_id),
        **({} if delivery.store is None else _table(delivery.store)),
    }


def in_step(job: Job) -> Mapping[str, Any]:
    """What the materialization of a job shows that had nothing to catch up with."""
    at = job.watermark
    return {
        "from_version": at.version,
        "to_version": at.version,
        "source_time": MetadataValue.timestamp(at.at),
        "read": MetadataValue.text("nothing: in step with the source already"),
        "rows_inserted": 0,
        "rows_deleted": 0,
        "job_id": str(job.job_id),
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
