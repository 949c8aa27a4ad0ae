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


def in_step(job: Job, latest: Moment) -> bool:
    """Whether the job, at its effective watermark, is up to date with its table at `latest`."""
    return job.state is JobState.COMPLETED and job.watermark >= latest


def effective(delta_log: DeltaLog, jobs: Collection[Job], upto: Moment) -> list[Job]:
    """The jobs of one table at the watermarks that their next iterations start from.

    An idle job moves to just before the next commit that changes its tenant's rows, or the columns
    that all tenants' readers see. It stays where it is if it is not idle, or if the Delta log
    cannot tell what changed.
    """
    movable = {job.key for job in jobs if _may_move(job, upto) and delta_log.has(job.watermark)}
    ends = _ends(delta_log, {job.watermark for job in jobs if job.key in movable}, upto)
    return [
        _moved(delta_log, job, ends[job.watermark], upto)
        if job.key in movable and job.watermark in ends
        else job
        for job in jobs
    ]


def _moved(delta_log: DeltaLog, job: Job, end: Moment, upto: Moment) -> Job:
    at = job.watermark
    change = delta_log.first_change(job.key.tenant, at.version, upto.version)
    idle = upto if change is None else _before(delta_log, at, change)
    return replace(job, watermark=min(idle, end))


def _ends(
    delta_log: DeltaLog, watermarks: Collection[Moment], upto: Moment
) -> dict[Moment, Moment]:
    """By watermark, how far a job may move from there when its tenant does not change.

    Leaves out those after which the log cannot tell what changed.
    """
    ends: dict[Moment, Moment] = {}
    changed: int | None = START.version
    # Lowest first: the index that the log builds for it serves the others.
    for at in sorted(watermarks):
        if delta_log.tells(at.version, upto.version):
            if changed is not None and changed <= at.version:
                changed = delta_log.first_column_change(at.version, upto.version)
            ends[at] = upto if changed is None else _before(delta_log, at, changed)
    return ends


def flush_jobs(log: SqlLog, jobs: Sequence[Job], moved: Iterable[Job]) -> int:
    """Flush the watermarks that `effective` moved; return how many moved."""
    return log.flush(
        {
            job.key: Range(from_=job.watermark, to=now.watermark)
            for job, now in zip(jobs, moved, strict=True)
            if now.watermark != job.watermark
        }
    )


def _may_move(job: Job, upto: Moment) -> bool:
    unsure = job.batch is not None and job.batch.phase is Phase.BEFORE
    behind = START.version < job.watermark.version < upto.version
    return job.state is JobState.COMPLETED and behind and not unsure


def _before(delta_log: DeltaLog, watermark: Moment, change: int) -> Moment:
    return watermark if change - 1 <= watermark.version else delta_log.moment(change - 1)
