"""Where the history of a changes index or a trigger begins, and the versions that it lacks."""

from __future__ import annotations

from collections.abc import Mapping

from iscp_dagster.clickhouse.tables.indexes import Beginning
from iscp_dagster.joblog.sql.active import active_sets
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.declared.eventtriggers import TRIGGER
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.declared.together.attach import CHANGES
from iscp_dagster.model.jobs import Job
from iscp_dagster.sync.consumers import index_of
from iscp_dagster.sync.deployment import Deployment


def history(deployment: Deployment, source: SourceTable, job: Job) -> Beginning | None:
    """Where the tenant's history begins; None for another kind of job, or one not built.

    Asks ClickHouse, or for a trigger the ISCP log. Raises IscpError.
    """
    info = job.spec.detail.consumer
    if info.type == TRIGGER:
        return _of_trigger(deployment, job)
    if info.type != CHANGES:
        return None
    schema = deployment.delta_log(source).facts().fields
    store = deployment.store(source, index_of(source, info), schema, info.generation)
    found: Mapping[str, Beginning] = store.begins([job.key.tenant])
    return found.get(job.key.tenant)


def _of_trigger(deployment: Deployment, job: Job) -> Beginning | None:
    assert isinstance(deployment.log, SqlLog)
    with deployment.log.reading() as connection:
        held = active_sets(connection, [job.key]).get(job.key)
    if held is None or held.registration != job.registration:
        return None
    return Beginning(at=held.since, gap=(held.gap,) if held.gap else ())
