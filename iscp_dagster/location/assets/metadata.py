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


def facts_if_known(delta_log: DeltaLog, version: int | None = None) -> Mapping[str, Any]:
    """The facts of `log_facts`; none if they cannot be read, so that other news still go out."""
    try:
        return log_facts(delta_log, version)
    except Exception:  # noqa: BLE001 - whoever reads the log next reports the error
        return {}


def log_facts(delta_log: DeltaLog, version: int | None = None) -> Mapping[str, Any]:
    """The table's commit, identity and columns as of `version` (None: the latest).

    Does not look at its files.
    """
    commit = delta_log.latest() if version is None else delta_log.moment(version)
    return {
        "source_time": MetadataValue.timestamp(commit.at),
        "table_id": delta_log.table_id(version),
        "path": MetadataValue.path(delta_log.location),
        "dagster/column_schema": delta_schema(delta_log.facts(version).fields),
    }
