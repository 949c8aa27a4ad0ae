"""The receiver of a scan: one consumer, under a run's claims on its jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from iscp_dagster.joblog.iterations import Claim, WrittenStep
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.declared.sharding import get_shard, strip_shard_suffix
from iscp_dagster.model.errors import FenceError
from iscp_dagster.model.jobs import Job, JobID, JobKey
from iscp_dagster.model.portions import split_into_portions
from iscp_dagster.model.specs import ConsumerInfo
from iscp_dagster.model.states import JobState
from iscp_dagster.sync.executors.retriever import Retriever

FIRST_CLAIM_FENCE = 2
"""The fence of a job's very first claim: 0 when registered, 1 when queued, 2 when begun."""

CLAIMS_PER_QUERY = 100
"""Claims that are read together to find one that is still held."""


@dataclass(frozen=True, kw_only=True)
class ConsumerClaims:
    """One consumer that takes part in a scan: the claims' job's, for all their tenants."""

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

    def list_maybe_written_tenants(self) -> frozenset[str]:
        """The tenants for which an earlier run may have written rows: all but new jobs' tenants."""
        rows = Counter(job.key.tenant for job in self._list_jobs())
        return frozenset(
            claim.key.tenant
            for claim in self.claims
            if claim.fence > FIRST_CLAIM_FENCE or rows[claim.key.tenant] > 1
        )

    def list_live_runs(self) -> Collection[str]:
        """The runs at work on the tables of the same index, for any tenant."""
        index = _get_index(self.claims[0])
        running = self.log.list_jobs(state=JobState.RUNNING)
        return {job.run_id for job in running if job.run_id and _get_index(job) == index}

    def find_lost_tenants(self) -> Mapping[str, FenceError]:
        """The tenants whose jobs this run no longer holds."""
        return {key.tenant: error for key, error in find_lost_claims(self.log, self.claims).items()}

    def holds_any(self) -> bool:
        """Whether this run still holds one of the claims."""
        return any(
            len(find_lost_claims(self.log, portion)) < len(portion)
            for portion in split_into_portions(self.claims, most=CLAIMS_PER_QUERY)
        )

    def find_claim_error(self, tenant: str) -> FenceError | None:
        """Why this run no longer holds the tenant's job; None: it does."""
        claims = [claim for claim in self.claims if claim.key.tenant == tenant]
        return next(iter(find_lost_claims(self.log, claims).values()), None)

    def move_watermarks(
        self, connection: Any, retriever: Retriever
    ) -> Mapping[JobKey, Claim | None]:
        """Move the claims' watermarks in the consumer's transaction.

        Returns the claims of the next steps, None after the last one. Raises FenceError if the
        run no longer holds some of the claims, and refuses those: the transaction has their rows
        too, so it must be rolled back.
        """
        joined_log = self.log.bind(connection)
        steps = [
            WrittenStep(
                claim=claim, to=claim.step.range.to, counts=retriever.get_counts(claim.key.tenant)
            )
            for claim in self.claims
            if claim.key.tenant not in retriever.refused
        ]
        outcomes = dict(joined_log.advance([done for done in steps if not done.claim.last]))
        outcomes |= joined_log.complete([done for done in steps if done.claim.last])
        fence_errors = {
            key: outcome for key, outcome in outcomes.items() if isinstance(outcome, FenceError)
        }
        for key, error in fence_errors.items():
            retriever.refuse(key.tenant, error)
        for error in fence_errors.values():
            raise error
        claims = {key: outcome for key, outcome in outcomes.items() if isinstance(outcome, Claim)}
        return {done.claim.key: claims.get(done.claim.key) for done in steps}

    def _list_jobs(self) -> list[Job]:
        tenants = {claim.key.tenant for claim in self.claims}
        return self.log.list_jobs(name=self.job, tenants=tenants, include_dropped=True)


def find_lost_claims(log: SqlLog, claims: Collection[Claim]) -> Mapping[JobKey, FenceError]:
    """The claims, all on one table, that their run no longer holds, each with its FenceError."""
    if not claims:
        return {}
    (table_id,) = {claim.key.table_id for claim in claims}
    fences = log.read_fences(table_id, {claim.key.tenant for claim in claims})
    return {
        claim.key: FenceError(
            f"Job {claim.key} was taken from run {claim.run_id} by another writer; this "
            "run publishes nothing more for it. The next iteration continues."
        )
        for claim in claims
        if fences.get((claim.key.tenant, claim.key.job_name)) != (claim.registration, claim.fence)
    }


def _get_index(job: Job | Claim) -> tuple[str, str, str]:
    """The job's index, of which it keeps a shard or, from before sharding, all rows."""
    shard = get_shard(job.spec.detail.consumer.options)
    return job.name.db, job.name.table, strip_shard_suffix(job.name.job, shard)
