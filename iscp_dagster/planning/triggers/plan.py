"""From the jobs of one table and tenant to the iterations that are due, by default and greedily."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from itertools import groupby

from iscp_dagster.joblog.iterations import Iteration, iterates_alone
from iscp_dagster.model.consumers.kinds import consumer_kind
from iscp_dagster.model.declared.sharding import shard_of
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.jobs import Job, JobKey
from iscp_dagster.model.moment import START, Moment
from iscp_dagster.model.specs import TriggerSpec
from iscp_dagster.model.states import ACTIVE, STARTABLE, JobState
from iscp_dagster.planning.triggers.backoff import waits
from iscp_dagster.planning.triggers.loading import (
    BUILT_IN,
    Trigger,
    load_trigger,
    schedule_settings,
)


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
        try:
            if job_type in BUILT_IN:
                planned += load_trigger(job_type)(group, latest, now)
                continue
            found = _planned_by(load(job_type), job_type, group, latest, now)
            planned += _checked(job_type, found, group, latest)
        except ConfigError as error:
            refuse(error)
    return tuple(planned)


def check_trigger(spec: TriggerSpec, load: Callable[[str], Trigger] = load_trigger) -> None:
    """Raises ConfigError for a trigger that could never plan."""
    trigger = load_trigger(spec.job_type) if spec.job_type in BUILT_IN else load(spec.job_type)
    if (check := getattr(trigger, "check_schedule", None)) is not None:
        check(spec.schedule)


def check_scheduled(spec: TriggerSpec) -> None:
    """Raises ConfigError for a schedule that the trigger would ignore."""
    if not spec.schedule or spec.job_type not in BUILT_IN:
        return
    taken = schedule_settings(spec.job_type)
    if ignored := [name for name in spec.schedule if name not in taken]:
        lacks = f"takes {' and '.join(taken)} alone" if taken else "has no schedule"
        raise ConfigError(
            f"The trigger {spec.job_type!r} {lacks}, and would ignore {' and '.join(ignored)}; "
            "leave them out, or name another trigger (`--trigger periodic --interval 10m`)."
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


def iteration_of(jobs: Sequence[Job], to: Moment) -> tuple[Iteration, ...]:
    """One iteration of those `jobs` that may start and are before `to`, or none.

    The jobs share one watermark. The iteration gets their highest priority.
    """
    due = [job for job in jobs if job.state in STARTABLE and version_of(job) < to.version]
    return (Iteration.of(due, to),) if due else ()


def each_alone(jobs: Sequence[Job], to: Moment) -> tuple[Iteration, ...]:
    """One iteration per job, up to `to`."""
    return tuple(iteration for job in jobs for iteration in iteration_of([job], to))


def together(jobs: Sequence[Job], latest: Moment) -> tuple[Iteration, ...]:
    """The iterations of jobs that try to keep one watermark, so that they share scans.

    - A first iteration starts at once: from START to `latest` if no other job has
      synchronized, else from START to the others' maximum watermark, while they go on. An event
      trigger's job that begins at a commit, and has not begun yet, has not synchronized.
    - The others are equal and none of them is pending or running: one shared iteration to `latest`.
    - They differ: lagging jobs catch up to the maximum watermark one at a time, lowest first.
    - A repaired job goes to `latest` instead: where the others are, its rows may still be wrong.
    - Jobs of different shards share an iteration while they are equal, but never wait for each
      other: a server that is down holds up only its own jobs.
    - A service consumer's job iterates by itself, to `latest`: its run waits for a handler, which
      may be slow, and whatever shared its scan would wait too.

    First iterations that are due together have the same range, so they share one scan.
    """
    alone = [job for job in jobs if iterates_alone(job)]
    others = [job for job in jobs if not iterates_alone(job)]
    # The others first: they are short, and run slots are few.
    return (*_sharing(others, latest), *each_alone(alone, latest))


def _sharing(jobs: Sequence[Job], latest: Moment) -> tuple[Iteration, ...]:
    fresh = [job for job in jobs if is_fresh(job)]
    settled = [job for job in jobs if not is_fresh(job)]
    built = (job.watermark for job in settled if not _is_begun_at_a_commit(job))
    first = max(built, key=_version, default=latest)
    top = max(map(_watermark, settled), key=_version, default=latest)
    first = latest if any(job.status.repairs for job in fresh) else first
    return (*iteration_of(fresh, first), *_in_step(settled, top, latest))


def default_trigger(jobs: Sequence[Job], latest: Moment, _now: datetime) -> tuple[Iteration, ...]:
    """The jobs as `together` plans them; an independent job by itself, holding up no other."""
    alone = [job for job in jobs if job.spec.trigger.independent]
    group = [job for job in jobs if not job.spec.trigger.independent]
    return (*each_alone(alone, latest), *together(group, latest))


def greedy_trigger(jobs: Sequence[Job], latest: Moment, _now: datetime) -> tuple[Iteration, ...]:
    """Each job from its own watermark to `latest`, whatever the others do."""
    return each_alone(jobs, latest)


def is_fresh(job: Job) -> bool:
    """Whether its first iteration is still to come."""
    return job.watermark.version == START.version


def _is_begun_at_a_commit(job: Job) -> bool:
    """Whether its watermark is where it begins, and its first iteration is still to come."""
    early = consumer_kind(job.spec.detail.consumer.type).begins_before_first_commit
    return early and job.status.start_at is None


def version_of(job: Job) -> int:
    return job.watermark.version


def _in_step(jobs: Sequence[Job], top: Moment, latest: Moment) -> tuple[Iteration, ...]:
    lagging = [job for job in jobs if version_of(job) < top.version]
    by_shard = _by_shard(jobs)
    if len(by_shard) > 1 and (lagging or any(job.state in ACTIVE for job in jobs)):
        return tuple(
            iteration
            for members in by_shard
            for iteration in _in_step(members, max(map(_watermark, members), key=_version), latest)
        )
    if any(job.state in ACTIVE for job in lagging or jobs):
        return ()
    if lagging:
        next_ = min(lagging, key=version_of)
        return iteration_of([next_], latest if next_.status.repairs else top)
    return iteration_of(jobs, latest)


def _by_shard(jobs: Sequence[Job]) -> list[list[Job]]:
    """The jobs by shard; the jobs of one never wait for those of another."""
    found: dict[int | None, list[Job]] = {}
    for job in jobs:
        found.setdefault(shard_of(job.spec.detail.consumer.options), []).append(job)
    return list(found.values())


def _watermark(job: Job) -> Moment:
    return job.watermark


def _version(moment: Moment) -> int:
    return moment.version
