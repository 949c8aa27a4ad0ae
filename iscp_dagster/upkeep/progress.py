"""The progress of an index's first iteration: rows staged, of rows in the source."""

from __future__ import annotations

from dataclasses import dataclass

from iscp_dagster.clickhouse.kinds.index_kind import resolve_index
from iscp_dagster.model.consumers.kinds import is_index
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.jobs import Job
from iscp_dagster.sync.deployment import Deployment


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Rows staged, and rows in total; None for one of several shards, or if the log lacks it."""

    done: int
    total: int | None


def read_progress(deployment: Deployment, source: SourceTable, job: Job) -> Progress | None:
    """How far the job's index is built; None for a consumer that is not an index.

    Queries ClickHouse and reads the table's log. The total includes rows masked by deletion
    vectors.
    """
    info = job.spec.detail.consumer
    if not is_index(info):
        return None
    delta_log = deployment.make_delta_log(source)
    tenant = job.key.tenant
    schema = delta_log.get_facts().fields
    store = deployment.make_index_store(
        source, resolve_index(source, info), schema, info.generation
    )
    done = store.count_staged(tenant)
    if store.placement is not None and store.placement.sharding.shards > 1:
        return Progress(done=done, total=None)
    size = delta_log.get_tenant_sizes().get(tenant)
    return Progress(done=done, total=0 if size is None else size.rows)
