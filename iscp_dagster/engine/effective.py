"""The effective watermark: moved on, in memory, over commits that did not change the tenant.

The job log hears of it when the tenant iterates next, or from the hourly flush (seed 001,
"Filter Tables without Updates", "Flush Watermark").
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from iscp_dagster.core.batch import Phase
from iscp_dagster.core.jobs import Job
from iscp_dagster.core.moment import START, Moment
from iscp_dagster.core.states import JobState
from iscp_dagster.lake.deltalog import DeltaLog
from iscp_dagster.log.protocol import JobLog


def effective(log: DeltaLog, jobs: Collection[Job], upto: Moment) -> list[Job]:
    """The jobs of one table, each idle one at the last version before a change of its tenant.

    A job stays where it is when it is not at rest, or when the log cannot tell what changed. None
    moves over a change of the table's columns, which an iteration has to see.
    """
    versions = {job.watermark.version for job in jobs if _may_move(job, upto)}
    first = {version: log.first_changes(version, upto.version) for version in versions}
    told = [version for version in versions if first[version] is not None]
    ends = {version: rest_until(log, version, upto) for version in told}
    moved = []
    for job in jobs:
        changes = first.get(job.watermark.version) if _may_move(job, upto) else None
        if changes is None:
            moved.append(job)
            continue
        end = ends[job.watermark.version]
        change = changes.get(job.key.account)
        if change is not None and change <= end.version:
            end = _before(log, job.watermark, change)
        moved.append(replace(job, watermark=end))
    return moved


def rest_until(log: DeltaLog, version: int, upto: Moment) -> Moment:
    """How far a job at `version` may move when its tenant does not change.

    The log must hold the commits since.
    """
    stated = log.first_metadata(version, upto.version)
    return upto if stated is None else log.moment(stated - 1)


def flush_jobs(job_log: JobLog, jobs: Sequence[Job], moved: Iterable[Job]) -> int:
    """Write down where `effective` moved these jobs; how many moved."""
    steps: dict[tuple[str, Moment, Moment], set[str]] = {}
    for job, now in zip(jobs, moved, strict=True):
        if now.watermark != job.watermark:
            step = job.key.table_id, job.watermark, now.watermark
            steps.setdefault(step, set()).add(job.key.account)
    # From the newest on, so that no job is moved twice.
    ordered = sorted(steps.items(), key=lambda step: -step[0][1].version)
    return sum(job_log.flush(table, tenants, since, to) for (table, since, to), tenants in ordered)


def _may_move(job: Job, upto: Moment) -> bool:
    unsure = job.batch is not None and job.batch.phase is Phase.BEFORE
    behind = START.version < job.watermark.version < upto.version
    return job.state is JobState.COMPLETED and behind and not unsure


def _before(log: DeltaLog, watermark: Moment, change: int) -> Moment:
    return watermark if change - 1 <= watermark.version else log.moment(change - 1)
