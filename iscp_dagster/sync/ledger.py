"""The batch states of an iteration that a state store keeps beside the ISCP log.

The job's row has the state as well, in one transaction with the watermark. A separate store
matters only when a run died between the two writes. They then disagree about a batch that the row
knows, and the store is right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from iscp_dagster.batchstates.protocol import StateKey, StateStore, StateWrite, StoredState
from iscp_dagster.clickhouse.kinds.index_kind import resolve_index
from iscp_dagster.joblog.iterations import Claim, EarlierBatches, Iteration
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.batch import SETTLES, WRITES, BatchRecord, Phase, Range
from iscp_dagster.model.consumers.kinds import is_index
from iscp_dagster.model.errors import FenceError, IscpError, UnavailableError
from iscp_dagster.model.jobs import Job, JobKey
from iscp_dagster.sync.reading.reader import SourceReader, can_be_partial


def make_state_key(job: Job | Claim) -> StateKey:
    """The key under which a store keeps the job's batch."""
    return StateKey(
        tenant=job.key.tenant,
        table_id=job.key.table_id,
        job_name=job.key.job_name,
        registration=job.registration,
    )


@dataclass
class BatchLedger:
    """The batch states of one iteration in `store`; without a store, the job rows suffice."""

    store: StateStore | None
    _states: dict[StateKey, StoredState] = field(default_factory=dict)

    def read_previous(self, log: SqlLog, iteration: Iteration) -> Mapping[JobKey, BatchRecord]:
        """The stored batches of the iteration's index jobs; no entry where there is none."""
        if self.store is None:
            return {}
        keys = {make_state_key(job): job.key for job in _list_jobs(log, iteration)}
        self._states |= self.store.read(list(keys))
        return {keys[key]: state.record for key, state in self._states.items() if key in keys}

    def record_before(self, claims: Iterable[Claim]) -> Mapping[JobKey, FenceError]:
        """Record BEFORE for the claims' steps that write; returns an error for each job lost.

        Jobs are independent, as in the store.
        """
        return self._write_records(
            [claim for claim in claims if claim.step.action in WRITES], Phase.BEFORE
        )

    def record_after(self, claims: Iterable[Claim]) -> Mapping[JobKey, FenceError]:
        """Record AFTER for steps that are written or set aside; returns like `record_before`."""
        return self._write_records(
            [claim for claim in claims if claim.step.action in SETTLES], Phase.AFTER
        )

    def _write_records(self, claims: Iterable[Claim], phase: Phase) -> Mapping[JobKey, FenceError]:
        """Skips user consumers, which may keep their state in a transaction with their data."""
        if self.store is None:
            return {}
        writes = {
            claim.key: self._make_write(claim, phase)
            for claim in claims
            if is_index(claim.consumer)
        }
        outcomes = self.store.write_many(list(writes.values()))
        lost: dict[JobKey, FenceError] = {}
        for key, write in writes.items():
            outcome = outcomes[write.key]
            if isinstance(outcome, FenceError):
                lost[key] = outcome
            else:
                self._states[write.key] = outcome
        return lost

    def _make_write(self, claim: Claim, phase: Phase) -> StateWrite:
        step, key = claim.step, make_state_key(claim)
        record = BatchRecord(range=step.range, phase=phase, layout=step.layout or {})
        return StateWrite(
            key=key, record=record, holder=claim.run_id, expected=self._states.get(key)
        )


def load_ledger(
    reader: SourceReader, iteration: Iteration
) -> tuple[BatchLedger, EarlierBatches, UnavailableError | None]:
    """The ledger, what claims need to know of earlier batches, and a state store's error.

    In that case the caller claims the jobs and fails them, always temporarily, since none of
    them is the cause.
    """
    deployment, ledger, store_error = reader.deployment, BatchLedger(None), None
    previous: Mapping[JobKey, BatchRecord] = {}
    try:
        ledger = BatchLedger(deployment.open_state_store() if deployment.open_state_store else None)
        previous = ledger.read_previous(deployment.log, iteration)
    except IscpError as error:
        store_error = UnavailableError(str(error))
    earlier = EarlierBatches(
        previous=previous,
        unrepeatable=_find_unrepeatable(reader, iteration, previous),
        tolerate_state_mismatch=deployment.tolerate_state_mismatch,
        unread=store_error is not None,
    )
    return ledger, earlier, store_error


def _find_unrepeatable(
    reader: SourceReader, iteration: Iteration, previous: Mapping[JobKey, BatchRecord]
) -> frozenset[JobKey]:
    """The jobs whose batch may be written in part and can no longer be read.

    Only append-only indexes that keep dead letters: in any other a snapshot replaces every row of
    the batch.
    """
    if reader.source.keys:
        return frozenset()
    by_range: dict[Range, set[JobKey]] = {}
    for job in _list_jobs(reader.deployment.log, iteration):
        batch = job.batch and previous.get(job.key, job.batch)
        if batch is not None and can_be_partial(batch) and _has_dead_letters(reader, job):
            by_range.setdefault(batch.range, set()).add(job.key)
    unrepeatable: set[JobKey] = set()
    for range_, keys in by_range.items():
        range_reader = replace(reader, tenants=frozenset(key.tenant for key in keys))
        # A source that cannot be read fails its jobs later, once they are claimed.
        with suppress(IscpError):
            tenants = range_reader.find_unrepeatable(range_, iteration.to)
            unrepeatable |= {key for key in keys if key.tenant in tenants}
    return frozenset(unrepeatable)


def _list_jobs(log: SqlLog, iteration: Iteration) -> list[Job]:
    """The iteration's jobs, as the log has them."""
    keys = frozenset(iteration.jobs)
    jobs = log.list_jobs(table_id=iteration.table_id, tenants=iteration.tenants)
    return [job for job in jobs if job.key in keys]


def _has_dead_letters(reader: SourceReader, job: Job) -> bool:
    info = job.spec.detail.consumer
    with suppress(IscpError):
        return is_index(info) and resolve_index(reader.source, info).errors == "dead_letter"
    return False
