"""A source partition's data version: the last commit that changed that tenant.

Dagster shows an index as behind when its source has another data version than the one it was built
from. So whatever reports versions (the runner, a load, an index run that is ahead of the runner)
reports the same one for the same state, and no newer one for a tenant that did not change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.joblog.sql.statements import portions
from iscp_dagster.location.assets.metadata import facts_if_known
from iscp_dagster.location.internals import DATA_VERSION_TAG
from iscp_dagster.location.names import source_key
from iscp_dagster.model.declared.tables import SourceTable

AssetEvent = dg.AssetObservation | dg.AssetMaterialization


def version_event(
    source: SourceTable, tenant: str, version: int, metadata: Mapping[str, Any] | None = None
) -> AssetEvent:
    """An event that reports `version` as the last to change the tenant.

    Dagster compares observations only for tables that others write; for a table that this location
    can load it compares materializations, so those are reported.
    """
    kind = dg.AssetMaterialization if source.load else dg.AssetObservation
    return kind(
        asset_key=source_key(source),
        partition=tenant,
        metadata={"version": version, **(metadata or {})},
        tags={DATA_VERSION_TAG: str(version)},
    )


def event_type(source: SourceTable) -> dg.DagsterEventType:
    """The type of the events that report versions; see `version_event`."""
    if source.load:
        return dg.DagsterEventType.ASSET_MATERIALIZATION
    return dg.DagsterEventType.ASSET_OBSERVATION


def reported(
    instance: dg.DagsterInstance, source: SourceTable, tenants: Collection[str]
) -> dict[str, str]:
    """The data version last reported for each tenant; tenants without one are left out."""
    return latest(instance, source_key(source), event_type(source), tenants)


def latest(
    instance: dg.DagsterInstance,
    key: dg.AssetKey,
    kind: dg.DagsterEventType,
    tenants: Collection[str],
) -> dict[str, str]:
    """The data version of each tenant's latest event of that kind; leaves out those without."""
    found: dict[str, str] = {}
    for some in portions(sorted(tenants)):
        tags = instance.event_log_storage.get_latest_tags_by_partition(
            key, kind, [DATA_VERSION_TAG], asset_partitions=some
        )
        found |= {tenant: held.get(DATA_VERSION_TAG, "") for tenant, held in tags.items()}
    return found


@dataclass(frozen=True)
class DataVersions:
    """The data versions of `source`: those reported, and those as of version `upto` of its log."""

    instance: dg.DagsterInstance
    source: SourceTable
    delta_log: DeltaLog
    upto: int
    _changes: dict[int, Mapping[str, int] | None] = field(default_factory=dict)

    def news(self, tenants: Collection[str]) -> list[AssetEvent]:
        """Events for the tenants whose last change has not been reported."""
        before = self._before(tenants)
        found = ((tenant, before.get(tenant)) for tenant in tenants)
        now = {tenant: (last, self._current(tenant, last)) for tenant, last in found}
        told = {tenant: last for tenant, (reported, last) in now.items() if reported != last}
        # Of the facts about a table, Dagster shows only those in the latest event.
        facts = facts_if_known(self.delta_log, self.upto) if told else {}
        return [version_event(self.source, tenant, last, facts) for tenant, last in told.items()]

    def current(self, tenant: str) -> int:
        """The last version that changed the tenant; `upto` if that is unknown."""
        return self._current(tenant, self._before([tenant]).get(tenant))

    def _before(self, tenants: Collection[str]) -> dict[str, int]:
        found = reported(self.instance, self.source, tenants)
        return {tenant: int(text) for tenant, text in found.items() if text.isdigit()}

    def _current(self, tenant: str, before: int | None) -> int:
        if before is None or before >= self.upto:
            return self.upto if before is None else before
        if before not in self._changes:
            self._changes[before] = self.delta_log.last_changes(before, self.upto)
        changes = self._changes[before]
        return self.upto if changes is None else changes.get(tenant, before)
