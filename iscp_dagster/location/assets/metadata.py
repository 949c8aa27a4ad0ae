"""Facts about tables and iterations as Dagster shows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from dagster import MetadataValue, TableColumn, TableColumnConstraints, TableSchema

from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.model.declared.schema import DeltaField
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import IscpError
from iscp_dagster.serviceconsumers.services import INVOKED
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.upkeep.outbox import numbers_of


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


def events_if_known(deployment: Deployment, source: SourceTable, name: str) -> Mapping[str, Any]:
    """What became of a trigger's events; nothing for an index, or if it cannot be read."""
    found: dict[str, Any] = {}
    # The events are recorded already: a log that has gone since must not fail the run.
    with suppress(IscpError):
        for trigger in source.triggers:
            if trigger.name == name:
                found = numbers_of(deployment, trigger)
    if not found:
        return {}
    oldest, endpoints = found.pop("oldest_pending"), found.pop("endpoints")
    if oldest is not None:
        found["oldest_pending"] = MetadataValue.timestamp(oldest)
    said = "; ".join(f"{name} {state}" for name, state in endpoints.items())
    return {**found, "endpoints": MetadataValue.text(said)}


def told_metadata(told: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a consumer reported besides rows; of invocations, a table with a link to each."""
    if INVOKED not in told:
        return told
    lines = ["| versions | chunk | rows | invocation | status |", "|---|---|---|---|---|"]
    for each in told[INVOKED]:
        status = f"{each['status']}, was there already" if each["attached"] else each["status"]
        link = f"[{each['id']}]({each['link']})"
        chunk = f"{each['versions']} | {each['chunk']}"
        lines.append(f"| {chunk} | {each['rows']} | {link} | {status} |")
    return {**told, INVOKED: MetadataValue.md("\n".join(lines))}
