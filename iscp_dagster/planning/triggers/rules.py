"""The triggers `default` and `greedy`, and the functions that triggers are built from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from iscp_dagster.joblog.iterations import Iteration
from iscp_dagster.model.consumers.kinds import consumer_kind
from iscp_dagster.model.declared.sharding import shard_of
from iscp_dagster.model.jobs import Job
from iscp_dagster.model.moment import START, Moment
from iscp_dagster.model.states import ACTIVE, STARTABLE

Trigger = Callable[[Sequence[Job], Moment, datetime], tuple[Iteration, ...]]
"""Plans for the jobs of one type, table and tenant: (jobs ordered by name, latest, now).

Pure: the same rows, version and time give the same iterations.
"""


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


def iterates_alone(job: Job) -> bool:
    """Whether its iterations may wait for others for long, and so share no scan."""
    return consumer_kind(job.spec.detail.consumer.type).iterates_alone


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
