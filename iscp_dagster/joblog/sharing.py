"""An index has one table for all its tenants, and so one consumer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from iscp_dagster.joblog.updates import SpecUpdate
from iscp_dagster.model.declared.kinds import kind_names
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.jobs import Job, JobID
from iscp_dagster.model.specs import ConsumerInfo, JobSpec


def joined(name: JobID, spec: JobSpec, others: Iterable[Job], *, adopt: bool) -> JobSpec:
    """Fit `spec` to the other jobs of its index, dropped ones included.

    All jobs of an index have the same consumer. If `spec` has another one, `adopt` takes theirs;
    without it, raises ConfigError. If all others are dropped, `spec` begins a new generation.
    """
    consumer = spec.detail.consumer
    found = sorted(others, key=lambda job: (job.drop_at is None, job.drop_at or job.create_at))
    if not found:
        return spec
    held, live = found[-1].spec.detail.consumer, found[-1].drop_at is None
    if not {consumer.type, held.type} & set(kind_names()):
        return spec
    if replace(consumer, generation=held.generation) == held:
        return _with(spec, held)
    if not live:
        return _with(spec, replace(consumer, generation=held.generation + 1))
    if adopt:
        return _with(spec, held)
    raise ConfigError(
        f"Index {name.db}.{name.table}/{name.job} has one table for all its tenants: "
        f"{_said(held)}, not {_said(consumer)}. Register it the same way, rename the job, or "
        f"change it for every tenant (`iscp job update {name.db}.{name.table}/{name.job} "
        "--tenant '*'`)."
    )


def check_alone(name: JobID, change: SpecUpdate, job: Job, others: Iterable[Job]) -> None:
    """Reject a change of an index's consumer for one tenant of several. Raises ConfigError."""
    before, after = job.spec.detail.consumer, change.applied(job.spec).detail.consumer
    if before == after or not {before.type, after.type} & set(kind_names()):
        return
    if any(other.key != job.key and other.drop_at is None for other in others):
        raise ConfigError(
            f"Index {name.db}.{name.table}/{name.job} has one table for all its tenants, so its "
            f"type, columns and options change only for all of them: use --tenant '*'."
        )


def _with(spec: JobSpec, consumer: ConsumerInfo) -> JobSpec:
    return replace(spec, detail=replace(spec.detail, consumer=consumer))


def _said(consumer: ConsumerInfo) -> str:
    columns = f" of columns {', '.join(consumer.columns)}" if consumer.columns else ""
    options = f" with {dict(consumer.options)}" if consumer.options else ""
    return f"a {consumer.type} index{columns}{options or ('' if columns else ' as declared')}"
