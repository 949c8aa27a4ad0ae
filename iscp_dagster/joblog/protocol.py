"""What every ISCP log offers, wherever it keeps its rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from iscp_dagster.joblog.history import Bookmark, Entry, Usage
from iscp_dagster.joblog.iterations import ROWS_ALONE, Claim, Done, Failed, Iteration, Recall
from iscp_dagster.joblog.leases import Leases
from iscp_dagster.joblog.updates import SpecUpdate
from iscp_dagster.model.batch import Layout
from iscp_dagster.model.errors import FenceError
from iscp_dagster.model.jobs import Job, JobID, JobKey, NewJob
from iscp_dagster.model.moment import Moment
from iscp_dagster.model.specs import JobSpec
from iscp_dagster.model.states import JobState


@dataclass(frozen=True, kw_only=True)
class Interrupted:
    """What a change of spec put an end to."""

    keys: tuple[JobKey, ...] = ()
    runs: frozenset[str] = frozenset()
    changed: bool = False
    """Whether any spec is another now."""


@dataclass(frozen=True, kw_only=True)
class Touched:
    """The (table id, tenant) of jobs that something happened to, and from where to ask next."""

    upto: Bookmark
    tenants: frozenset[tuple[str, str]] = frozenset()
    whole: bool = False
    """Whether these are all since the bookmark: the log still has its history from there on."""


@runtime_checkable
class SharedLog(Protocol):
    """A log in a database that others may write to in the same transaction."""

    def within(self, connection: Any) -> JobLog:
        """The log, each of whose methods is part of the caller's transaction."""


class JobLog(Protocol):
    """The one durable record of jobs. Each method is one transaction.

    Safe under callers from several threads and processes. A row that another writer moved
    raises FenceError; a log that does not answer raises UnavailableError.
    """

    @property
    def leases(self) -> Leases:
        """How long leases last."""

    def ensure(self) -> None:
        """Make the log ready to use. Idempotent, and safe from several processes at once."""

    def register(self, tenant: str, name: JobID, table_id: str, spec: JobSpec) -> bool:
        """True when created, False when it exists.

        A dropped row of that name is replaced, as a new registration, from START.
        """

    def register_many(
        self, rows: Iterable[NewJob], *, revive: bool = True, adopt: bool = True
    ) -> int:
        """How many were created; the others exist. Of rows with one key the first counts.

        Without `revive` a dropped row stays dropped, and what stands for every tenant at this
        moment counts instead of a row's spec. An index has one consumer for all its tenants:
        a row that has another is given theirs, or without `adopt` raises ConfigError.
        """

    def unregister(self, tenant: str | None, name: JobID, table_id: str | None = None) -> bool:
        """True when dropped, False when there is no such job. A run that holds it loses it.

        Without `table_id`, on whatever table had that name (also one since recreated). With
        `tenant` None, of every tenant, and what stands of that name is taken back.
        """

    def jobs(
        self,
        *,
        table_id: str | None = None,
        tenant: str | None = None,
        tenants: Collection[str] | None = None,
        name: JobID | None = None,
        state: JobState | None = None,
        include_dropped: bool = False,
    ) -> list[Job]:
        """The rows, ordered by key; of all `tenants` with None."""

    def job(self, key: JobKey) -> Job | None:
        """The row, unless there is none or it is dropped."""

    def fences(self, table_id: str, tenants: Collection[str]) -> Mapping[JobKey, tuple[int, int]]:
        """Registration and `seq` of the live jobs of these tenants: what tells whose they are."""

    def count(self, table_id: str | None = None) -> dict[JobState, int]:
        """How many live jobs are in each state; every state is there."""

    def update(
        self,
        tenant: str | None,
        name: JobID,
        change: SpecUpdate,
        *,
        interrupt: bool = False,
        declared: JobSpec | None = None,
    ) -> Interrupted | None:
        """Change the job's spec; None when there is no such job.

        Takes effect at the next iteration; with `interrupt` the current one is canceled, and the
        answer names its runs. A job in error is completed, unless its table is
        gone. Without `tenant` every tenant's, and what stands for later ones:
        where nothing does, `declared` with the change does from now on. Raises ConfigError where
        the consumer of an index would become another one for one tenant of several.
        """

    def pause(self, tenant: str | None, name: JobID) -> tuple[JobKey, ...]:
        """Plan the tenant's job no more (None: every tenant's); which were not paused before."""

    def resume(self, tenant: str | None, name: JobID) -> tuple[JobKey, ...]:
        """Plan the tenant's job again (None: every tenant's); which were paused before."""

    def stand(self, name: JobID, spec: JobSpec, rows: Iterable[NewJob] = ()) -> bool:
        """Register for every tenant of the table: those of `rows` now, others as they appear.

        False when it stands already and no row was created.
        """

    def standing(self) -> Mapping[JobID, JobSpec]:
        """What is registered for every tenant."""

    def enqueue(self, iteration: Iteration, run_id: str) -> None:
        """Set the iteration's jobs pending for `run_id`: a run's id, or a name for it to come.

        It gets a lease as of one that is queued.
        """

    def queued(self, run_id: str) -> tuple[Iteration, ...]:
        """What was enqueued for `run_id` and waits for it still, in the order of where it starts.

        It is the one iteration, less the jobs that were taken from it since. Those of them that
        are to get all rows anew since are another one, from START.
        """

    def begin(
        self,
        iteration: Iteration,
        run_id: str,
        layout: Layout,
        *,
        queued_as: str | None = None,
        recall: Recall = ROWS_ALONE,
    ) -> tuple[Claim, ...]:
        """Claim the iteration's jobs, in its order: running, first step recorded BEFORE.

        Each job must be startable and stand at the iteration's start; a pending one must wait
        for `run_id` or `queued_as`. Otherwise FenceError names it and no row changes. The run
        gets a lease, which it is to `keep` while it works. A batch
        left unconfirmed by an earlier run is in the claim's steps, to be replayed or set aside;
        a range that contradicts it is to be rejected or skipped.
        """

    def advance(self, steps: Collection[Done]) -> Mapping[JobKey, Claim | FenceError]:
        """The claims' steps are written: move the watermarks, record the next steps BEFORE them.

        Jobs are independent: one whose row was taken has a FenceError as its outcome and is left
        as it is. So they are in `complete` and `fail`.
        """

    def complete(self, steps: Collection[Done]) -> Mapping[JobKey, FenceError]:
        """The claims' last steps are written: AFTER, watermark, EndAt, state completed.

        Those alone are in the answer that were taken. Raises BatchError, and changes nothing, for
        one that has steps left.
        """

    def fail(self, steps: Collection[Failed]) -> Mapping[JobKey, FenceError]:
        """Code and message kept, batches still BEFORE, watermarks unmoved; as `complete`.

        1-9999: completed, to be planned again; 10000 and above: error.
        """

    def cancel(
        self, keys: Iterable[JobKey], *, seen: Mapping[JobKey, int] | None = None
    ) -> tuple[JobKey, ...]:
        """Cancel those that are pending or running, and say which were. Idempotent.

        With `seen` those alone whose rows still have the `seq` that the caller saw.
        """

    def refuse(self, run_id: str, code: int, message: str) -> tuple[JobKey, ...]:
        """The jobs pending for `run_id` failed before they could be claimed, and which they are."""

    def active_runs(self, state: JobState | None = None) -> frozenset[str]:
        """The run ids of pending and running jobs, or of those in one of these states."""

    def recover(self, gone: Collection[str]) -> tuple[JobKey, ...]:
        """Set the pending and running jobs of the runs `gone` completed, and say which.

        Nobody is to blame: they are planned again at once.
        """

    def reclaim(self, runs: Collection[str] | None = None) -> tuple[JobKey, ...]:
        """Set the pending and running jobs (of `runs` alone) completed whose lease ran out.

        Which they are. Those that ran have failed once more, with the code of RunGoneError.
        """

    def keep(self, names: Collection[str], seconds: float) -> None:
        """Have the leases of that name last for so long from now."""

    def take(self, names: Collection[str], owner: str, seconds: float) -> frozenset[str]:
        """Have the leases for `owner` alone, or longer; which it has: not those of another."""

    def lapsed(self, names: Collection[str], unseen: float) -> frozenset[str]:
        """Those whose lease has run out. One that has none gets one of so many seconds."""

    def repair(self, keys: Iterable[JobKey]) -> tuple[JobKey, ...]:
        """Set those in error completed, so that they are planned again, and say which."""

    def rebuild(self, keys: Iterable[JobKey]) -> tuple[JobKey, ...]:
        """Have those of the jobs that are live get all rows anew, after what runs; which they are.

        What they serve stays until it is replaced.
        """

    def strand(self, table_id: str, code: int, message: str) -> tuple[JobKey, ...]:
        """Set all jobs of a table that is gone to error, and say which were not. Idempotent."""

    def carry_over(self, table_id: str, to: str) -> tuple[JobKey, ...]:
        """Register all jobs of a table for `to`, which took its place, and drop them; the new ones.

        Each as it was, and paused if it was, from START; one that is there stays. Idempotent.
        """

    def table_ids(self, db: str, table: str) -> frozenset[str]:
        """The ids of the tables of that name that live jobs are of: more than one if recreated."""

    def unbuilt(self, name: JobID) -> frozenset[str]:
        """The tenants whose job of that name has not had all rows of its consumer yet."""

    def places(self, table_id: str) -> frozenset[tuple[str, int, JobState]]:
        """Where the table's live jobs stand: every (job name, watermark's version, state)."""

    def watermarks(self, table_id: str) -> tuple[Moment, ...]:
        """Those of the table's live jobs, each version and time once."""

    def tenants(self, table_id: str, *, behind: int | None = None) -> frozenset[str]:
        """The tenants that live jobs of the table are of, or those with one before a version."""

    def holders(
        self, table_id: str, tenants: Collection[str] | None = None
    ) -> frozenset[tuple[str, str]]:
        """The (database, table) names of the table's live jobs, of all tenants or of some."""

    def registered(self, table_id: str) -> frozenset[tuple[str, str]]:
        """The (tenant, job name) of every row of the table, dropped ones too."""

    def waiting(self, table_id: str) -> frozenset[str]:
        """The tenants with a live job that is pending, running, canceled, or never synchronized."""

    def touched(self, since: Bookmark | None) -> Touched:
        """What something happened to since a bookmark that an earlier call gave.

        No transaction is missed, whenever it commits and whatever clocks say; some are told of
        twice. With None the bookmark alone.
        """

    def flush(self, table_id: str, tenants: Collection[str], since: Moment, to: Moment) -> int:
        """Move to `to` the idle jobs of tenants whose data did not change in (since, to].

        Only jobs that are live and completed, stand at or after `since` and before `to`, have
        had their first iteration and have no unconfirmed batch; only their watermark changes.
        Returns how many moved. Idempotent.
        """

    def dropped(self, before: datetime) -> list[Job]:
        """The rows that were dropped before that time, ordered by key."""

    def forget(self, jobs: Iterable[Job]) -> int:
        """Delete those of the rows that are still dropped; how many."""

    def mark_collected(self, jobs: Iterable[Job]) -> int:
        """Note that the data of those of the rows that are still dropped went; how many."""

    def history(
        self,
        *,
        tenant: str | None = None,
        name: JobID | None = None,
        since: datetime | None = None,
        most: int = 1_000,
    ) -> list[Entry]:
        """What happened to jobs, oldest first; of more than `most` entries the newest."""

    def usage(self, since: datetime | None = None) -> list[Usage]:
        """What every job of every tenant used since then, ordered by tenant and job."""

    def prune(self, before: datetime) -> int:
        """Delete the history from before that time, and old leases; how many entries.

        The newest entry stays: bookmarks name it.
        """
