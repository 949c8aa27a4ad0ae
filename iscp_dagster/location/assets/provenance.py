"""What an index's rows were built from, as Dagster records it: tags on its materializations.

In a run of assets Dagster adds these tags itself; the run of a job without assets must add them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from dagster import AssetKey, DagsterInstance

from iscp_dagster.joblog.sql.statements import portions
from iscp_dagster.location import internals
from iscp_dagster.location.assets.data_versions import event_type, reported
from iscp_dagster.location.names import job_key, source_key
from iscp_dagster.model.declared.lineage import parents
from iscp_dagster.model.declared.tables import SourceTable

EARLIER = "1"
"""Points to an event before all of a tenant's: Dagster compares the version there with the latest,
and takes a missing pointer for the latest."""

LATEST = str(2**63 - 1)
"""Points to no event and has none after it."""


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What Dagster knows about a source's tenants: latest data versions, and their events."""

    key: AssetKey
    run_id: str
    versions: Mapping[str, str]
    pointers: Mapping[str, int]
    views: Mapping[str, AssetKey]
    """The view that a view or trigger is of, by their jobs' names."""

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
        return cls(
            key=key, run_id=run_id, versions=versions, pointers=pointers, views=views_of(source)
        )

    def tags(self, name: str, tenant: str, upto: int) -> Mapping[str, str]:
        """The tags on the job's rows of the tenant that agree with the source up to `upto`.

        If the source has changed since, they say that the rows are behind.
        """
        version = self.versions.get(tenant) or internals.DEFAULT_DATA_VERSION.value
        pointer = str(self.pointers.get(tenant, internals.NULL_EVENT_POINTER))
        if version.isdigit() and int(version) > upto:
            version, pointer = str(upto), EARLIER
        return {
            internals.CODE_VERSION_TAG: self.run_id,
            internals.DATA_VERSION_IS_USER_PROVIDED_TAG: "true",
            internals.get_input_data_version_tag(self.key): version,
            internals.get_input_event_pointer_tag(self.key): pointer,
            **view_tags(self.views.get(name), upto),
        }


def views_of(source: SourceTable) -> dict[str, AssetKey]:
    """The asset of the view that a view or trigger is of, by their jobs' names."""
    return {name: job_key(source, view) for name, view in parents(source).items()}


def view_tags(view: AssetKey | None, upto: int) -> dict[str, str]:
    """The tags that say which version of the view its rows agree with; none without a view.

    Both are built from the source. So whether the rows are behind is told by the source alone, or
    a view that is reported a moment later would make them look old.
    """
    if view is None:
        return {}
    return {
        internals.get_input_data_version_tag(view): str(upto),
        internals.get_input_event_pointer_tag(view): LATEST,
    }
