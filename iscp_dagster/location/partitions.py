"""The Dagster partitions of a table's tenants: one for each, or the buckets that they share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from dagster import DynamicPartitionsDefinition, PartitionsDefinition, StaticPartitionsDefinition

from iscp_dagster.clickhouse.tables.buckets import compute_bucket
from iscp_dagster.location.names import get_partitions_name
from iscp_dagster.model.declared.tables import DEFAULT_TENANT, SourceTable
from iscp_dagster.sync.deployment import Deployment


def build_partitions_def(source: SourceTable) -> PartitionsDefinition[str]:
    """Each tenant or bucket; a table without tenants has the one partition `default`."""
    if source.tenant is None:
        return StaticPartitionsDefinition([DEFAULT_TENANT])
    if source.buckets:
        return StaticPartitionsDefinition(
            [_format_bucket(number, source.buckets) for number in range(source.buckets)]
        )
    return DynamicPartitionsDefinition(name=get_partitions_name(source))


def get_partition(source: SourceTable, tenant: str) -> str:
    """The partition that shows the tenant."""
    if source.buckets:
        return _format_bucket(compute_bucket(tenant, source.buckets), source.buckets)
    return tenant


def group_by_partition(source: SourceTable, tenants: Iterable[str]) -> Mapping[str, list[str]]:
    """The tenants by partition, in their order."""
    groups: dict[str, list[str]] = defaultdict(list)
    for tenant in tenants:
        groups[get_partition(source, tenant)].append(tenant)
    return groups


def list_partition_tenants(
    deployment: Deployment,
    source: SourceTable,
    partitions: Collection[str],
    *,
    to_load: bool = False,
) -> list[str]:
    """The tenants of the partitions, sorted: those named, or all with rows or jobs in a bucket.

    If `to_load`, also those that the source's `load` can load before it has them.
    """
    if not source.buckets:
        return sorted(partitions)
    delta_log = deployment.make_delta_log(source)
    all_tenants = {
        *delta_log.list_tenants(),
        *deployment.log.list_tenants(delta_log.get_table_id()),
    }
    if to_load and source.tenants is not None:
        all_tenants |= {*source.tenants()}
    return sorted(tenant for tenant in all_tenants if get_partition(source, tenant) in partitions)


def _format_bucket(number: int, buckets: int) -> str:
    return f"bucket-{number:0{len(str(buckets - 1))}}"
