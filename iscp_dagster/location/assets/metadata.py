"""Facts about tables and iterations as Dagster shows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dagster import MetadataValue, TableColumn, TableColumnConstraints, TableSchema

from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.model.declared.schema import DeltaField


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


def log_facts(delta_log: DeltaLog) -> Mapping[str, Any]:
    """The table's latest commit, identity and columns, known without looking at its files."""
    latest = delta_log.latest()
    return {
        "source_time": MetadataValue.timestamp(latest.at),
        "table_id": delta_log.table_id(),
        "path": MetadataValue.path(delta_log.location),
        "dagster/column_schema": delta_schema(delta_log.facts().fields),
    }
