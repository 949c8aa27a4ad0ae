"""How each event changes a job's row: pure functions from row to row.

ISCP logs differ in how they store rows; this module defines once what happens to a row. If the row
does not allow the event, the function raises and nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from iscp_dagster.joblog.iterations import ROWS_ALONE, Claim, Done, Failed, Iteration, Recall
from iscp_dagster.joblog.updates import SpecUpdate
from iscp_dagster.model.batch import SETTLES, WRITES, BatchRecord, Layout, Phase, Step, claim_steps
from iscp_dagster.model.consumers.kinds import consumer_kind
from iscp_dagster.model.errors import (
    INVOCATION_FAILED,
    BatchError,
    ConfigError,
    FenceError,
    RunGoneError,
    TableGoneError,
)
from iscp_dagster.model.jobs import ERROR_TEXT_LIMIT, Job, JobKey, JobStatus, NewJob, storable
from iscp_dagster.model.moment import START, Moment
from iscp_dagster.model.specs import JobSpec
from iscp_dagster.model.states import Event, JobState, after, allowed

Outcome = TypeVar("Outcome", Done, Failed)

FIRST_PERMANENT = 10_000
"""Error codes from here on are permanent; those from 1 up to here, temporary."""


def registered(row: NewJob, *, registration: int, seq: int, now: datetime) -> Job:
    """A new row; `seq` continues from the dropped row that it replaces."""
    return Job(
        key=row.key,
        registration=registration,
        name=row.name,
        spec=row.spec,
        state=after(Event.REGISTER, None, row.key),
        watermark=row.watermark,
        status=JobStatus(),
        create_at=now,
        seq=seq,
        happened=Event.REGISTER,
        changed_at=now,
    )


def carried(jobs: Iterable[Job], table_id: str) -> list[NewJob]:
    """The same jobs, to be registered for the table that took their table's place."""
    return [
        NewJob(tenant=job.key.tenant, name=job.name, table_id=table_id, spec=job.spec)
        for job in jobs
    ]


def unregistered(job: Job, now: datetime) -> Job:
    """Marked as dropped; a run that holds it loses its claim."""
    return replace(_moved(job, Event.UNREGISTER, now, status=_ended(job, now)), drop_at=now)


def updated(job: Job, change: SpecUpdate, now: datetime, *, interrupt: bool) -> Job:
    """With its new spec; a run that holds it goes on under the old one.

    A new spec does not wait for failures of the old one, nor does a job that a person interrupts.
    A changed consumer, even if only its columns or options changed, gets all rows again; an
    iteration that waits for a worker then starts from START.
    """
    spec = change.applied(job.spec)
    rebuild = job.rebuild or spec.detail.consumer != job.spec.detail.consumer
    fresh = rebuild or interrupt or spec != job.spec
    status = replace(job.status, attempts=0) if fresh else job.status
    row = replace(_noted(job, Event.UPDATE, now), spec=spec, rebuild=rebuild, status=status)
    return row if job.state is JobState.RUNNING else _started_over(row)


def freed(job: Job, now: datetime, *, interrupt: bool) -> Job:
    """Ready for a change of spec: its error cleared, unless its table is gone.

    `interrupt` cancels a queued or running iteration. Any other job stays as it is.
    """
    if interrupt and job.active:
        return canceled(job, now)
    broken = job.state is JobState.ERROR and job.status.code != TableGoneError.code
    return repaired(job, now) if broken else job


def differs(before: Job, after: Job) -> bool:
    """Whether a change of spec changed anything, be it only how long the job waits."""
    same = (before.spec, before.state) == (after.spec, after.state)
    return not same or before.status.attempts != after.status.attempts


def rebuilt(job: Job, now: datetime) -> Job:
    """To get all rows again, after any running iteration; without backoff after a failed one."""
    status = replace(job.status, attempts=0)
    row = replace(_noted(job, Event.UPDATE, now), rebuild=True, status=status, spec=_anew(job.spec))
    return row if job.state is JobState.RUNNING else _started_over(row)


def _anew(spec: JobSpec) -> JobSpec:
    """The spec; a service's in its next generation, so that its invocations count as new ones.

    An index's generation is that of its table, which all tenants share.
    """
    held = spec.detail.consumer
    if not consumer_kind(held.type).renews_generation:
        return spec
    consumer = replace(held, generation=held.generation + 1)
    return replace(spec, detail=replace(spec.detail, consumer=consumer))


def paused(job: Job, now: datetime) -> Job:
    """No longer planned; what is queued or runs goes on. A paused job stays as it is."""
    return job if job.paused_at else replace(_noted(job, Event.PAUSE, now), paused_at=now)


def resumed(job: Job, now: datetime) -> Job:
    """Planned again, without backoff. A job that is not paused stays as it is."""
    if not job.paused_at:
        return job
    status = replace(job.status, attempts=0)
    return replace(_noted(job, Event.RESUME, now), paused_at=None, status=status)


def enqueued(job: Job | None, key: JobKey, iteration: Iteration, run_id: str, now: datetime) -> Job:
    """Pending for `run_id` alone. Raises FenceError."""
    due = _due(job, key, iteration, Event.ENQUEUE)
    return replace(_moved(due, Event.ENQUEUE, now, run_id=run_id), queued_to=iteration.to)


def begun(
    job: Job | None,
    key: JobKey,
    iteration: Iteration,
    *,
    run_id: str,
    queued_as: str | None,
    layout: Layout,
    now: datetime,
    recall: Recall = ROWS_ALONE,
) -> tuple[Job, Claim]:
    """Running, its first step recorded as BEFORE if it writes. Raises FenceError.

    If the row has no batch, a state store's record is ignored.
    """
    due = _due(job, key, iteration, Event.START)
    _refuse_others_run(due, run_id, queued_as)
    known = due.batch and recall.previous.get(key, due.batch)
    case, steps = claim_steps(
        known,
        iteration.range,
        layout,
        tolerate_state_mismatch=recall.tolerate_state_mismatch,
        repeatable=key not in recall.unrepeatable,
    )
    whole = replace(iteration.range, to=steps[-1].range.to)
    status = JobStatus(
        from_=whole.from_,
        to=whole.to,
        start_at=now,
        attempts=due.status.attempts,
        shared_by=len(iteration.jobs),
        repairs=due.status.repairs,
    )
    batch = _before(steps[0]) if steps[0].action in WRITES else known
    batch = due.batch if recall.unread else batch
    row = _moved(due, Event.START, now, run_id=run_id, status=status, batch=batch)
    return row, Claim(
        key=key,
        registration=row.registration,
        name=row.name,
        spec=row.spec,
        fence=row.seq,
        run_id=run_id,
        range=whole,
        steps=steps,
        previous=known,
        case=case,
        repairs=row.status.repairs,
    )


def advanced(job: Job | None, claim: Claim, counts: Mapping[str, int]) -> tuple[Job, Claim]:
    """With the claim's step done: watermark moved, next step recorded as BEFORE."""
    row = _held(job, claim)
    if claim.last:
        raise BatchError(f"Job {claim.key}: no step follows {claim.step.range}; complete it.")
    steps = claim.steps[1:]
    watermark = _later(row.watermark, claim.step.range.to)
    status = replace(row.status, counts=_sum(row.status.counts, counts), repairs=0)
    batch = _before(steps[0])
    row = replace(row, watermark=watermark, status=status, batch=batch)
    row = replace(row, seq=row.seq + 1, happened=None)
    return row, replace(claim, fence=row.seq, steps=steps, repairs=0)


def completed(job: Job | None, step: Done, now: datetime) -> Job:
    """Completed at the step's end, its batch confirmed. Raises FenceError, BatchError."""
    claim, to = step.claim, step.to
    row = _held(job, claim)
    if not claim.last or to.version != claim.range.to.version:
        raise BatchError(
            f"Job {claim.key}: cannot complete at version {to.version} with "
            f"{len(claim.steps) - 1} steps left of {claim.range}; advance step by step to its end."
        )
    counted = _sum(row.status.counts, step.counts)
    status = replace(row.status, to=to, end_at=now, counts=counted, attempts=0, repairs=0)
    watermark = _later(row.watermark, to)
    batch = _after(claim.step) if claim.step.action in SETTLES else claim.previous
    row = _moved(row, Event.COMPLETE, now, watermark=watermark, status=status, batch=batch)
    return _started_over(row)


def failed(job: Job | None, step: Failed, now: datetime) -> Job:
    """Failed with a code (1-9999 temporary, else permanent); the batch stays BEFORE."""
    return _failed(_held(job, step.claim), step.code, step.message, now)


def all_enqueued(
    rows: Mapping[JobKey, Job], iteration: Iteration, run_id: str, now: datetime
) -> tuple[list[Job], dict[JobKey, FenceError]]:
    """Enqueue the jobs whose rows still fit the iteration; errors for the others."""
    changed: list[Job] = []
    lost: dict[JobKey, FenceError] = {}
    for key in iteration.jobs:
        try:
            changed.append(enqueued(rows.get(key), key, iteration, run_id, now))
        except FenceError as error:
            lost[key] = error
    return changed, lost


def all_advanced(
    rows: Mapping[JobKey, Job], steps: Collection[Done]
) -> tuple[list[Job], dict[JobKey, Claim | FenceError]]:
    """Advance the rows that the claims still hold; each claim's successor, or its error."""
    changed: list[Job] = []
    outcomes: dict[JobKey, Claim | FenceError] = {}
    for step in steps:
        key = step.claim.key
        try:
            job, outcomes[key] = advanced(rows.get(key), step.claim, step.counts)
            changed.append(job)
        except FenceError as error:
            outcomes[key] = error
    return changed, outcomes


def all_ended(
    rows: Mapping[JobKey, Job],
    steps: Collection[Outcome],
    end: Callable[[Job | None, Outcome, datetime], Job],
    now: datetime,
) -> tuple[list[Job], dict[JobKey, FenceError]]:
    """End the rows that the claims still hold, as completed or failed; errors for the others."""
    changed: list[Job] = []
    lost: dict[JobKey, FenceError] = {}
    for step in steps:
        key = step.claim.key
        try:
            changed.append(end(rows.get(key), step, now))
        except FenceError as error:
            lost[key] = error
    return changed, lost


def refused(job: Job, code: int, message: str, now: datetime) -> Job:
    """Failed before its run could claim it; it used no time and keeps its batch."""
    before = job.status
    nothing = JobStatus(start_at=now, attempts=before.attempts, repairs=before.repairs)
    return _failed(replace(job, status=nothing), code, message, now)


def canceled(job: Job, now: datetime) -> Job:
    """Canceled; a run that holds it loses its claim, and its batch stays BEFORE."""
    return _started_over(_moved(job, Event.CANCEL, now, status=_ended(job, now)))


def recovered(job: Job, now: datetime) -> Job:
    """Completed because its run is gone; its batch stays BEFORE, to be replayed."""
    return _started_over(_moved(job, Event.RECOVER, now, status=_ended(job, now)))


def lost(job: Job, now: datetime) -> Job:
    """Completed because its lease ran out; a running one counts a failure, its batch BEFORE."""
    row = recovered(job, now)
    if job.state is not JobState.RUNNING:
        return row
    text = (
        f"Run {job.run_id} ended without a result: it was killed, ran out of memory or hung. "
        "The next iteration continues its work; look at the run if this happens again."
    )
    return replace(row, status=_erred(job, RunGoneError.code, text, now))


def stranded(job: Job, code: int, message: str, now: datetime) -> Job:
    """In error because its table is gone; a run that holds it loses its claim."""
    status = replace(_ended(job, now), code=code, message=storable(message))
    return _started_over(_moved(job, Event.STRAND, now, status=status))


def repaired(job: Job, now: datetime) -> Job:
    """Completed again by a person, its error forgotten, and its batch.

    A replay of the recorded batch would fail again; after a repair of the source the range is read
    whole instead, from the watermark to its new end. Rows that the failed batch did write are
    written again with a later version, so each key is there once. But if a handler failed, its
    batch stays: only a replay attaches to the invocations that had succeeded.
    """
    repairs = job.status.repairs + 1
    status = replace(job.status, code=0, message="", attempts=0, repairs=repairs)
    batch = job.batch if job.status.code == INVOCATION_FAILED else None
    return replace(_moved(job, Event.REPAIR, now, status=status), batch=batch)


def _moved(
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
        state=after(event, job.state, job.key),
        watermark=watermark or job.watermark,
        status=status or job.status,
        batch=batch or job.batch,
        run_id=run_id or job.run_id,
        queued_to=None,
        seq=job.seq + 1,
        happened=event,
        changed_at=now,
    )


def _failed(row: Job, code: int, message: str, now: datetime) -> Job:
    if code < 1:
        raise ConfigError(f"Job {row.key}: the error code {code} is below 1.")
    # The old consumer's failure does not stop the new one.
    stops = code >= FIRST_PERMANENT and not row.rebuild
    event = Event.FAIL_PERMANENT if stops else Event.FAIL_TEMPORARY
    return _started_over(_moved(row, event, now, status=_erred(row, code, message, now)))


def _erred(job: Job, code: int, message: str, now: datetime) -> JobStatus:
    text = storable(message)[:ERROR_TEXT_LIMIT]
    attempts = 0 if job.rebuild else job.status.attempts + 1
    return replace(job.status, end_at=now, code=code, message=text, attempts=attempts)


def _started_over(job: Job) -> Job:
    """From START again, if it is to be rebuilt; what it serves stays until then."""
    return replace(job, watermark=START, batch=None, rebuild=False) if job.rebuild else job


def _noted(job: Job, event: Event, now: datetime) -> Job:
    """Like `_moved`, but keep the fence: a run that holds the job, or is to, does not lose it."""
    row = replace(_moved(job, event, now), seq=job.seq, changed_at=job.changed_at)
    return replace(row, queued_to=job.queued_to)


def _due(job: Job | None, key: JobKey, iteration: Iteration, event: Event) -> Job:
    if job is None or job.drop_at is not None:
        raise FenceError(f"Job {key} is not registered; plan without it.")
    if job.state not in allowed(event):
        raise FenceError(
            f"Job {key} is {job.state.label} in run {job.run_id}; plan again when it is not."
        )
    if job.watermark.version != iteration.from_.version:
        raise FenceError(
            f"Job {key} is at version {job.watermark.version}, but the iteration starts from "
            f"{iteration.from_.version}; plan again."
        )
    return job


def _refuse_others_run(job: Job, run_id: str, queued_as: str | None) -> None:
    if job.state is JobState.PENDING and job.run_id not in {run_id, queued_as}:
        raise FenceError(f"Job {job.key} is queued for run {job.run_id}, not for {run_id}.")
    if job.state is JobState.CANCELED and job.run_id in {run_id, queued_as}:
        raise FenceError(f"Job {job.key} was canceled in run {job.run_id}; a new run may start.")


def _held(job: Job | None, claim: Claim) -> Job:
    lost = job is None or job.drop_at is not None or job.registration != claim.registration
    if job is None or lost or job.seq != claim.fence:
        raise FenceError(
            f"Job {claim.key}: run {claim.run_id} holds fence {claim.fence}, but the row is at "
            f"{'none' if job is None else job.seq}; another writer has taken it, so stop here."
        )
    return job


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in (*one, *other)}


def _before(step: Step) -> BatchRecord:
    return BatchRecord(range=step.range, phase=Phase.BEFORE, layout=step.layout or {})


def _after(step: Step) -> BatchRecord:
    return BatchRecord(range=step.range, phase=Phase.AFTER, layout=step.layout or {})


def _later(one: Moment, other: Moment) -> Moment:
    return max(one, other, key=lambda moment: moment.version)


def _ended(job: Job, now: datetime) -> JobStatus:
    begun_before = job.status.start_at is not None and job.status.end_at is None
    return replace(job.status, end_at=now) if begun_before else job.status
