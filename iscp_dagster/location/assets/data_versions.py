"""A source partition's data version: the last commit that changed that tenant.

Dagster shows an index as behind when its source has another data version than the one it was made
of. So whoever reports a version (the runner, a load, an index run that is ahead of the runner)
reports the same for the same state, and never a newer one for a tenant that did not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dagster import (
    AssetMaterialization,
    AssetObservation,
    AssetRecordsFilter,
    DagsterInstance,
)
from dagster._core.definitions.data_version import DATA_VERSION_TAG

from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.location.names import source_key
from iscp_dagster.model.declared.tables import SourceTable

AssetEvent = AssetObservation | AssetMaterialization


def version_event(
    source: SourceTable, tenant: str, version: int, metadata: Mapping[str, Any] | None = None
) -> AssetEvent:
    """The report that `version` was the last to change the tenant.

    Dagster compares observations only for tables that others write; of a table that this location
    can load, it compares materializations, so those are reported.
    """
    kind = AssetMaterialization if source.load else AssetObservation
    return kind(
        asset_key=source_key(source),
        partition=tenant,
        metadata={"version": version, **(metadata or {})},
        tags={DATA_VERSION_TAG: str(version)},
    )


@dataclass(frozen=True)
class DataVersions:
    """What was reported of `source`, and what holds as of version `upto` of its log."""

    instance: DagsterInstance
    source: SourceTable
    delta_log: DeltaLog
    upto: int
    _changes: dict[int, Mapping[str, int] | None] = field(default_factory=dict)

    def news(self, tenants: Iterable[str]) -> list[AssetEvent]:
        """Reports of the tenants whose last change nobody has reported."""
        found = ((tenant, self.reported(tenant), self.current(tenant)) for tenant in tenants)
        return [version_event(self.source, t, now) for t, before, now in found if before != now]

    def current(self, tenant: str) -> int:
        """The last version that changed the tenant; where nobody can tell, `upto`."""
        before = self.reported(tenant)
        if before is None or before >= self.upto:
            return self.upto if before is None else before
        if before not in self._changes:
            self._changes[before] = self.delta_log.last_changes(before, self.upto)
        changes = self._changes[before]
        return self.upto if changes is None else changes.get(tenant, before)

    def reported(self, tenant: str) -> int | None:
        """The version reported last, None for none."""
        wanted = AssetRecordsFilter(source_key(self.source), asset_partitions=[tenant])
        found: list[AssetEvent | None] = []
        if self.source.load:
            made = self.instance.fetch_materializations(wanted, limit=1)
            found += [record.asset_materialization for record in made.records]
        else:
            seen = self.instance.fetch_observations(wanted, limit=1)
            found += [record.asset_observation for record in seen.records]
        tags = next((event.tags or {} for event in found if event is not None), {})
        text = tags.get(DATA_VERSION_TAG, "")
        return int(text) if text.isdigit() else None
