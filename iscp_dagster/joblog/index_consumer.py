"""An index has one table for all its tenants, and so one consumer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from iscp_dagster.joblog.updates import SpecUpdate
from iscp_dagster.model.declared.kinds import list_kind_names
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.jobs import Job, JobID
from iscp_dagster.model.specs import ConsumerInfo, JobSpec


def fit_index_consumer(
    name: JobID, spec: JobSpec, others: Iterable[Job], *, adopt: bool
) -> JobSpec:
    """Fit `spec` to the other jobs of its index, dropped ones included.

    All jobs of an index have the same consumer. If `spec` has another one, `adopt` takes theirs;
    without `adopt`, raises ConfigError. If all others are dropped, `spec` starts a new generation.
    """
    consumer = spec.detail.consumer
    jobs = sorted(others, key=lambda job: (job.drop_at is None, job.drop_at or job.create_at))
    if not jobs:
        return spec
    current, live = jobs[-1].spec.detail.consumer, jobs[-1].drop_at is None
    if not {consumer.type, current.type} & set(list_kind_names()):
        return spec
    if replace(consumer, generation=current.generation) == current:
        return _replace_consumer(spec, current)
    if not live:
        return _replace_consumer(spec, replace(consumer, generation=current.generation + 1))
    if adopt:
        return _replace_consumer(spec, current)
    raise ConfigError(
        f"Index {name.db}.{name.table}/{name.job} has one table for all its tenants: "
        f"{_describe_consumer(current)}, not {_describe_consumer(consumer)}. Register it the same "
        "way, rename the job, or "
        f"change it for every tenant (`iscp job update {name.db}.{name.table}/{name.job} "
        "--tenant '*'`)."
    )


def check_shared_consumer(name: JobID, change: SpecUpdate, job: Job, others: Iterable[Job]) -> None:
    """Reject a change of an index's consumer for one tenant of several. Raises ConfigError."""
    before, after = job.spec.detail.consumer, change.apply_to(job.spec).detail.consumer
    if before == after or not {before.type, after.type} & set(list_kind_names()):
        return
    if any(other.key != job.key and other.drop_at is None for other in others):
        raise ConfigError(
            f"Index {name.db}.{name.table}/{name.job} has one table for all its tenants, so its "
            f"type, columns and options change only for all of them: use --tenant '*'."
        )


def _replace_consumer(spec: JobSpec, consumer: ConsumerInfo) -> JobSpec:
    return replace(spec, detail=replace(spec.detail, consumer=consumer))


def _describe_consumer(consumer: ConsumerInfo) -> str:
    columns = f" of columns {', '.join(consumer.columns)}" if consumer.columns else ""
    options = f" with {dict(consumer.options)}" if consumer.options else ""
    return f"a {consumer.type} index{columns}{options or ('' if columns else ' as declared')}"
