"""The progress of an index's first iteration: rows staged, of rows in the source."""

from __future__ import annotations

from dataclasses import dataclass

from iscp_dagster.clickhouse.kinds.indexes import index_of
from iscp_dagster.model.consumers.kinds import is_index
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.jobs import Job
from iscp_dagster.sync.deployment import Deployment


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Rows staged, and rows in all; None for one of several shards, or if the files do not say."""

    done: int
    of: int | None


def progress(deployment: Deployment, source: SourceTable, job: Job) -> Progress | None:
    """How far the job's index is built; None for a consumer that is no index.

    Asks ClickHouse and reads the table's log. Rows masked by deletion vectors count as to do.
    """
    info = job.spec.detail.consumer
    if not is_index(info):
        return None
    delta_log = deployment.delta_log(source)
    tenant = job.key.tenant
    schema = delta_log.facts().fields
    store = deployment.store(source, index_of(source, info), schema, info.generation)
    done = store.count_staged(tenant)
    if store.placement is not None and store.placement.sharding.shards > 1:
        return Progress(done=done, of=None)
    size = delta_log.tenant_sizes().get(tenant)
    return Progress(done=done, of=0 if size is None else size.rows)
