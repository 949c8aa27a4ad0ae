"""The batch states of an iteration that a state store keeps beside the ISCP log.

The job's row has the state as well, in one transaction with the watermark. A separate store
matters only when a run died between the two writes. They then disagree about a batch that the row
knows, and the store is right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from iscp_dagster.batches.protocol import Held, StateKey, StateStore, StateWrite
from iscp_dagster.clickhouse.kinds.indexes import index_of
from iscp_dagster.joblog.iterations import Claim, Iteration, Recall
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.batch import SETTLES, WRITES, BatchRecord, Phase, Range
from iscp_dagster.model.consumers.kinds import is_index
from iscp_dagster.model.errors import FenceError, IscpError, UnavailableError
from iscp_dagster.model.jobs import Job, JobKey
from iscp_dagster.sync.reading.reader import Reader, may_be_partial


def state_key(job: Job | Claim) -> StateKey:
    """The key under which a store keeps the job's batch."""
    return StateKey(
        tenant=job.key.tenant,
        table_id=job.key.table_id,
        job_name=job.key.job_name,
        registration=job.registration,
    )


@dataclass
class Ledger:
    """The batch states of one iteration in `store`; without a store, the job rows suffice."""

    store: StateStore | None
    _held: dict[StateKey, Held] = field(default_factory=dict)

    def previous(self, log: SqlLog, iteration: Iteration) -> Mapping[JobKey, BatchRecord]:
        """What the store holds for the iteration's index jobs; no entry where it holds nothing."""
        if self.store is None:
            return {}
        keys = {state_key(job): job.key for job in _jobs(log, iteration)}
        self._held |= self.store.read(list(keys))
        return {keys[each]: held.record for each, held in self._held.items() if each in keys}

    def before(self, claims: Iterable[Claim]) -> Mapping[JobKey, FenceError]:
        """Record BEFORE for the claims' steps that write; returns an error for each job lost.

        Jobs are independent, as in the store.
        """
        return self._write([each for each in claims if each.step.action in WRITES], Phase.BEFORE)

    def after(self, claims: Iterable[Claim]) -> Mapping[JobKey, FenceError]:
        """Record AFTER for the claims' steps that are written or set aside; returns as `before`."""
        return self._write([each for each in claims if each.step.action in SETTLES], Phase.AFTER)

    def _write(self, claims: Iterable[Claim], phase: Phase) -> Mapping[JobKey, FenceError]:
        """Skips user consumers, which may keep their state in a transaction with their data."""
        if self.store is None:
            return {}
        writes = {
            each.key: self._recorded(each, phase) for each in claims if is_index(each.consumer)
        }
        outcomes = self.store.write_many(list(writes.values()))
        lost: dict[JobKey, FenceError] = {}
        for key, write in writes.items():
            outcome = outcomes[write.key]
            if isinstance(outcome, FenceError):
                lost[key] = outcome
            else:
                self._held[write.key] = outcome
        return lost

    def _recorded(self, claim: Claim, phase: Phase) -> StateWrite:
        step, key = claim.step, state_key(claim)
        record = BatchRecord(range=step.range, phase=phase, layout=step.layout or {})
        return StateWrite(key=key, record=record, holder=claim.run_id, seen=self._held.get(key))


def recalled(
    reader: Reader, iteration: Iteration
) -> tuple[Ledger, Recall, UnavailableError | None]:
    """The iteration's ledger, the recall for its claims, and why the state store is unreadable.

    In that case the caller claims the jobs and fails them, always temporarily, since none of
    them is the cause.
    """
    deployment, ledger, unread = reader.deployment, Ledger(None), None
    previous: Mapping[JobKey, BatchRecord] = {}
    try:
        ledger = Ledger(deployment.states() if deployment.states else None)
        previous = ledger.previous(deployment.log, iteration)
    except IscpError as error:
        unread = UnavailableError(str(error))
    recall = Recall(
        previous=previous,
        unrepeatable=_unrepeatable(reader, iteration, previous),
        tolerate_state_mismatch=deployment.tolerate_state_mismatch,
        unread=unread is not None,
    )
    return ledger, recall, unread


def _unrepeatable(
    reader: Reader, iteration: Iteration, previous: Mapping[JobKey, BatchRecord]
) -> frozenset[JobKey]:
    """The jobs whose batch may be written in part and can no longer be read.

    Only append-only indexes that keep dead letters: in any other a snapshot replaces every row of
    the batch.
    """
    if reader.source.keys:
        return frozenset()
    by_range: dict[Range, set[JobKey]] = {}
    for job in _jobs(reader.deployment.log, iteration):
        batch = job.batch and previous.get(job.key, job.batch)
        if batch is not None and may_be_partial(batch) and _buries(reader, job):
            by_range.setdefault(batch.range, set()).add(job.key)
    found: set[JobKey] = set()
    for range_, keys in by_range.items():
        theirs = replace(reader, tenants=frozenset(key.tenant for key in keys))
        # A source that cannot be read fails its jobs later, where they are claimed.
        with suppress(IscpError):
            gone = theirs.unrepeatable(range_, iteration.to)
            found |= {key for key in keys if key.tenant in gone}
    return frozenset(found)


def _jobs(log: SqlLog, iteration: Iteration) -> list[Job]:
    """The iteration's jobs, as the log has them."""
    keys = frozenset(iteration.jobs)
    jobs = log.jobs(table_id=iteration.table_id, tenants=iteration.tenants)
    return [job for job in jobs if job.key in keys]


def _buries(reader: Reader, job: Job) -> bool:
    info = job.spec.detail.consumer
    with suppress(IscpError):
        return is_index(info) and index_of(reader.source, info).errors == "dead_letter"
    return False
