"""Whose claims a scan writes under, and who may have written the same rows before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from iscp_dagster.joblog.iterations import Claim
from iscp_dagster.joblog.protocol import JobLog
from iscp_dagster.model.errors import FenceError
from iscp_dagster.model.jobs import Job
from iscp_dagster.model.sharding import base_name, shard_of
from iscp_dagster.model.states import JobState

FIRST = 2
"""The fence of a job's very first claim: registered at 0, queued, begun."""


@dataclass(frozen=True, kw_only=True)
class Tenure:
    """The claims of one run on one index, as the log has them now."""

    log: JobLog
    claims: Sequence[Claim]

    @property
    def run_id(self) -> str:
        return self.claims[0].run_id

    @property
    def left_unconfirmed(self) -> frozenset[str]:
        """The tenants of whom an earlier run left a batch, and may yet believe that it holds it."""
        return frozenset(claim.key.account for claim in self.claims if claim.takes_over)

    def written_before(self) -> frozenset[str]:
        """The tenants of whom any earlier run may have written rows; not of one that is new."""
        rows = Counter(job.key.account for job in self._rows())
        return frozenset(
            claim.key.account
            for claim in self.claims
            if claim.fence > FIRST or rows[claim.key.account] > 1
        )

    def check(self) -> None:
        """Raises FenceError where another run has one of the claims."""
        held = {(job.key, job.job_id, job.seq) for job in self._rows() if job.drop_at is None}
        for claim in self.claims:
            if (claim.key, claim.job_id, claim.fence) not in held:
                raise FenceError(
                    f"Job {claim.key} was taken from run {claim.run_id} by another writer before "
                    "anything was written; the next iteration continues."
                )

    def alive(self) -> Collection[str]:
        """The runs that are at work on the same index's tables, for whomever."""
        index = _index(self.claims[0])
        running = self.log.jobs(state=JobState.RUNNING)
        return {job.run_id for job in running if job.run_id and _index(job) == index}

    def _rows(self) -> list[Job]:
        accounts = {claim.key.account for claim in self.claims}
        return self.log.jobs(name=self.claims[0].name, accounts=accounts, include_dropped=True)


def _index(each: Job | Claim) -> tuple[str, str, str]:
    """Of whichever of its shards: what an index was before it had any is the first one's."""
    shard = shard_of(each.spec.detail.consumer.options)
    return each.name.db, each.name.table, base_name(each.name.job, shard)
