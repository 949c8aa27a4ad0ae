"""From the jobs of one table and tenant to the iterations that are due."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from types import MappingProxyType

from iscp_dagster.joblog.iterations import Iteration
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.jobs import Job, JobKey
from iscp_dagster.model.moment import Moment
from iscp_dagster.model.specs import DEFAULT_TYPE, TriggerSpec
from iscp_dagster.model.states import STARTABLE, JobState
from iscp_dagster.planning.triggers.backoff import waits
from iscp_dagster.planning.triggers.custom import load_trigger
from iscp_dagster.planning.triggers.periodic import check_schedule, periodic_trigger
from iscp_dagster.planning.triggers.rules import Trigger, default_trigger, greedy_trigger

PERIODIC_TYPE = "periodic"
BUILT_IN: Mapping[str, Trigger] = MappingProxyType(
    {DEFAULT_TYPE: default_trigger, "greedy": greedy_trigger, PERIODIC_TYPE: periodic_trigger}
)
"""The rules by `TriggerSpec.job_type`; any other type is a custom one."""


def raised(error: ConfigError) -> None:
    """Refuse by raising."""
    raise error


def plan(
    jobs: Collection[Job],
    latest: Moment,
    now: datetime,
    *,
    load: Callable[[str], Trigger] = load_trigger,
    refuse: Callable[[ConfigError], None] = raised,
) -> tuple[Iteration, ...]:
    """The iterations due for the jobs of one table and tenant when the table is at `latest`.

    A job is in at most one of them, and in none while it is pending, running, in error, paused,
    dropped or waiting after a temporary failure, or when nothing lies between its watermark and
    its goal; of these only a pending or running job holds up others. Planning the same rows
    again gives the same. A trigger that cannot be loaded, fails or plans what is not
    its own is reported to `refuse`, and the others are planned. Raises ConfigError for jobs of
    several tables or tenants.
    """
    live = sorted((job for job in jobs if _takes_part(job, now)), key=_type_and_name)
    if len({(job.key.tenant, job.key.table_id) for job in live}) > 1:
        raise ConfigError("Plan for one table and tenant at a time.")
    planned: list[Iteration] = []
    for job_type, members in groupby(live, key=_type):
        group = tuple(members)
        trigger = BUILT_IN.get(job_type)
        try:
            if trigger is not None:
                planned += trigger(group, latest, now)
                continue
            found = _planned_by(load(job_type), job_type, group, latest, now)
            planned += _checked(job_type, found, group, latest)
        except ConfigError as error:
            refuse(error)
    return tuple(planned)


def check_trigger(spec: TriggerSpec, load: Callable[[str], Trigger] = load_trigger) -> None:
    """Raises ConfigError for a trigger that could never plan."""
    if spec.job_type == PERIODIC_TYPE:
        check_schedule(spec.schedule)
    elif spec.job_type not in BUILT_IN:
        load(spec.job_type)


def check_scheduled(spec: TriggerSpec) -> None:
    """Raises ConfigError for a schedule that the trigger would ignore."""
    if spec.schedule and spec.job_type in BUILT_IN and spec.job_type != PERIODIC_TYPE:
        raise ConfigError(
            f"The trigger {spec.job_type!r} has no schedule, and would ignore "
            f"{' and '.join(spec.schedule)}; leave them out, or name the trigger periodic "
            "(`--trigger periodic --interval 10m`)."
        )


def _takes_part(job: Job, now: datetime) -> bool:
    if job.drop_at is not None or job.state is JobState.ERROR:
        return False
    # A queued or running job still takes part: others may have to wait for it.
    return job.state not in STARTABLE or not (job.paused_at or waits(job.status, now))


def _planned_by(
    trigger: Trigger, job_type: str, jobs: tuple[Job, ...], latest: Moment, now: datetime
) -> tuple[Iteration, ...]:
    try:
        return tuple(trigger(jobs, latest, now))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"The trigger {job_type!r} failed to plan: {reason}") from error


def _checked(
    job_type: str, found: Collection[Iteration], jobs: Sequence[Job], latest: Moment
) -> Collection[Iteration]:
    """A custom trigger's plan. Raises ConfigError for one beyond its jobs, watermarks or table."""
    startable = {job.key: job.watermark for job in jobs if job.state in STARTABLE}
    taken: set[JobKey] = set()
    for iteration in found:
        wrong = [
            key
            for key in iteration.jobs
            if key in taken or startable.get(key) != iteration.from_ or iteration.to > latest
        ]
        if wrong:
            raise ConfigError(
                f"The trigger {job_type!r} planned {iteration.range} for job {wrong[0]}; it may "
                f"plan each job it was given once, from its watermark up to {latest.version}."
            )
        taken.update(iteration.jobs)
    return found


def _type(job: Job) -> str:
    return job.spec.trigger.job_type


def _type_and_name(job: Job) -> tuple[str, str]:
    return _type(job), job.key.job_name
