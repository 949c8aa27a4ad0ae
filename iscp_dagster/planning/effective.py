"""The effective watermark: moved in memory over commits that did not change the tenant.

The tenant's next iteration, or the hourly flush, writes it to the ISCP log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.joblog.protocol import JobLog
from iscp_dagster.model.batch import Phase, Range
from iscp_dagster.model.jobs import Job
from iscp_dagster.model.moment import START, Moment
from iscp_dagster.model.states import JobState


@dataclass(frozen=True, kw_only=True)
class EffectiveJob:
    """A job moved in memory: `job` has the watermark that its next iteration starts from."""

    job: Job
    agrees: Moment
    """Up to here its index agrees with its source. Later than the watermark where only columns
    changed in between, which the next iteration must see."""

    def in_step(self, latest: Moment) -> bool:
        """Whether the job is up to date with its table at `latest`."""
        return self.job.state is JobState.COMPLETED and self.agrees >= latest


def effective_jobs(delta_log: DeltaLog, jobs: Collection[Job], upto: Moment) -> list[EffectiveJob]:
    """The jobs of one table, idle ones moved to just before their tenant's next change.

    A job stays where it is if it is not idle, or if the Delta log cannot tell what changed.
    """
    movable = {job.key for job in jobs if _may_move(job, upto) and delta_log.has(job.watermark)}
    ends = _ends(delta_log, {job.watermark.version for job in jobs if job.key in movable}, upto)
    found = []
    for job in jobs:
        at = job.watermark
        if job.key not in movable or at.version not in ends:
            found.append(EffectiveJob(job=job, agrees=at))
            continue
        change = delta_log.first_change(job.key.tenant, at.version, upto.version)
        agrees = upto if change is None else _before(delta_log, at, change)
        moved = replace(job, watermark=min(agrees, ends[at.version]))
        found.append(EffectiveJob(job=moved, agrees=agrees))
    return found


def effective(delta_log: DeltaLog, jobs: Collection[Job], upto: Moment) -> list[Job]:
    """The jobs at the watermarks that their next iterations start from."""
    return [each.job for each in effective_jobs(delta_log, jobs, upto)]


def _ends(delta_log: DeltaLog, versions: Collection[int], upto: Moment) -> dict[int, Moment]:
    """By version, how far a job may move from there when its tenant does not change.

    Leaves out versions after which the log cannot tell what changed.
    """
    ends: dict[int, Moment] = {}
    stated: int | None = START.version
    # Lowest first: the index that the log builds for it serves the others.
    for version in sorted(versions):
        if delta_log.tells(version, upto.version):
            if stated is not None and stated <= version:
                stated = delta_log.first_metadata(version, upto.version)
            ends[version] = upto if stated is None else delta_log.moment(stated - 1)
    return ends


def flush_jobs(log: JobLog, jobs: Sequence[Job], moved: Iterable[Job]) -> int:
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
