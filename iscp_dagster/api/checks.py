"""Checks of a job's spec before it is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from iscp_dagster.clickhouse.kinds.indexes import index_of
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.consumers.kinds import consumer_kind, declared_kinds, is_index
from iscp_dagster.model.declared.names import owners, view_name
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
    consumer_kind(consumer.type).check(source, consumer)


def check_declared_as(source: SourceTable, consumer: ConsumerInfo) -> None:
    """Raises ConfigError for a job of another kind than the declared trigger or service consumer
    of its name.
    """
    for kind in declared_kinds():
        names = {each.name for each in kind.declared(source)}
        if consumer.job in names and consumer.type != kind.type:
            raise ConfigError(
                f"Job {source.name}/{consumer.job}: a {kind.called} of that name is declared, and "
                f"the job would be of the type {consumer.type!r}; register it without a type, or "
                "name the job otherwise."
            )


def check_names(job: JobID, consumer: ConsumerInfo) -> None:
    """Raises ConfigError for a consumer that belongs to another job."""
    named = JobID(db=consumer.db, table=consumer.table, job=consumer.job)
    if named != job:
        raise ConfigError(
            f"The spec's consumer belongs to another job, {named}; name the same database, "
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
    mine = index_of(source, consumer)
    endpoint, view = deployment.endpoint_of(mine), view_name(source.table, mine.shown)
    place, asset = endpoint.holds(source.database), f"{source.database}.{view}"
    near = [each for each in sources if endpoint.holds(each.database) == place]
    others = {
        JobID(db=each.database, table=each.table, job=index.shown)
        for each in near
        for index in each.indexes
        if view_name(each.table, index.shown) == view
    }
    others |= {each for each in _owners(near, view) if _has_jobs(deployment.log, each)}
    others -= {JobID(db=source.database, table=source.table, job=mine.shown)}
    taken = [f"index {each}" for each in sorted(map(str, others))]
    taken += [f"source table {each.name}" for each in sources if each.name == asset]
    taken += sorted(_others(sources, asset))
    if taken:
        raise ConfigError(
            f"The index view {place}.{view} already belongs to {taken[0]}; give the index "
            "another name, or unregister that one's jobs and collect them (`iscp job collect`)."
        )


def _others(sources: Sequence[SourceTable], asset: str) -> Iterator[str]:
    """The triggers and service consumers whose asset has that name."""
    for source in sources:
        for kind in declared_kinds():
            for each in kind.declared(source):
                if f"{source.database}.{view_name(source.table, each.name)}" == asset:
                    yield f"{kind.called} {source.name}/{each.name}"


def _owners(near: Sequence[SourceTable], view: str) -> Iterator[JobID]:
    for database in {each.database for each in near}:
        yield from (JobID(db=database, table=t, job=index) for t, index in owners(view))


def _has_jobs(log: SqlLog, name: JobID) -> bool:
    """Whether the index has a job, even a dropped one, and so may have data."""
    found = log.jobs(name=name, include_dropped=True)
    return any(is_index(each.spec.detail.consumer) for each in found)
