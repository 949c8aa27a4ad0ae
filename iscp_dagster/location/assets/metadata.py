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
from iscp_dagster.serviceconsumers.runtime_protocol import INVOKED
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.upkeep.outbox import describe_events


def build_delta_schema(fields: Iterable[DeltaField]) -> TableSchema:
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


def try_read_log_facts(delta_log: DeltaLog, version: int | None = None) -> Mapping[str, Any]:
    """The facts of `read_log_facts`; empty if unreadable, so that other news are still reported."""
    try:
        return read_log_facts(delta_log, version)
    except Exception:  # noqa: BLE001 - the next reader of the log reports the error
        return {}


def read_log_facts(delta_log: DeltaLog, version: int | None = None) -> Mapping[str, Any]:
    """The table's commit, identity and columns as of `version` (None: the latest).

    Does not read its data files.
    """
    commit = delta_log.get_latest_moment() if version is None else delta_log.get_moment(version)
    return {
        "source_time": MetadataValue.timestamp(commit.at),
        "table_id": delta_log.get_table_id(version),
        "path": MetadataValue.path(delta_log.location),
        "dagster/column_schema": build_delta_schema(delta_log.get_facts(version).fields),
    }


def try_read_event_counts(
    deployment: Deployment, source: SourceTable, name: str
) -> Mapping[str, Any]:
    """Counts of a trigger's events; empty for an index, or if they cannot be read."""
    facts: dict[str, Any] = {}
    # The events are recorded already: a log that has stopped since must not fail the run.
    with suppress(IscpError):
        for trigger in source.triggers:
            if trigger.name == name:
                facts = describe_events(deployment, trigger)
    if not facts:
        return {}
    oldest, endpoints = facts.pop("oldest_pending"), facts.pop("endpoints")
    if oldest is not None:
        facts["oldest_pending"] = MetadataValue.timestamp(oldest)
    states = "; ".join(f"{name} {state}" for name, state in endpoints.items())
    return {**facts, "endpoints": MetadataValue.text(states)}


def build_consumer_metadata(reported: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a consumer reported besides rows; invocations as a table with links."""
    if INVOKED not in reported:
        return reported
    lines = ["| versions | chunk | rows | invocation | status |", "|---|---|---|---|---|"]
    for invocation in reported[INVOKED]:
        attached = ", was there already" if invocation["attached"] else ""
        status = f"{invocation['status']}{attached}"
        link = f"[{invocation['id']}]({invocation['link']})"
        chunk = f"{invocation['versions']} | {invocation['chunk']}"
        lines.append(f"| {chunk} | {invocation['rows']} | {link} | {status} |")
    return {**reported, INVOKED: MetadataValue.md("\n".join(lines))}
