"""What every ISCP log offers, wherever it keeps its rows (seed 001, `mo_iscp_log`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from iscp_dagster.core.batch import Layout
from iscp_dagster.core.iterations import Claim, Iteration
from iscp_dagster.core.jobs import Job, JobID, JobKey, Registration
from iscp_dagster.core.moment import Moment
from iscp_dagster.core.specs import JobSpec
from iscp_dagster.core.states import JobState


class JobLog(Protocol):
    """The one durable record of jobs. Each method is one transaction: all of it or nothing.

    Safe under callers from several threads and processes. A row that another writer moved
    raises FenceError; a log that does not answer raises UnavailableError.
    """

    def ensure(self) -> None:
        """Make the log ready to use. Idempotent, and safe from several processes at once."""

    def register(self, account: str, name: JobID, table_id: str, spec: JobSpec) -> bool:
        """True when created, False when it exists.

        A dropped row of that name is replaced, with a new job id, from START.
        """

    def register_many(self, rows: Iterable[Registration]) -> int:
        """How many were created; the others exist. Of rows with one key the first counts."""

    def unregister(self, account: str, name: JobID, table_id: str | None = None) -> bool:
        """True when dropped, False when there is no such job. A run that holds it loses it.

        Without `table_id`, on whatever table had that name (also one since recreated).
        """

    def jobs(
        self,
        *,
        table_id: str | None = None,
        account: str | None = None,
        state: JobState | None = None,
        include_dropped: bool = False,
    ) -> list[Job]:
        """The rows, ordered by key."""

    def job(self, key: JobKey) -> Job | None:
        """The row, unless there is none or it is dropped."""

    def count(self, table_id: str | None = None) -> dict[JobState, int]:
        """How many live jobs are in each state; every state is there."""

    def enqueue(self, iteration: Iteration, run_id: str) -> None:
        """Set the iteration's jobs pending for `run_id`: a run's id, or a name for it to come."""

    def begin(
        self, iteration: Iteration, run_id: str, layout: Layout, *, queued_as: str | None = None
    ) -> tuple[Claim, ...]:
        """Claim the iteration's jobs, in its order: running, first step recorded BEFORE.

        Each job must be startable and stand at the iteration's start; a pending one must wait
        for `run_id` or `queued_as`. Otherwise FenceError names it and no row changes. A batch
        left unconfirmed by an earlier run is in the claim's steps, to be replayed.
        """

    def advance(self, claim: Claim) -> Claim:
        """The claim's step is written: move the watermark, record the next step BEFORE it."""

    def complete(self, claim: Claim, to: Moment, counts: Mapping[str, int]) -> None:
        """The claim's last step is written: AFTER, watermark `to`, EndAt, state completed."""

    def fail(self, claim: Claim, code: int, message: str) -> None:
        """The iteration failed: code and message kept, batch still BEFORE, watermark unmoved.

        1-9999: completed, to be planned again; 10000 and above: error.
        """

    def cancel(self, keys: Iterable[JobKey]) -> tuple[JobKey, ...]:
        """Cancel those that are pending or running, and say which were. Idempotent."""

    def active_runs(self) -> frozenset[str]:
        """The run ids of pending and running jobs."""

    def recover(self, gone: Collection[str]) -> tuple[JobKey, ...]:
        """Set the pending and running jobs of the runs `gone` completed, and say which."""

    def repair(self, keys: Iterable[JobKey]) -> tuple[JobKey, ...]:
        """Set those in error completed, so that they are planned again, and say which."""

    def standings(self) -> Mapping[str, frozenset[tuple[str, int, JobState]]]:
        """Where live jobs stand: every (job name, watermark's version, state), by table id.

        One question for all tables, since a runner asks it at every look.
        """

    def advance_idle(
        self, table_id: str, accounts: Collection[str], since: Moment, to: Moment
    ) -> int:
        """Move to `to` the idle jobs of tenants whose data did not change in (since, to].

        Only jobs that are completed, stand at or after `since` and before `to`, have had their
        first iteration and have no unconfirmed batch. Returns how many moved. Idempotent.
        """
