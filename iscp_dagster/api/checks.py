"""Checks of a job's spec before it is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import entry_points

from iscp_dagster.clickhouse.types.asked import check_types
from iscp_dagster.joblog.protocol import JobLog
from iscp_dagster.model.declared.eventtriggers import TRIGGER
from iscp_dagster.model.declared.kinds import kind_names
from iscp_dagster.model.declared.names import owners, view_name
from iscp_dagster.model.declared.services import SERVICE
from iscp_dagster.model.declared.tables import Consuming, SourceTable
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.specs import ConsumerInfo, JobSpec
from iscp_dagster.planning.triggers import check_trigger
from iscp_dagster.sync.consumers import GROUP, index_of, is_index, load_consumer
from iscp_dagster.sync.deployment import Deployment

_DECLARE = {
    TRIGGER: "declare Trigger({name}, ...)",
    SERVICE: "declare ServiceConsumer(..., name={name})",
}
"""How the types of consumers that only a declaration makes are declared."""


def check_spec(source: SourceTable, job: JobID, spec: JobSpec) -> None:
    """Raises ConfigError for a spec that belongs to another job or could never run."""
    check_names(job, spec.detail.consumer)
    check_trigger(spec.trigger)
    consumer = spec.detail.consumer
    check_declared_as(source, consumer)
    if is_index(consumer):
        check_types(source, index_of(source, consumer))
    elif consumer.type not in _DECLARE:
        check_type(consumer)


def check_declared_as(source: SourceTable, consumer: ConsumerInfo) -> None:
    """Raises ConfigError unless the job of an event trigger or a service consumer, and no other, is
    declared as one.
    """
    _check_declared(source, consumer, TRIGGER, "trigger", source.triggers)
    _check_declared(source, consumer, SERVICE, "service consumer", source.services)


def _check_declared(
    source: SourceTable,
    consumer: ConsumerInfo,
    type_: str,
    what: str,
    there: Sequence[Consuming],
) -> None:
    head = f"Job {source.name}/{consumer.job}"
    declared = any(each.name == consumer.job for each in there)
    if declared and consumer.type != type_:
        raise ConfigError(
            f"{head}: a {what} of that name is declared, and the job would be of the type "
            f"{consumer.type!r}; register it without a type, or name the job otherwise."
        )
    if consumer.type != type_:
        return
    if not declared:
        known = ", ".join(each.name for each in there) or "none"
        raise ConfigError(
            f"{head}: no {what} of that name is declared on the table or its views (there are: "
            f"{known}); {_DECLARE[type_].format(name=repr(consumer.job))}."
        )
    if consumer.columns or consumer.options:
        raise ConfigError(
            f"{head}: a {what}'s columns and options are those of its declaration; change them "
            "there."
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
        for what, some in (("trigger", source.triggers), ("service consumer", source.services)):
            for each in some:
                if f"{source.database}.{view_name(source.table, each.name)}" == asset:
                    yield f"{what} {source.name}/{each.name}"


def _owners(near: Sequence[SourceTable], view: str) -> Iterator[JobID]:
    for database in {each.database for each in near}:
        yield from (JobID(db=database, table=t, job=index) for t, index in owners(view))


def _has_jobs(log: JobLog, name: JobID) -> bool:
    """Whether the index has a job, even a dropped one, and so may have data."""
    found = log.jobs(name=name, include_dropped=True)
    return any(is_index(each.spec.detail.consumer) for each in found)


def check_importable(consumer: ConsumerInfo) -> None:
    """Raises ConfigError for a user's consumer that cannot be imported here."""
    if not is_index(consumer) and consumer.type not in _DECLARE:
        load_consumer(consumer)


def check_type(consumer: ConsumerInfo) -> None:
    """Raises ConfigError for a type that is neither offered by a package nor an import path."""
    offered = {each.name for each in entry_points(group=GROUP)}
    if consumer.type not in offered and ":" not in consumer.type:
        raise ConfigError(
            f"The consumer type {consumer.type!r} is unknown; use one of "
            f"{', '.join([*kind_names(), *sorted(offered)])}, or the import path of your own, such "
            "as package.module:Name."
        )
