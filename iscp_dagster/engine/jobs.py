"""The jobs that a declaration stands for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from iscp_dagster.core.jobs import JobID, Registration
from iscp_dagster.core.specs import ConsumerInfo, IterationDetail, JobSpec
from iscp_dagster.core.tables import Index, SourceTable


def job_id(source: SourceTable, index: Index) -> JobID:
    """What a user names the index's job by."""
    return JobID(db=source.database, table=source.table, job=index.name)


def job_spec(source: SourceTable, index: Index) -> JobSpec:
    """The spec of a job that registers itself; columns and options are as declared."""
    consumer = ConsumerInfo(
        type=index.kind,
        db=source.database,
        table=source.table,
        job=index.name,
    )
    return JobSpec(detail=IterationDetail(priority=index.priority, consumer=consumer))


def registrations(
    source: SourceTable, table_id: str, tenants: Iterable[str], indexes: Sequence[Index]
) -> list[Registration]:
    """One job an index and tenant."""
    return [
        Registration(
            account=tenant,
            name=job_id(source, index),
            table_id=table_id,
            spec=job_spec(source, index),
        )
        for tenant in tenants
        for index in indexes
    ]
