"""How each event changes a job's row: pure functions from row to row.

The ISCP logs differ in how they keep rows; what happens to a row is said here once. A function
raises and nothing changes when the row is not what the event needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from iscp_dagster.core.batch import BatchRecord, Layout, Phase, Step, claim_steps
from iscp_dagster.core.errors import BatchError, ConfigError, FenceError
from iscp_dagster.core.iterations import Claim, Iteration
from iscp_dagster.core.jobs import ERROR_TEXT_LIMIT, Job, JobKey, JobStatus, Registration, storable
from iscp_dagster.core.moment import START, Moment
from iscp_dagster.core.states import Event, JobState, after, sources

FIRST_PERMANENT = 10_000
"""Error codes from here on are permanent; from 1 to here, temporary (seed 001)."""


def registered(row: Registration, *, job_id: int, seq: int, now: datetime) -> Job:
    """A fresh row; `seq` goes on from the dropped row that it replaces."""
    return Job(
        key=row.key,
        job_id=job_id,
        name=row.name,
        spec=row.spec,
        state=after(Event.REGISTER, None, row.key),
        watermark=START,
        status=JobStatus(),
        create_at=now,
        seq=seq,
    )


def unregistered(job: Job, now: datetime) -> Job:
    """Marked as dropped; a run that holds it has lost its claim."""
    return replace(job, drop_at=now, seq=job.seq + 1)


def enqueued(job: Job | None, key: JobKey, iteration: Iteration, run_id: str) -> Job:
    """Waiting for a worker, for `run_id` alone. Raises FenceError."""
    due = _due(job, key, iteration, Event.ENQUEUE)
    return _moved(due, Event.ENQUEUE, run_id=run_id)


def begun(
    job: Job | None,
    key: JobKey,
    iteration: Iteration,
    *,
    run_id: str,
    queued_as: str | None,
    layout: Layout,
    now: datetime,
) -> tuple[Job, Claim]:
    """Running, its first step recorded as BEFORE. Raises FenceError, BatchError."""
    due = _due(job, key, iteration, Event.START)
    _refuse_others_run(due, run_id, queued_as)
    case, steps = claim_steps(due.batch, iteration.range, layout)
    whole = replace(iteration.range, to=steps[-1].range.to)
    status = JobStatus(from_=whole.from_, to=whole.to, start_at=now)
    row = _moved(due, Event.START, run_id=run_id, status=status, batch=_before(steps[0]))
    return row, Claim(
        key=key,
        job_id=row.job_id,
        name=row.name,
        spec=row.spec,
        fence=row.seq,
        run_id=run_id,
        range=whole,
        steps=steps,
        previous=due.batch,
        case=case,
    )


def advanced(job: Job | None, claim: Claim) -> tuple[Job, Claim]:
    """The claim's step done, its watermark moved and its next step recorded as BEFORE."""
    row = _held(job, claim)
    if claim.last:
        raise BatchError(f"Job {claim.key}: no step follows {claim.step.range}; complete it.")
    steps = claim.steps[1:]
    watermark = _later(row.watermark, claim.step.range.to)
    row = replace(row, watermark=watermark, batch=_before(steps[0]), seq=row.seq + 1)
    return row, replace(claim, fence=row.seq, steps=steps)


def completed(
    job: Job | None, claim: Claim, to: Moment, counts: Mapping[str, int], now: datetime
) -> Job:
    """Completed at `to`, its batch confirmed. Raises FenceError, BatchError."""
    row = _held(job, claim)
    if not claim.last or to.version != claim.range.to.version:
        raise BatchError(
            f"Job {claim.key}: cannot complete at version {to.version} with "
            f"{len(claim.steps) - 1} steps left of {claim.range}; advance step by step to its end."
        )
    done = BatchRecord(range=claim.step.range, phase=Phase.AFTER, layout=claim.step.layout or {})
    status = replace(row.status, to=to, end_at=now, counts=dict(counts))
    watermark = _later(row.watermark, to)
    return _moved(row, Event.COMPLETE, watermark=watermark, status=status, batch=done)


def failed(job: Job | None, claim: Claim, code: int, message: str, now: datetime) -> Job:
    """Failed with `code` (1-9999 temporary, else permanent); the batch stays BEFORE."""
    row = _held(job, claim)
    if code < 1:
        raise ConfigError(f"Job {claim.key}: the error code {code} is below 1.")
    event = Event.FAIL_PERMANENT if code >= FIRST_PERMANENT else Event.FAIL_TEMPORARY
    text = storable(message)[:ERROR_TEXT_LIMIT]
    status = replace(row.status, end_at=now, error_code=code, error_msg=text)
    return _moved(row, event, status=status)


def canceled(job: Job, now: datetime) -> Job:
    """Canceled; a run that holds it has lost its claim, and its batch stays BEFORE."""
    return _moved(job, Event.CANCEL, status=_ended(job, now))


def recovered(job: Job, now: datetime) -> Job:
    """Completed because its run is gone; its batch stays BEFORE, to be replayed."""
    return _moved(job, Event.RECOVER, status=_ended(job, now))


def repaired(job: Job, now: datetime) -> Job:
    """Completed again by a person, its error forgotten, and its batch with it.

    What a permanent error refused is refused again when replayed as recorded; after a repair of
    the source the range is read whole, from the watermark to its new end. Rows that the failed
    batch did write are written again with a later version, so each key is there once.
    """
    del now
    status = replace(job.status, error_code=0, error_msg="")
    return replace(_moved(job, Event.REPAIR, status=status), batch=None)


def _moved(
    job: Job,
    event: Event,
    *,
    watermark: Moment | None = None,
    status: JobStatus | None = None,
    batch: BatchRecord | None = None,
    run_id: str | None = None,
) -> Job:
    return replace(
        job,
        state=after(event, job.state, job.key),
        watermark=watermark or job.watermark,
        status=status or job.status,
        batch=batch or job.batch,
        run_id=run_id or job.run_id,
        seq=job.seq + 1,
    )


def _due(job: Job | None, key: JobKey, iteration: Iteration, event: Event) -> Job:
    if job is None or job.drop_at is not None:
        raise FenceError(f"Job {key} is not registered; plan without it.")
    if job.state not in sources(event):
        raise FenceError(
            f"Job {key} is {job.state.label} in run {job.run_id}; plan again when it is not."
        )
    if job.watermark.version != iteration.from_.version:
        raise FenceError(
            f"Job {key} stands at version {job.watermark.version}, the iteration starts from "
            f"{iteration.from_.version}; plan again."
        )
    return job


def _refuse_others_run(job: Job, run_id: str, queued_as: str | None) -> None:
    if job.state is JobState.PENDING and job.run_id not in {run_id, queued_as}:
        raise FenceError(f"Job {job.key} is queued for run {job.run_id}, not for {run_id}.")
    if job.state is JobState.CANCELED and job.run_id in {run_id, queued_as}:
        raise FenceError(f"Job {job.key} was canceled in run {job.run_id}; a new run may start.")


def _held(job: Job | None, claim: Claim) -> Job:
    lost = job is None or job.drop_at is not None or job.job_id != claim.job_id
    if job is None or lost or job.seq != claim.fence:
        raise FenceError(
            f"Job {claim.key}: run {claim.run_id} holds fence {claim.fence}, the row is at "
            f"{'none' if job is None else job.seq}; another writer has taken it, stop here."
        )
    return job


def _before(step: Step) -> BatchRecord:
    return BatchRecord(range=step.range, phase=Phase.BEFORE, layout=step.layout or {})


def _later(one: Moment, other: Moment) -> Moment:
    return max(one, other, key=lambda moment: moment.version)


def _ended(job: Job, now: datetime) -> JobStatus:
    begun_before = job.status.start_at is not None and job.status.end_at is None
    return replace(job.status, end_at=now) if begun_before else job.status
