"""Checks of a job's spec before it is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from iscp_dagster.clickhouse.kinds.index_kind import resolve_index
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.consumers.kinds import get_consumer_kind, is_index, list_declared_kinds
from iscp_dagster.model.declared.names import list_possible_owners, view_name
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.specs import ConsumerInfo, JobSpec
from iscp_dagster.planning.triggers.plan import check_trigger
from iscp_dagster.sync.deployment import Deployment


def check_spec(source: SourceTable, job: JobID, spec: JobSpec) -> None:
    """Raises ConfigError for a spec that belongs to another job or could never run."""
    consumer = spec.detail.consumer
    check_names(job, consumer)
    check_trigger(spec.trigger)
    check_declared_as(source, consumer)
    get_consumer_kind(consumer.type).check(source, consumer)


def check_declared_as(source: SourceTable, consumer: ConsumerInfo) -> None:
    """Raises ConfigError if a trigger or service consumer of the job's name is declared, and the
    job is of another kind.
    """
    for kind in list_declared_kinds():
        names = {declaration.name for declaration in kind.list_declared(source)}
        if consumer.job in names and consumer.type != kind.type:
            raise ConfigError(
                f"Job {source.name}/{consumer.job}: a {kind.noun} of that name is declared, and "
                f"the job would be of the type {consumer.type!r}; register it without a type, or "
                "name the job otherwise."
            )


def check_names(job: JobID, consumer: ConsumerInfo) -> None:
    """Raises ConfigError for a consumer that belongs to another job."""
    owner = JobID(db=consumer.db, table=consumer.table, job=consumer.job)
    if owner != job:
        raise ConfigError(
            f"The spec's consumer belongs to another job, {owner}; name the same database, "
            "table and job in both."
        )


def check_view_free(
    deployment: Deployment,
    sources: Sequence[SourceTable],
    source: SourceTable,
    consumer: ConsumerInfo,
) -> None:
    """Raises ConfigError for an index whose index view or asset already belongs to another."""
    if not is_index(consumer):
        return
    own_index = resolve_index(source, consumer)
    endpoint, view = deployment.get_endpoint(own_index), view_name(source.table, own_index.shown)
    database, asset = endpoint.resolve_database(source.database), f"{source.database}.{view}"
    neighbors = [
        table for table in sources if endpoint.resolve_database(table.database) == database
    ]
    job_ids = {
        JobID(db=table.database, table=table.table, job=index.shown)
        for table in neighbors
        for index in table.indexes
        if view_name(table.table, index.shown) == view
    }
    job_ids |= {
        job_id for job_id in _list_view_owners(neighbors, view) if _has_jobs(deployment.log, job_id)
    }
    job_ids -= {JobID(db=source.database, table=source.table, job=own_index.shown)}
    owners = [f"index {job_id}" for job_id in sorted(map(str, job_ids))]
    owners += [f"source table {table.name}" for table in sources if table.name == asset]
    owners += sorted(_list_asset_owners(sources, asset))
    if owners:
        raise ConfigError(
            f"The index view {database}.{view} already belongs to {owners[0]}; give the index "
            "another name, or unregister that one's jobs and collect them (`iscp job collect`)."
        )


def _list_asset_owners(sources: Sequence[SourceTable], asset: str) -> Iterator[str]:
    """The triggers and service consumers whose asset has that name."""
    for source in sources:
        for kind in list_declared_kinds():
            for declaration in kind.list_declared(source):
                if f"{source.database}.{view_name(source.table, declaration.name)}" == asset:
                    yield f"{kind.noun} {source.name}/{declaration.name}"


def _list_view_owners(neighbors: Sequence[SourceTable], view: str) -> Iterator[JobID]:
    for database in {table.database for table in neighbors}:
        yield from (
            JobID(db=database, table=table, job=index)
            for table, index in list_possible_owners(view)
        )


def _has_jobs(log: SqlLog, name: JobID) -> bool:
    """Whether the index has a job, even a dropped one, and so may have data."""
    jobs = log.list_jobs(name=name, include_dropped=True)
    return any(is_index(job.spec.detail.consumer) for job in jobs)
