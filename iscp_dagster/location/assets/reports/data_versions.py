"""A source partition's data version: the last commit that changed that tenant or bucket.

Dagster shows an index as stale if its source has another data version than the one it was built
from. So everything that reports versions (the runner, a load, an index run ahead of the runner)
reports the same one for the same state, and no newer one for a partition that did not change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.joblog.sql.statements import split_for_statements
from iscp_dagster.location.assets.metadata import try_read_log_facts
from iscp_dagster.location.internals import DATA_VERSION_TAG
from iscp_dagster.location.names import get_source_asset_key
from iscp_dagster.location.partitions import group_by_partition
from iscp_dagster.model.declared.tables import SourceTable

AssetEvent = dg.AssetObservation | dg.AssetMaterialization


def build_version_event(
    source: SourceTable, partition: str, version: int, metadata: Mapping[str, Any] | None = None
) -> AssetEvent:
    """An event that reports `version` as the last to change the partition.

    Dagster compares observations only for tables that others write; for a table that this location
    can load it compares materializations, so this reports one.
    """
    kind = dg.AssetMaterialization if source.load else dg.AssetObservation
    return kind(
        asset_key=get_source_asset_key(source),
        partition=partition,
        metadata={"version": version, **(metadata or {})},
        tags={DATA_VERSION_TAG: str(version)},
    )


def get_version_event_type(source: SourceTable) -> dg.DagsterEventType:
    """The type of the events that report versions; see `build_version_event`."""
    if source.load:
        return dg.DagsterEventType.ASSET_MATERIALIZATION
    return dg.DagsterEventType.ASSET_OBSERVATION


def read_reported_versions(
    instance: dg.DagsterInstance, source: SourceTable, partitions: Collection[str]
) -> dict[str, str]:
    """The data version last reported for each partition; those without one are left out."""
    return read_latest_versions(
        instance, get_source_asset_key(source), get_version_event_type(source), partitions
    )


def read_latest_versions(
    instance: dg.DagsterInstance,
    key: dg.AssetKey,
    kind: dg.DagsterEventType,
    partitions: Collection[str],
) -> dict[str, str]:
    """The data version of each partition's latest event of that kind; no entry without one."""
    versions: dict[str, str] = {}
    for portion in split_for_statements(sorted(partitions)):
        tags_by_partition = instance.event_log_storage.get_latest_tags_by_partition(
            key, kind, [DATA_VERSION_TAG], asset_partitions=portion
        )
        versions |= {
            partition: tags.get(DATA_VERSION_TAG, "")
            for partition, tags in tags_by_partition.items()
        }
    return versions


@dataclass(frozen=True)
class DataVersions:
    """The data versions of `source`: reported ones, and those as of version `upto` of its log."""

    instance: dg.DagsterInstance
    source: SourceTable
    delta_log: DeltaLog
    upto: int
    _changes_by_version: dict[int, Mapping[str, int] | None] = field(default_factory=dict)

    def build_unreported_events(self, tenants: Collection[str]) -> list[AssetEvent]:
        """Events for the tenants' partitions whose last change has not been reported."""
        partitions = sorted(group_by_partition(self.source, tenants))
        reported = self._read_reported_versions(partitions)
        pairs = (
            (partition, self._find_version_since(partition, reported.get(partition)))
            for partition in partitions
        )
        unreported = {
            partition: version for partition, version in pairs if version != reported.get(partition)
        }
        # Dagster shows only the table facts in the latest event.
        facts = try_read_log_facts(self.delta_log, self.upto) if unreported else {}
        return [
            build_version_event(self.source, partition, version, facts)
            for partition, version in unreported.items()
        ]

    def get_current_version(self, partition: str) -> int:
        """The last version that changed the partition; `upto` if that is unknown."""
        reported = self._read_reported_versions([partition])
        return self._find_version_since(partition, reported.get(partition))

    def _read_reported_versions(self, partitions: Collection[str]) -> dict[str, int]:
        versions = read_reported_versions(self.instance, self.source, partitions)
        return {partition: int(text) for partition, text in versions.items() if text.isdigit()}

    def _find_version_since(self, partition: str, reported: int | None) -> int:
        if reported is None or reported >= self.upto:
            return self.upto if reported is None else reported
        if reported not in self._changes_by_version:
            self._changes_by_version[reported] = self._find_last_changes(reported)
        changes = self._changes_by_version[reported]
        return self.upto if changes is None else changes.get(partition, reported)

    def _find_last_changes(self, after: int) -> Mapping[str, int] | None:
        """By partition, the last version since `after` that changed it; None if unknown."""
        changes = self.delta_log.find_last_changes(after, self.upto)
        if changes is None:
            return None
        return {
            partition: max(changes[tenant] for tenant in tenants)
            for partition, tenants in group_by_partition(self.source, changes).items()
        }
