"""Who a scan is written for: one consumer, under a run's claims on its jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from iscp_dagster.joblog.iterations import Claim, Done
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.declared.sharding import base_name, shard_of
from iscp_dagster.model.errors import FenceError
from iscp_dagster.model.jobs import Job, JobID, JobKey
from iscp_dagster.model.specs import ConsumerInfo
from iscp_dagster.model.states import JobState
from iscp_dagster.sync.executors.retriever import Retriever

FIRST = 2
"""The fence of a job's very first claim: 0 when registered, 1 when queued, 2 when begun."""


@dataclass(frozen=True, kw_only=True)
class Sink:
    """One consumer that takes part in a scan: that of the claims' job, for all their tenants."""

    log: SqlLog
    claims: Sequence[Claim]
    """All on jobs of one name, whose tenants share one table."""

    @property
    def job(self) -> JobID:
        return self.claims[0].name

    @property
    def registrations(self) -> Mapping[str, int]:
        """The registrations of the claims' jobs, by tenant."""
        return {claim.key.tenant: claim.registration for claim in self.claims}

    @property
    def info(self) -> ConsumerInfo:
        return self.claims[0].consumer

    @property
    def run_id(self) -> str:
        return self.claims[0].run_id

    @property
    def fences(self) -> Mapping[str, int]:
        """The fences of the claims, by tenant."""
        return {claim.key.tenant: claim.fence for claim in self.claims}

    @property
    def left_unconfirmed(self) -> frozenset[str]:
        """The tenants with a batch left unconfirmed by an earlier run that may still write."""
        return frozenset(claim.key.tenant for claim in self.claims if claim.takes_over)

    def written_before(self) -> frozenset[str]:
        """The tenants for which an earlier run may have written rows: all but those of new jobs."""
        rows = Counter(job.key.tenant for job in self._rows())
        return frozenset(
            claim.key.tenant
            for claim in self.claims
            if claim.fence > FIRST or rows[claim.key.tenant] > 1
        )

    def alive(self) -> Collection[str]:
        """The runs at work on the tables of the same index, for any tenant."""
        index = _index(self.claims[0])
        running = self.log.jobs(state=JobState.RUNNING)
        return {job.run_id for job in running if job.run_id and _index(job) == index}

    def lost(self) -> Mapping[str, FenceError]:
        """The tenants whose jobs this run no longer holds."""
        return {key.tenant: error for key, error in lost(self.log, self.claims).items()}

    def lost_for(self, tenant: str) -> FenceError | None:
        """Why this run no longer holds the tenant's job; None: it does."""
        mine = [claim for claim in self.claims if claim.key.tenant == tenant]
        return next(iter(lost(self.log, mine).values()), None)

    def settle(self, connection: Any, retriever: Retriever) -> Mapping[JobKey, Claim | None]:
        """Move the claims' watermarks in the consumer's transaction.

        Returns the claims of the next steps, None after the last one. Raises FenceError if the
        run no longer holds some of the claims, and refuses those: the transaction has their rows
        too, so it must be rolled back.
        """
        joined = self.log.within(connection)
        steps = [
            Done(claim=claim, to=claim.step.range.to, counts=retriever.counts(claim.key.tenant))
            for claim in self.claims
            if claim.key.tenant not in retriever.refused
        ]
        moved = dict(joined.advance([each for each in steps if not each.claim.last]))
        moved |= joined.complete([each for each in steps if each.claim.last])
        taken = {key: each for key, each in moved.items() if isinstance(each, FenceError)}
        for key, error in taken.items():
            retriever.refuse(key.tenant, error)
        for error in taken.values():
            raise error
        claims = {key: each for key, each in moved.items() if isinstance(each, Claim)}
        return {each.claim.key: claims.get(each.claim.key) for each in steps}

    def _rows(self) -> list[Job]:
        tenants = {claim.key.tenant for claim in self.claims}
        return self.log.jobs(name=self.job, tenants=tenants, include_dropped=True)


def lost(log: SqlLog, claims: Collection[Claim]) -> Mapping[JobKey, FenceError]:
    """The claims, all on one table, that their run no longer holds, each with its FenceError."""
    if not claims:
        return {}
    (table_id,) = {claim.key.table_id for claim in claims}
    held = log.fences(table_id, {claim.key.tenant for claim in claims})
    return {
        claim.key: FenceError(
            f"Job {claim.key} was taken from run {claim.run_id} by another writer; this "
            "run publishes nothing more for it. The next iteration continues."
        )
        for claim in claims
        if held.get(claim.key) != (claim.registration, claim.fence)
    }


def _index(each: Job | Claim) -> tuple[str, str, str]:
    """The index, whether the job keeps a shard of it or, from before sharding, all of it."""
    shard = shard_of(each.spec.detail.consumer.options)
    return each.name.db, each.name.table, base_name(each.name.job, shard)
