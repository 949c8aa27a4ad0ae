"""Dagster's record of what an index's rows were built from: tags on its materializations.

In a run of assets Dagster adds these tags itself; a run of a job without assets must add them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from dagster import AssetKey, DagsterInstance

from iscp_dagster.joblog.sql.statements import split_for_statements
from iscp_dagster.location import internals
from iscp_dagster.location.assets.reports.data_versions import (
    get_version_event_type,
    read_reported_versions,
)
from iscp_dagster.location.names import get_job_asset_key, get_source_asset_key
from iscp_dagster.model.declared.lineage import find_parents
from iscp_dagster.model.declared.tables import SourceTable

EARLIER = "1"
"""Points before all of a partition's events: Dagster compares that version with the latest, and
takes a missing pointer for the latest."""

LATEST = str(2**63 - 1)
"""Points after all events."""


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What Dagster knows about a source's partitions: latest data versions and their events."""

    key: AssetKey
    run_id: str
    versions: Mapping[str, str]
    pointers: Mapping[str, int]
    views: Mapping[str, AssetKey]
    """The parent view of each view and trigger, by job name."""

    @classmethod
    def read_instance(
        cls,
        instance: DagsterInstance,
        source: SourceTable,
        partitions: Collection[str],
        run_id: str,
    ) -> Provenance:
        """Query the instance. Costs two statements per 5,000 partitions."""
        key, pointers = get_source_asset_key(source), dict[str, int]()
        for portion in split_for_statements(sorted(partitions)):
            pointers |= instance.event_log_storage.get_latest_storage_id_by_partition(
                key, get_version_event_type(source), set(portion)
            )
        versions = read_reported_versions(instance, source, partitions)
        return cls(
            key=key,
            run_id=run_id,
            versions=versions,
            pointers=pointers,
            views=get_view_keys(source),
        )

    def build_tags(
        self, name: str, partition: str, upto: int, *, complete: bool = True
    ) -> Mapping[str, str]:
        """The tags for the partition's rows, which agree with the source up to `upto`.

        If the source has changed since, or not all of them agree with it (`complete`), they mark
        the rows as stale.
        """
        version = self.versions.get(partition) or internals.DEFAULT_DATA_VERSION.value
        pointer = str(self.pointers.get(partition, internals.NULL_EVENT_POINTER))
        if not complete and version.isdigit():
            upto = min(upto, int(version) - 1)
        if version.isdigit() and int(version) > upto:
            version, pointer = str(upto), EARLIER
        return {
            internals.CODE_VERSION_TAG: self.run_id,
            internals.DATA_VERSION_IS_USER_PROVIDED_TAG: "true",
            internals.get_input_data_version_tag(self.key): version,
            internals.get_input_event_pointer_tag(self.key): pointer,
            **build_view_tags(self.views.get(name), upto),
        }


def get_view_keys(source: SourceTable) -> dict[str, AssetKey]:
    """The asset of each view's or trigger's parent view, by job name."""
    return {name: get_job_asset_key(source, view) for name, view in find_parents(source).items()}


def build_view_tags(view: AssetKey | None, upto: int) -> dict[str, str]:
    """The tags for the view's version that the rows agree with; none without a view.

    Both are built from the source. So only the source may mark the rows as stale: a view that is
    reported a moment later must not.
    """
    if view is None:
        return {}
    return {
        internals.get_input_data_version_tag(view): str(upto),
        internals.get_input_event_pointer_tag(view): LATEST,
    }
