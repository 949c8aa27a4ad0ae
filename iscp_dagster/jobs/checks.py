"""What a job's spec must be before it is written."""

from __future__ import annotations

from importlib.metadata import entry_points

from iscp_dagster.core.errors import ConfigError
from iscp_dagster.core.jobs import JobID
from iscp_dagster.core.specs import ConsumerInfo, JobSpec
from iscp_dagster.core.tables import KINDS, SourceTable
from iscp_dagster.core.triggers import check_trigger
from iscp_dagster.engine.consumers import GROUP, index_of, is_index
from iscp_dagster.jobs.names import shown


def check_spec(source: SourceTable, job: JobID, spec: JobSpec) -> None:
    """Raises ConfigError for a spec that is another job's or could never run."""
    check_names(job, spec.detail.consumer)
    check_trigger(spec.trigger)
    if is_index(spec.detail.consumer):
        index_of(source, spec.detail.consumer)
    else:
        check_type(spec.detail.consumer)


def check_names(job: JobID, consumer: ConsumerInfo) -> None:
    """Raises ConfigError for a consumer of another job."""
    named = JobID(db=consumer.db, table=consumer.table, job=consumer.job)
    if named != job:
        raise ConfigError(
            f"The spec's consumer is of another job, {shown(named)}; name the same database, "
            "table and job in both."
        )


def check_type(consumer: ConsumerInfo) -> None:
    """Raises ConfigError for a type that is neither built in nor anything importable's name.

    Whether it can be imported only Dagster's own environment can tell.
    """
    offered = {each.name for each in entry_points(group=GROUP)}
    if consumer.type not in offered and ":" not in consumer.type:
        raise ConfigError(
            f"The consumer type {consumer.type!r} is unknown; use one of "
            f"{', '.join([*KINDS, *sorted(offered)])}, or the import path of your own, such as "
            "package.module:Name."
        )
