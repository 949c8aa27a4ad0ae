"""How each event changes a job's row: pure functions from row to row.

ISCP logs differ in how they store rows; this module defines once what happens to a row. If the row
does not allow the event, the function raises and nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from iscp_dagster.joblog.iterations import (
    NO_EARLIER_BATCHES,
    Claim,
    EarlierBatches,
    FailedStep,
    Iteration,
    WrittenStep,
)
from iscp_dagster.joblog.updates import SpecUpdate
from iscp_dagster.model.batch import (
    SETTLES,
    WRITES,
    BatchRecord,
    BatchStep,
    Layout,
    Phase,
    plan_steps,
)
from iscp_dagster.model.consumers.kinds import get_consumer_kind
from iscp_dagster.model.errors import (
    INVOCATION_FAILED,
    BatchError,
    ConfigError,
    FenceError,
    RunGoneError,
    TableGoneError,
)
from iscp_dagster.model.jobs import ERROR_TEXT_LIMIT, Job, JobKey, JobStatus, NewJob, to_sql_text
from iscp_dagster.model.moment import START, Moment
from iscp_dagster.model.specs import JobSpec
from iscp_dagster.model.states import Event, JobState, get_allowed_states, get_next_state

FIRST_PERMANENT = 10_000
"""Error codes from this one on are permanent; lower ones, from 1, are temporary."""


def register_job(row: NewJob, *, registration: int, seq: int, now: datetime) -> Job:
    """A new row; `seq` continues from the dropped row that it replaces."""
    return Job(
        key=row.key,
        registration=registration,
        name=row.name,
        spec=row.spec,
        state=get_next_state(Event.REGISTER, None, row.key),
        watermark=row.watermark,
        status=JobStatus(),
        create_at=now,
        seq=seq,
        happened=Event.REGISTER,
        changed_at=now,
    )


def make_successor_jobs(jobs: Iterable[Job], table_id: str) -> list[NewJob]:
    """The same jobs, to be registered for the table that replaced theirs."""
    return [
        NewJob(tenant=job.key.tenant, name=job.name, table_id=table_id, spec=job.spec)
        for job in jobs
    ]


def unregister_job(job: Job, now: datetime) -> Job:
    """Marked as dropped; a run that holds it loses its claim."""
    return replace(
        _apply_event(job, Event.UNREGISTER, now, status=_end_status(job, now)), drop_at=now
    )


def update_job(job: Job, change: SpecUpdate, now: datetime, *, interrupt: bool) -> Job:
    """With its new spec; a run that holds it continues with the old one.

    A new spec clears the backoff after earlier failures, as an interruption by a person does.
    A changed consumer, even if only its columns or options changed, gets all rows again; a queued
    iteration then starts from START.
    """
    spec = change.apply_to(job.spec)
    rebuild = job.rebuild or spec.detail.consumer != job.spec.detail.consumer
    resets_backoff = rebuild or interrupt or spec != job.spec
    status = replace(job.status, attempts=0) if resets_backoff else job.status
    row = replace(
        _apply_keeping_fence(job, Event.UPDATE, now), spec=spec, rebuild=rebuild, status=status
    )
    return row if job.state is JobState.RUNNING else _reset_if_rebuilding(row)


def prepare_update(job: Job, now: datetime, *, interrupt: bool) -> Job:
    """Ready for a change of spec: its error cleared, unless its table is gone.

    `interrupt` cancels a queued or running iteration. Any other job stays as it is.
    """
    if interrupt and job.active:
        return cancel_job(job, now)
    broken = job.state is JobState.ERROR and job.status.code != TableGoneError.code
    return repair_job(job, now) if broken else job


def has_changed(before: Job, after: Job) -> bool:
    """Whether a change of spec changed anything, even only the backoff."""
    unchanged = (before.spec, before.state) == (after.spec, after.state)
    return not unchanged or before.status.attempts != after.status.attempts


def rebuild_job(job: Job, now: datetime) -> Job:
    """To get all rows again, after any running iteration; without backoff after a failed one."""
    status = replace(job.status, attempts=0)
    row = replace(
        _apply_keeping_fence(job, Event.UPDATE, now),
        rebuild=True,
        status=status,
        spec=_renew_generation(job.spec),
    )
    return row if job.state is JobState.RUNNING else _reset_if_rebuilding(row)


def _renew_generation(spec: JobSpec) -> JobSpec:
    """The spec, for a service in its next generation, so that its invocations count as new.

    All tenants of an index share its table, and so its generation.
    """
    current = spec.detail.consumer
    if not get_consumer_kind(current.type).renews_generation:
        return spec
    consumer = replace(current, generation=current.generation + 1)
    return replace(spec, detail=replace(spec.detail, consumer=consumer))


def pause_job(job: Job, now: datetime) -> Job:
    """No longer planned; a queued or running iteration continues. A paused job is unchanged."""
    return (
        job
        if job.paused_at
        else replace(_apply_keeping_fence(job, Event.PAUSE, now), paused_at=now)
    )


def resume_job(job: Job, now: datetime) -> Job:
    """Planned again, without backoff. A job that is not paused is unchanged."""
    if not job.paused_at:
        return job
    status = replace(job.status, attempts=0)
    return replace(_apply_keeping_fence(job, Event.RESUME, now), paused_at=None, status=status)


def enqueue_job(
    job: Job | None, key: JobKey, iteration: Iteration, run_id: str, now: datetime
) -> Job:
    """Pending for `run_id` only. Raises FenceError."""
    due = _check_startable(job, key, iteration, Event.ENQUEUE)
    return replace(_apply_event(due, Event.ENQUEUE, now, run_id=run_id), queued_to=iteration.to)


def claim_job(
    job: Job | None,
    key: JobKey,
    iteration: Iteration,
    *,
    run_id: str,
    queued_as: str | None,
    layout: Layout,
    now: datetime,
    earlier: EarlierBatches = NO_EARLIER_BATCHES,
) -> tuple[Job, Claim]:
    """Running, its first step recorded as BEFORE if it writes. Raises FenceError.

    If the row has no batch, a state store's record is ignored.
    """
    due = _check_startable(job, key, iteration, Event.START)
    _check_run(due, run_id, queued_as)
    previous = due.batch and earlier.previous.get(key, due.batch)
    case, steps = plan_steps(
        previous,
        iteration.range,
        layout,
        tolerate_state_mismatch=earlier.tolerate_state_mismatch,
        repeatable=key not in earlier.unrepeatable,
    )
    claimed_range = replace(iteration.range, to=steps[-1].range.to)
    status = JobStatus(
        from_=claimed_range.from_,
        to=claimed_range.to,
        start_at=now,
        attempts=due.status.attempts,
        shared_by=len(iteration.jobs),
        repairs=due.status.repairs,
    )
    batch = _make_before_record(steps[0]) if steps[0].action in WRITES else previous
    batch = due.batch if earlier.unread else batch
    row = _apply_event(due, Event.START, now, run_id=run_id, status=status, batch=batch)
    return row, Claim(
        key=key,
        registration=row.registration,
        name=row.name,
        spec=row.spec,
        fence=row.seq,
        run_id=run_id,
        range=claimed_range,
        steps=steps,
        previous=previous,
        case=case,
        repairs=row.status.repairs,
    )


def advance_job(job: Job | None, claim: Claim, counts: Mapping[str, int]) -> tuple[Job, Claim]:
    """The claim's step completed: watermark moved, next step recorded as BEFORE."""
    row = check_fence(job, claim)
    if claim.last:
        raise BatchError(f"Job {claim.key}: no step follows {claim.step.range}; complete it.")
    steps = claim.steps[1:]
    watermark = _get_later(row.watermark, claim.step.range.to)
    status = replace(row.status, counts=sum_counts(row.status.counts, counts), repairs=0)
    batch = _make_before_record(steps[0])
    row = replace(row, watermark=watermark, status=status, batch=batch)
    row = replace(row, seq=row.seq + 1, happened=None)
    return row, replace(claim, fence=row.seq, steps=steps, repairs=0)


def complete_job(job: Job | None, step: WrittenStep, now: datetime) -> Job:
    """Completed at the step's end, its batch confirmed. Raises FenceError, BatchError."""
    claim, to = step.claim, step.to
    row = check_fence(job, claim)
    if not claim.last or to.version != claim.range.to.version:
        raise BatchError(
            f"Job {claim.key}: cannot complete at version {to.version} with "
            f"{len(claim.steps) - 1} steps left of {claim.range}; advance step by step to its end."
        )
    counted = sum_counts(row.status.counts, step.counts)
    status = replace(row.status, to=to, end_at=now, counts=counted, attempts=0, repairs=0)
    watermark = _get_later(row.watermark, to)
    batch = _make_after_record(claim.step) if claim.step.action in SETTLES else claim.previous
    row = _apply_event(row, Event.COMPLETE, now, watermark=watermark, status=status, batch=batch)
    return _reset_if_rebuilding(row)


def fail_job(job: Job | None, step: FailedStep, now: datetime) -> Job:
    """Failed with a code (1-9999 temporary, else permanent); the batch stays BEFORE."""
    return _apply_failure(check_fence(job, step.claim), step.code, step.message, now)


def refuse_job(job: Job, code: int, message: str, now: datetime) -> Job:
    """Failed before its run could claim it; it used no time and keeps its batch."""
    previous = job.status
    status = JobStatus(start_at=now, attempts=previous.attempts, repairs=previous.repairs)
    return _apply_failure(replace(job, status=status), code, message, now)


def cancel_job(job: Job, now: datetime) -> Job:
    """Canceled; a run that holds it loses its claim, and its batch stays BEFORE."""
    return _reset_if_rebuilding(_apply_event(job, Event.CANCEL, now, status=_end_status(job, now)))


def recover_job(job: Job, now: datetime) -> Job:
    """Completed because its run is gone; its batch stays BEFORE, to be replayed."""
    return _reset_if_rebuilding(_apply_event(job, Event.RECOVER, now, status=_end_status(job, now)))


def expire_job(job: Job, now: datetime) -> Job:
    """Completed because its lease expired; a running one counts a failure, its batch BEFORE."""
    row = recover_job(job, now)
    if job.state is not JobState.RUNNING:
        return row
    text = (
        f"Run {job.run_id} ended without a result: it was killed, ran out of memory or hung. "
        "The next iteration continues its work; look at the run if this happens again."
    )
    return replace(row, status=_make_error_status(job, RunGoneError.code, text, now))


def mark_stranded(job: Job, code: int, message: str, now: datetime) -> Job:
    """In error because its table is gone; a run that holds it loses its claim."""
    status = replace(_end_status(job, now), code=code, message=to_sql_text(message))
    return _reset_if_rebuilding(_apply_event(job, Event.STRAND, now, status=status))


def repair_job(job: Job, now: datetime) -> Job:
    """Completed again by a person, its error and its batch cleared.

    A replay of the recorded batch would fail again; after the source is repaired, the range from
    the watermark to its new end is read instead. Rows that the failed batch did write are written
    again with a later version, so each key exists once. But if a handler failed, its batch stays:
    only a replay attaches to the invocations that succeeded.
    """
    repairs = job.status.repairs + 1
    status = replace(job.status, code=0, message="", attempts=0, repairs=repairs)
    batch = job.batch if job.status.code == INVOCATION_FAILED else None
    return replace(_apply_event(job, Event.REPAIR, now, status=status), batch=batch)


def _apply_event(
    job: Job,
    event: Event,
    now: datetime,
    *,
    watermark: Moment | None = None,
    status: JobStatus | None = None,
    batch: BatchRecord | None = None,
    run_id: str | None = None,
) -> Job:
    return replace(
        job,
        state=get_next_state(event, job.state, job.key),
        watermark=watermark or job.watermark,
        status=status or job.status,
        batch=batch or job.batch,
        run_id=run_id or job.run_id,
        queued_to=None,
        seq=job.seq + 1,
        happened=event,
        changed_at=now,
    )


def _apply_failure(row: Job, code: int, message: str, now: datetime) -> Job:
    if code < 1:
        raise ConfigError(f"Job {row.key}: the error code {code} is below 1.")
    # A failure of the old consumer must not stop the new one.
    stops = code >= FIRST_PERMANENT and not row.rebuild
    event = Event.FAIL_PERMANENT if stops else Event.FAIL_TEMPORARY
    return _reset_if_rebuilding(
        _apply_event(row, event, now, status=_make_error_status(row, code, message, now))
    )


def _make_error_status(job: Job, code: int, message: str, now: datetime) -> JobStatus:
    text = to_sql_text(message)[:ERROR_TEXT_LIMIT]
    attempts = 0 if job.rebuild else job.status.attempts + 1
    return replace(job.status, end_at=now, code=code, message=text, attempts=attempts)


def _reset_if_rebuilding(job: Job) -> Job:
    """From START again if it must be rebuilt; it serves its old rows until then."""
    return replace(job, watermark=START, batch=None, rebuild=False) if job.rebuild else job


def _apply_keeping_fence(job: Job, event: Event, now: datetime) -> Job:
    """Like `_apply_event`, but keep the fence: a run that holds or awaits the job keeps it."""
    row = replace(_apply_event(job, event, now), seq=job.seq, changed_at=job.changed_at)
    return replace(row, queued_to=job.queued_to)


def _check_startable(job: Job | None, key: JobKey, iteration: Iteration, event: Event) -> Job:
    if job is None or job.drop_at is not None:
        raise FenceError(f"Job {key} is not registered; plan without it.")
    if job.state not in get_allowed_states(event):
        raise FenceError(
            f"Job {key} is {job.state.label} in run {job.run_id}; plan again when it is not."
        )
    if job.watermark.version != iteration.from_.version:
        raise FenceError(
            f"Job {key} is at version {job.watermark.version}, but the iteration starts from "
            f"{iteration.from_.version}; plan again."
        )
    return job


def _check_run(job: Job, run_id: str, queued_as: str | None) -> None:
    if job.state is JobState.PENDING and job.run_id not in {run_id, queued_as}:
        raise FenceError(f"Job {job.key} is queued for run {job.run_id}, not for {run_id}.")
    if job.state is JobState.CANCELED and job.run_id in {run_id, queued_as}:
        raise FenceError(f"Job {job.key} was canceled in run {job.run_id}; a new run may start.")


def check_fence(job: Job | None, claim: Claim) -> Job:
    """The row, which the claim still holds. Raises FenceError."""
    gone = job is None or job.drop_at is not None or job.registration != claim.registration
    if job is None or gone or job.seq != claim.fence:
        raise FenceError(
            f"Job {claim.key}: run {claim.run_id} holds fence {claim.fence}, but the row is at "
            f"{'none' if job is None else job.seq}; another writer has taken it, so stop here."
        )
    return job


def sum_counts(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    """The sums of the counts by name."""
    return {name: first.get(name, 0) + second.get(name, 0) for name in (*first, *second)}


def _make_before_record(step: BatchStep) -> BatchRecord:
    return BatchRecord(range=step.range, phase=Phase.BEFORE, layout=step.layout or {})


def _make_after_record(step: BatchStep) -> BatchRecord:
    return BatchRecord(range=step.range, phase=Phase.AFTER, layout=step.layout or {})


def _get_later(first: Moment, second: Moment) -> Moment:
    return max(first, second, key=lambda moment: moment.version)


def _end_status(job: Job, now: datetime) -> JobStatus:
    unfinished = job.status.start_at is not None and job.status.end_at is None
    return replace(job.status, end_at=now) if unfinished else job.status
