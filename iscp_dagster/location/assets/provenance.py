"""What an index's rows were built from, as Dagster records it: tags on its materializations.

In a run of assets Dagster adds these tags itself; the run of a job without assets must add them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from dagster import AssetKey, DagsterInstance
from dagster._core.definitions.data_version import (
    CODE_VERSION_TAG,
    DATA_VERSION_IS_USER_PROVIDED_TAG,
    DEFAULT_DATA_VERSION,
    NULL_EVENT_POINTER,
    get_input_data_version_tag,
    get_input_event_pointer_tag,
)

from iscp_dagster.joblog.sql.statements import portions
from iscp_dagster.location.assets.data_versions import event_type, reported
from iscp_dagster.location.names import source_key
from iscp_dagster.model.declared.tables import SourceTable

EARLIER = "1"
"""Points to an event before all of a tenant's: Dagster compares the version there with the latest,
and takes a missing pointer for the latest."""


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What Dagster knows about a source's tenants: latest data versions, and their events."""

    key: AssetKey
    run_id: str
    versions: Mapping[str, str]
    pointers: Mapping[str, int]

    @classmethod
    def of(
        cls, instance: DagsterInstance, source: SourceTable, tenants: Collection[str], run_id: str
    ) -> Provenance:
        """Ask the instance. Costs two statements per 5,000 tenants."""
        key, pointers = source_key(source), dict[str, int]()
        for some in portions(sorted(tenants)):
            pointers |= instance.event_log_storage.get_latest_storage_id_by_partition(
                key, event_type(source), set(some)
            )
        versions = reported(instance, source, tenants)
        return cls(key=key, run_id=run_id, versions=versions, pointers=pointers)

    def tags(self, tenant: str, upto: int) -> Mapping[str, str]:
        """The tags on rows of the tenant that agree with the source up to the version `upto`.

        If the source has changed since, they say that the rows are behind.
        """
        version = self.versions.get(tenant) or DEFAULT_DATA_VERSION.value
        pointer = str(self.pointers.get(tenant, NULL_EVENT_POINTER))
        if version.isdigit() and int(version) > upto:
            version, pointer = str(upto), EARLIER
        return {
            CODE_VERSION_TAG: self.run_id,
            DATA_VERSION_IS_USER_PROVIDED_TAG: "true",
            get_input_data_version_tag(self.key): version,
            get_input_event_pointer_tag(self.key): pointer,
        }
