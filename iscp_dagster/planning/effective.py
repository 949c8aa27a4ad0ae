"""The effective watermark: moved in memory over commits that did not change the tenant.

The tenant's next iteration, or the hourly flush, writes it to the ISCP log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.model.batch import Phase, Range
from iscp_dagster.model.jobs import Job
from iscp_dagster.model.moment import START, Moment
from iscp_dagster.model.states import JobState

if TYPE_CHECKING:
    from iscp_dagster.joblog.sql.log import SqlLog


def is_in_step(job: Job, latest: Moment) -> bool:
    """Whether the job, at its effective watermark, is up to date with its table at `latest`."""
    return job.state is JobState.COMPLETED and job.watermark >= latest


def compute_effective_jobs(delta_log: DeltaLog, jobs: Collection[Job], upto: Moment) -> list[Job]:
    """The jobs of one table at the watermarks that their next iterations start from.

    An idle job moves to just before the next commit that changes its tenant's rows, or the columns
    that all tenants' readers see. It does not move if it is not idle, or if the Delta log
    does not say what changed.
    """
    movable = {
        job.key for job in jobs if _can_move(job, upto) and delta_log.has_moment(job.watermark)
    }
    ends = _compute_ends(delta_log, {job.watermark for job in jobs if job.key in movable}, upto)
    return [
        _move_watermark(delta_log, job, ends[job.watermark], upto)
        if job.key in movable and job.watermark in ends
        else job
        for job in jobs
    ]


def _move_watermark(delta_log: DeltaLog, job: Job, end: Moment, upto: Moment) -> Job:
    watermark = job.watermark
    change = delta_log.find_first_change(job.key.tenant, watermark.version, upto.version)
    idle = upto if change is None else _get_moment_before(delta_log, watermark, change)
    return replace(job, watermark=min(idle, end))


def _compute_ends(
    delta_log: DeltaLog, watermarks: Collection[Moment], upto: Moment
) -> dict[Moment, Moment]:
    """By watermark, how far a job may move from there when its tenant does not change.

    Leaves out watermarks after which the log does not say what changed.
    """
    ends: dict[Moment, Moment] = {}
    change: int | None = START.version
    # Lowest first: the index that the log builds for it serves the others.
    for start in sorted(watermarks):
        if delta_log.can_tell_tenants(start.version, upto.version):
            if change is not None and change <= start.version:
                change = delta_log.find_first_column_change(start.version, upto.version)
            ends[start] = upto if change is None else _get_moment_before(delta_log, start, change)
    return ends


def flush_jobs(log: SqlLog, jobs: Sequence[Job], moved: Iterable[Job]) -> int:
    """Flush the watermarks of jobs that were `moved` in memory; return how many moved."""
    return log.flush(
        {
            job.key: Range(from_=job.watermark, to=effective.watermark)
            for job, effective in zip(jobs, moved, strict=True)
            if effective.watermark != job.watermark
        }
    )


def _can_move(job: Job, upto: Moment) -> bool:
    unconfirmed = job.batch is not None and job.batch.phase is Phase.BEFORE
    behind = START.version < job.watermark.version < upto.version
    return job.state is JobState.COMPLETED and behind and not unconfirmed


def _get_moment_before(delta_log: DeltaLog, watermark: Moment, change: int) -> Moment:
    return watermark if change - 1 <= watermark.version else delta_log.get_moment(change - 1)
