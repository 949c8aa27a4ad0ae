"""From the jobs of one table and tenant to the iterations that are due, by default and greedily."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from itertools import groupby

from iscp_dagster.joblog.iterations import Iteration, needs_own_scan
from iscp_dagster.model.consumers.kinds import get_consumer_kind
from iscp_dagster.model.declared.sharding import get_shard
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.jobs import Job, JobKey
from iscp_dagster.model.moment import START, Moment
from iscp_dagster.model.specs import TriggerSpec
from iscp_dagster.model.states import ACTIVE, STARTABLE, JobState
from iscp_dagster.planning.triggers.backoff import is_backing_off
from iscp_dagster.planning.triggers.loading import (
    BUILT_IN,
    JobTrigger,
    list_schedule_settings,
    load_trigger,
)


def raise_error(error: ConfigError) -> None:
    """Refuse by raising."""
    raise error


def plan_iterations(
    jobs: Collection[Job],
    latest: Moment,
    now: datetime,
    *,
    load: Callable[[str], JobTrigger] = load_trigger,
    refuse: Callable[[ConfigError], None] = raise_error,
) -> tuple[Iteration, ...]:
    """The iterations due for the jobs of one table and tenant when the table is at `latest`.

    A job is in at most one of them, and in none while it is pending, running, in error, paused,
    dropped or waiting after a temporary failure, or when nothing lies between its watermark and
    its goal; of these only a pending or running job holds up others. Planning the same rows
    again gives the same. A trigger that cannot be loaded, fails or plans other jobs is reported
    to `refuse`, and the others are planned. Raises ConfigError for jobs of several tables or
    tenants.
    """
    live = sorted((job for job in jobs if _can_take_part(job, now)), key=_get_type_and_name)
    if len({(job.key.tenant, job.key.table_id) for job in live}) > 1:
        raise ConfigError("Plan for one table and tenant at a time.")
    planned: list[Iteration] = []
    for job_type, members in groupby(live, key=_get_type):
        group = tuple(members)
        try:
            if job_type in BUILT_IN:
                planned += load_trigger(job_type)(group, latest, now)
                continue
            iterations = _run_trigger(load(job_type), job_type, group, latest, now)
            planned += _check_plan(job_type, iterations, group, latest)
        except ConfigError as error:
            refuse(error)
    return tuple(planned)


def check_trigger(spec: TriggerSpec, load: Callable[[str], JobTrigger] = load_trigger) -> None:
    """Raise ConfigError for a trigger that could never plan."""
    trigger = load_trigger(spec.job_type) if spec.job_type in BUILT_IN else load(spec.job_type)
    if (check := getattr(trigger, "check_schedule", None)) is not None:
        check(spec.schedule)


def check_schedule_settings(spec: TriggerSpec) -> None:
    """Raise ConfigError for a schedule that the trigger would ignore."""
    if not spec.schedule or spec.job_type not in BUILT_IN:
        return
    settings = list_schedule_settings(spec.job_type)
    if ignored := [name for name in spec.schedule if name not in settings]:
        lacks = f"takes only {' and '.join(settings)}" if settings else "has no schedule"
        raise ConfigError(
            f"The trigger {spec.job_type!r} {lacks}, and would ignore {' and '.join(ignored)}; "
            "leave them out, or name another trigger (`--trigger periodic --interval 10m`)."
        )


def _can_take_part(job: Job, now: datetime) -> bool:
    if job.drop_at is not None or job.state is JobState.ERROR:
        return False
    # A queued or running job still takes part: others may have to wait for it.
    return job.state not in STARTABLE or not (job.paused_at or is_backing_off(job.status, now))


def _run_trigger(
    trigger: JobTrigger, job_type: str, jobs: tuple[Job, ...], latest: Moment, now: datetime
) -> tuple[Iteration, ...]:
    try:
        return tuple(trigger(jobs, latest, now))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"The trigger {job_type!r} failed to plan: {reason}") from error


def _check_plan(
    job_type: str, iterations: Collection[Iteration], jobs: Sequence[Job], latest: Moment
) -> Collection[Iteration]:
    """A custom trigger's plan. Raises ConfigError for one beyond its jobs, watermarks or table."""
    startable = {job.key: job.watermark for job in jobs if job.state in STARTABLE}
    planned: set[JobKey] = set()
    for iteration in iterations:
        invalid = [
            key
            for key in iteration.jobs
            if key in planned or startable.get(key) != iteration.from_ or iteration.to > latest
        ]
        if invalid:
            raise ConfigError(
                f"The trigger {job_type!r} planned {iteration.range} for job {invalid[0]}; it may "
                f"plan each job it was given once, from its watermark up to {latest.version}."
            )
        planned.update(iteration.jobs)
    return iterations


def _get_type(job: Job) -> str:
    return job.spec.trigger.job_type


def _get_type_and_name(job: Job) -> tuple[str, str]:
    return _get_type(job), job.key.job_name


def plan_iteration(jobs: Sequence[Job], to: Moment) -> tuple[Iteration, ...]:
    """One iteration of those `jobs` that may start and are before `to`, or none.

    The jobs share one watermark. The iteration gets their highest priority.
    """
    due = [
        job for job in jobs if job.state in STARTABLE and get_watermark_version(job) < to.version
    ]
    return (Iteration.from_jobs(due, to),) if due else ()


def plan_each_alone(jobs: Sequence[Job], to: Moment) -> tuple[Iteration, ...]:
    """One iteration per job, up to `to`."""
    return tuple(iteration for job in jobs for iteration in plan_iteration([job], to))


def plan_together(jobs: Sequence[Job], latest: Moment) -> tuple[Iteration, ...]:
    """The iterations of jobs that try to keep one watermark, so that they share scans.

    - A first iteration starts at once: from START to `latest` if no other job has
      synchronized, else from START to the others' maximum watermark, while they continue. An event
      trigger's job that begins at a commit counts as not synchronized until its first iteration
      starts.
    - The others are equal and none of them is pending or running: one shared iteration to `latest`.
    - They differ: lagging jobs catch up to the maximum watermark one at a time, lowest first.
    - A repaired job goes to `latest` instead: where the others are, its rows may still be wrong.
    - Jobs of different shards share an iteration while they are equal, but never wait for each
      other: a server that is down holds up only its own jobs.
    - A service consumer's job iterates by itself, to `latest`: its run waits for a handler, which
      may be slow, and whatever shared its scan would wait too.

    First iterations that are due together have the same range, so they share one scan.
    """
    lone_jobs = [job for job in jobs if needs_own_scan(job)]
    sharing_jobs = [job for job in jobs if not needs_own_scan(job)]
    # Shared scans first: they are short, and run slots are few.
    return (*_plan_sharing(sharing_jobs, latest), *plan_each_alone(lone_jobs, latest))


def _plan_sharing(jobs: Sequence[Job], latest: Moment) -> tuple[Iteration, ...]:
    fresh = [job for job in jobs if is_fresh(job)]
    synchronized = [job for job in jobs if not is_fresh(job)]
    watermarks = (job.watermark for job in synchronized if not _has_only_beginning(job))
    first_end = max(watermarks, key=_get_version, default=latest)
    highest = max(map(_get_watermark, synchronized), key=_get_version, default=latest)
    first_end = latest if any(job.status.repairs for job in fresh) else first_end
    return (*plan_iteration(fresh, first_end), *_plan_in_step(synchronized, highest, latest))


def plan_by_default(jobs: Sequence[Job], latest: Moment, _now: datetime) -> tuple[Iteration, ...]:
    """The jobs planned together; an independent job by itself, holding up no other."""
    independent = [job for job in jobs if job.spec.trigger.independent]
    group = [job for job in jobs if not job.spec.trigger.independent]
    return (*plan_each_alone(independent, latest), *plan_together(group, latest))


def plan_greedily(jobs: Sequence[Job], latest: Moment, _now: datetime) -> tuple[Iteration, ...]:
    """Each job from its own watermark to `latest`, whatever the others do."""
    return plan_each_alone(jobs, latest)


def is_fresh(job: Job) -> bool:
    """Whether its first iteration is still to come."""
    return job.watermark.version == START.version


def _has_only_beginning(job: Job) -> bool:
    """Whether its watermark is where it begins, and its first iteration is still to come."""
    early = get_consumer_kind(job.spec.detail.consumer.type).begins_before_first_commit
    return early and job.status.start_at is None


def get_watermark_version(job: Job) -> int:
    return job.watermark.version


def _plan_in_step(jobs: Sequence[Job], highest: Moment, latest: Moment) -> tuple[Iteration, ...]:
    lagging = [job for job in jobs if get_watermark_version(job) < highest.version]
    by_shard = _group_by_shard(jobs)
    if len(by_shard) > 1 and (lagging or any(job.state in ACTIVE for job in jobs)):
        return tuple(
            iteration
            for members in by_shard
            for iteration in _plan_in_step(
                members, max(map(_get_watermark, members), key=_get_version), latest
            )
        )
    if any(job.state in ACTIVE for job in lagging or jobs):
        return ()
    if lagging:
        lowest = min(lagging, key=get_watermark_version)
        return plan_iteration([lowest], latest if lowest.status.repairs else highest)
    return plan_iteration(jobs, latest)


def _group_by_shard(jobs: Sequence[Job]) -> list[list[Job]]:
    """The jobs by shard; the jobs of one never wait for those of another."""
    by_shard: dict[int | None, list[Job]] = {}
    for job in jobs:
        by_shard.setdefault(get_shard(job.spec.detail.consumer.options), []).append(job)
    return list(by_shard.values())


def _get_watermark(job: Job) -> Moment:
    return job.watermark


def _get_version(moment: Moment) -> int:
    return moment.version
