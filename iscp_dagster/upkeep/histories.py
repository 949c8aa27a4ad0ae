"""Where the history of a changes index begins, and the versions that it lacks."""

from __future__ import annotations

from collections.abc import Mapping

from iscp_dagster.clickhouse.tables.indexes import Beginning
from iscp_dagster.model.declared.attach import CHANGES
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.jobs import Job
from iscp_dagster.sync.consumers import index_of
from iscp_dagster.sync.deployment import Deployment


def history(deployment: Deployment, source: SourceTable, job: Job) -> Beginning | None:
    """Where the tenant's history begins; None for another kind of job, or one not built.

    Asks ClickHouse. Raises IscpError.
    """
    info = job.spec.detail.consumer
    if info.type != CHANGES:
        return None
    schema = deployment.delta_log(source).facts().fields
    store = deployment.store(source, index_of(source, info), schema, info.generation)
    found: Mapping[str, Beginning] = store.begins([job.key.tenant])
    return found.get(job.key.tenant)
