"""When jobs iterate: pure rules from rows and the latest version to iterations (seed 001,
"Select candidate iterations").
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from types import MappingProxyType

from iscp_dagster.core.errors import ConfigError
from iscp_dagster.core.iterations import Iteration
from iscp_dagster.core.jobs import Job
from iscp_dagster.core.moment import START, Moment
from iscp_dagster.core.specs import DEFAULT_TYPE
from iscp_dagster.core.states import ACTIVE, STARTABLE, JobState

Trigger = Callable[[Sequence[Job], Moment, datetime], tuple[Iteration, ...]]
"""Plans for the jobs of one type, table and tenant: (jobs ordered by name, latest, now)."""


def default_trigger(jobs: Sequence[Job], latest: Moment, _now: datetime) -> tuple[Iteration, ...]:
    """Jobs of a table try to keep one watermark, so that they share iterations.

    - A first iteration starts at once: from START to `latest` if no other job of the table has
      synchronized, else from START to the others' maximum watermark, while they go on.
    - All others equal and none of them pending or running: one shared iteration to `latest`.
    - They differ: the one that lags most catches up to the maximum watermark, one at a time.
    - An independent job iterates by itself to `latest`, and holds nobody up.

    A job in error is left out until it is repaired. Refinement of the seed: first iterations
    that are due together have the same range, so they share one scan.
    """
    alone = [job for job in jobs if job.spec.trigger.independent]
    group = [
        job for job in jobs if not job.spec.trigger.independent and job.state is not JobState.ERROR
    ]
    fresh = [job for job in group if _is_fresh(job)]
    settled = [job for job in group if not _is_fresh(job)]
    top = max((job.watermark for job in settled), key=_version, default=latest)
    return (
        *_own(alone, latest),
        *iteration_of(fresh, top),
        *_together(settled, top, latest),
    )


TRIGGERS: Mapping[str, Trigger] = MappingProxyType({DEFAULT_TYPE: default_trigger})
"""The rules by `TriggerSpec.job_type`."""


def plan(
    jobs: Collection[Job],
    latest: Moment,
    now: datetime,
    triggers: Mapping[str, Trigger] = TRIGGERS,
) -> tuple[Iteration, ...]:
    """The iterations due for the jobs of one table and tenant when it stands at `latest`.

    A job is in at most one of them, and in none while pending, running, in error or dropped, or
    when nothing lies between its watermark and its goal. Planning again without a change of the
    rows gives the same. Raises ConfigError for a job type that `triggers` lacks, and for jobs of
    several tables or tenants.
    """
    live = sorted((job for job in jobs if job.drop_at is None), key=_type_and_name)
    if len({(job.key.account, job.key.table_id) for job in live}) > 1:
        raise ConfigError("Plan for one table and tenant at a time.")
    planned: list[Iteration] = []
    for job_type, members in groupby(live, key=_type):
        planned += _trigger(job_type, triggers)(tuple(members), latest, now)
    return tuple(planned)


def iteration_of(jobs: Sequence[Job], to: Moment) -> tuple[Iteration, ...]:
    """One iteration of those of `jobs` that may start and stand before `to`, or none.

    The jobs share one watermark. The highest priority of theirs is the iteration's.
    """
    due = [job for job in jobs if job.state in STARTABLE and _version(job.watermark) < to.version]
    if not due:
        return ()
    first = due[0]
    return (
        Iteration(
            table_id=first.key.table_id,
            tenants=frozenset({first.key.account}),
            jobs=tuple(sorted(job.key for job in due)),
            from_=first.watermark,
            to=to,
            priority=max(job.priority for job in due),
        ),
    )


def _own(jobs: Sequence[Job], to: Moment) -> tuple[Iteration, ...]:
    return tuple(iteration for job in jobs for iteration in iteration_of([job], to))


def _together(jobs: Sequence[Job], top: Moment, latest: Moment) -> tuple[Iteration, ...]:
    lagging = [job for job in jobs if _version(job.watermark) < top.version]
    if any(job.state in ACTIVE for job in lagging or jobs):
        return ()
    if lagging:
        return iteration_of([min(lagging, key=lambda job: _version(job.watermark))], top)
    return iteration_of(jobs, latest)


def _trigger(job_type: str, triggers: Mapping[str, Trigger]) -> Trigger:
    if job_type in triggers:
        return triggers[job_type]
    known = ", ".join(sorted(triggers))
    raise ConfigError(f"The job type {job_type!r} is unknown; use one of: {known}.")


def _is_fresh(job: Job) -> bool:
    return job.watermark.version == START.version


def _version(moment: Moment) -> int:
    return moment.version


def _type(job: Job) -> str:
    return job.spec.trigger.job_type


def _type_and_name(job: Job) -> tuple[str, str]:
    return _type(job), job.key.job_name
