"""What an index's rows were built from, as Dagster records it: tags on its materializations.

In a run of assets Dagster adds these tags itself; the run of a job without assets must add them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dagster import DagsterInstance
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


def provenance(
    instance: DagsterInstance, source: SourceTable, tenants: Collection[str], run_id: str
) -> dict[str, Mapping[str, str]]:
    """By tenant, the tags that say what its indexes were built from."""
    versions, pointers = reported(instance, source, tenants), dict[str, int]()
    for some in portions(sorted(tenants)):
        pointers |= instance.event_log_storage.get_latest_storage_id_by_partition(
            source_key(source), event_type(source), set(some)
        )
    key = source_key(source)
    version, pointer = get_input_data_version_tag(key), get_input_event_pointer_tag(key)
    return {
        tenant: {
            CODE_VERSION_TAG: run_id,
            DATA_VERSION_IS_USER_PROVIDED_TAG: "true",
            version: versions.get(tenant) or DEFAULT_DATA_VERSION.value,
            pointer: str(pointers[tenant]) if tenant in pointers else NULL_EVENT_POINTER,
        }
        for tenant in tenants
    }
