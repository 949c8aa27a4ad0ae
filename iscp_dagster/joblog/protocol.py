"""What every ISCP log offers, wherever it keeps its rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from iscp_dagster.joblog.history import Bookmark, Entry, Usage
from iscp_dagster.joblog.iterations import ROWS_ALONE, Claim, Done, Failed, Iteration, Recall
from iscp_dagster.joblog.leases import Leases
from iscp_dagster.joblog.updates import SpecUpdate
from iscp_dagster.model.batch import ALIKE, Layout, Range
from iscp_dagster.model.errors import FenceError
from iscp_dagster.model.jobs import Job, JobID, JobKey, NewJob
from iscp_dagster.model.moment import Moment
from iscp_dagster.model.specs import JobSpec
from iscp_dagster.model.states import JobState


@dataclass(frozen=True, kw_only=True)
class Interrupted:
    """The iterations that a change of spec canceled."""

    keys: tuple[JobKey, ...] = ()
    runs: frozenset[str] = frozenset()
    changed: bool = False
    """Whether any spec or state changed."""


@dataclass(frozen=True, kw_only=True)
class Touched:
    """The (table id, tenant) of jobs that something happened to, and where to continue."""

    upto: Bookmark
    tenants: frozenset[tuple[str, str]] = frozenset()
    whole: bool = False
    """Whether none is missing: the log still has its history from the bookmark on."""


class JobLog(Protocol):
    """The one durable record of jobs. Each method is one transaction.

    Safe to call from several threads and processes. A row that another writer moved
    raises FenceError; a log that does not answer raises UnavailableError.
    """

    def within(self, connection: Any) -> JobLog:
        """The log, with every method in the caller's transaction."""

    @property
    def leases(self) -> Leases:
        """How long leases last."""

    def ensure(self) -> None:
        """Make the log ready to use. Idempotent, and safe from several processes at once."""

    def register(self, tenant: str, name: JobID, table_id: str, spec: JobSpec) -> bool:
        """Register a job; False when it exists.

        A dropped row of that name is replaced by a new registration, from START.
        """

    def register_many(
        self, rows: Iterable[NewJob], *, revive: bool = True, adopt: bool = True
    ) -> int:
        """Register those that do not exist; returns how many. Of equal keys the first row counts.

        Without `revive` a dropped row stays dropped, and a standing registration, if there is one
        now, overrides a row's spec. An index has one consumer for all its tenants: a row with
        another one gets theirs, or without `adopt` raises ConfigError.
        """

    def unregister(self, tenant: str | None, name: JobID, table_id: str | None = None) -> bool:
        """Drop a job; False when there is none. A run that holds it loses it.

        Without `table_id`, on every table that had that name (also one since recreated). With
        `tenant` None, drop every tenant's, and end the standing registration of that name.
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
        """The rows that match, ordered by key; None matches all."""

    def job(self, key: JobKey) -> Job | None:
        """The row, unless there is none or it is dropped."""

    def fences(self, table_id: str, tenants: Collection[str]) -> Mapping[JobKey, tuple[int, int]]:
        """Registration and `seq` of these tenants' live jobs; they change when a run takes one."""

    def count(self, table_id: str | None = None) -> dict[JobState, int]:
        """How many live jobs are in each state, 0 included."""

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

        Takes effect at the next iteration; `interrupt` cancels the current one, and the answer
        names its runs. A job in error is completed, unless its table is gone. Without `tenant`,
        change every tenant's and the standing registration; where there is none, `declared` with
        the change becomes it, if they differ. Raises ConfigError if it would change an index's
        consumer for one tenant of several.
        """

    def pause(self, tenant: str | None, name: JobID) -> tuple[JobKey, ...]:
        """Stop planning the tenant's job (None: every tenant's); returns those it paused."""

    def resume(self, tenant: str | None, name: JobID) -> tuple[JobKey, ...]:
        """Plan the tenant's job again (None: every tenant's); returns those it resumed."""

    def stand(self, name: JobID, spec: JobSpec, rows: Iterable[NewJob] = ()) -> bool:
        """Register the job for every tenant: those of `rows` now, others as they appear.

        False when that registration exists and no row was created.
        """

    def standing(self) -> Mapping[JobID, JobSpec]:
        """The standing registrations."""

    def enqueue(self, iteration: Iteration, run_id: str) -> Mapping[JobKey, FenceError]:
        """Set the iteration's jobs pending for `run_id`: a run's id, or the name of a dispatch.

        It gets the lease of a queued iteration. A job that is not startable, or whose watermark is
        not the iteration's start, stays as it is; returns only those.
        """

    def queued(self, run_id: str) -> tuple[Iteration, ...]:
        """The iterations that still wait for `run_id`, ordered by where they start.

        That is the one that was enqueued, without the jobs taken from it since. Those of its jobs
        that must be rebuilt since then form a second one, from START.
        """

    def begin(
        self,
        iteration: Iteration,
        run_id: str,
        layout: Layout,
        *,
        layouts: Mapping[str, Layout] = ALIKE,
        queued_as: str | None = None,
        recall: Recall = ROWS_ALONE,
    ) -> tuple[Claim, ...]:
        """Claim the iteration's jobs, in its order: running, first step recorded BEFORE.

        Each job must be startable, with the iteration's start as its watermark; a pending one must
        wait for `run_id` or `queued_as`. Otherwise FenceError names it and no row changes. The run
        gets a lease, which it must `keep` while it works. `layouts` has, by tenant, those that
        differ from `layout`. The claim's steps replay or set aside a batch that an earlier run left
        unconfirmed, and reject or skip a range that contradicts it.
        """

    def advance(self, steps: Collection[Done]) -> Mapping[JobKey, Claim | FenceError]:
        """Confirm that the claims' steps are written: move watermarks, record next steps BEFORE.

        Jobs are independent, as in `complete` and `fail`: one whose row was taken has a FenceError
        as its outcome and is left as it is.
        """

    def complete(self, steps: Collection[Done]) -> Mapping[JobKey, FenceError]:
        """Confirm that the claims' last steps are written: AFTER, watermark, end, completed.

        Returns only the jobs that were taken. Raises BatchError, and changes nothing, for a claim
        that has steps left.
        """

    def fail(self, steps: Collection[Failed]) -> Mapping[JobKey, FenceError]:
        """Record code and message; batches stay BEFORE, watermarks stay. Returns as `complete`.

        Code 1-9999: completed, to be planned again; 10000 and above: error.
        """

    def cancel(
        self, keys: Iterable[JobKey], *, seen: Mapping[JobKey, int] | None = None
    ) -> tuple[JobKey, ...]:
        """Cancel the jobs that are pending or running; returns those. Idempotent.

        With `seen`, only those whose rows still have the `seq` that the caller saw.
        """

    def refuse(self, run_id: str, code: int, message: str) -> tuple[JobKey, ...]:
        """Fail the jobs pending for `run_id` before they could be claimed; returns them."""

    def active_runs(self, state: JobState | None = None) -> frozenset[str]:
        """The run ids of pending and running jobs, or of those in one of the two states."""

    def recover(self, gone: Collection[str]) -> tuple[JobKey, ...]:
        """Set pending and running jobs of the runs `gone` to completed; returns them.

        It does not count as a failure: they are planned again at once.
        """

    def reclaim(self, runs: Collection[str] | None = None) -> tuple[JobKey, ...]:
        """Set pending and running jobs whose lease ran out to completed; returns them.

        With `runs`, only the jobs of these. Running ones count a failure, with RunGoneError's code.
        """

    def keep(self, names: Collection[str], seconds: float) -> None:
        """Make or renew the leases of these names, for `seconds` from now."""

    def take(self, names: Collection[str], owner: str, seconds: float) -> frozenset[str]:
        """Take or renew leases for `owner` alone; returns those that no other owner holds."""

    def lapsed(self, names: Collection[str], unseen: float) -> frozenset[str]:
        """The names whose lease has run out. One without a lease gets one of `unseen` seconds."""

    def repair(self, keys: Iterable[JobKey]) -> tuple[JobKey, ...]:
        """Set the jobs in error to completed, so that they are planned again; returns them."""

    def rebuild(self, keys: Iterable[JobKey]) -> tuple[JobKey, ...]:
        """Give the live jobs all rows again, after any running iteration; returns them.

        What they serve stays until it is replaced.
        """

    def strand(self, table_id: str, code: int, message: str) -> tuple[JobKey, ...]:
        """Set all jobs of a table that is gone to error; returns those it changed. Idempotent."""

    def carry_over(self, table_id: str, to: str) -> tuple[JobKey, ...]:
        """Register a table's jobs for `to`, which took its place, and drop them; returns the new.

        Each keeps its spec, and its pause, and begins at START; a job that `to` already has stays
        as it is. Idempotent.
        """

    def table_ids(self, db: str, table: str) -> frozenset[str]:
        """The ids of the tables of that name with live jobs; several if it was recreated."""

    def unbuilt(self, name: JobID) -> frozenset[str]:
        """The tenants whose job of that name has not yet given its consumer all rows."""

    def places(self, table_id: str) -> frozenset[tuple[str, int, JobState]]:
        """The (job name, watermark's version, state) of the table's live jobs, each once."""

    def watermarks(self, table_id: str) -> tuple[Moment, ...]:
        """The watermarks of the table's live jobs, each version and time once."""

    def tenants(self, table_id: str, *, behind: int | None = None) -> frozenset[str]:
        """The tenants with a live job of the table, or with one at a version before `behind`."""

    def tenants_of_runs(self, names: Collection[str]) -> frozenset[str]:
        """The tenants of jobs that these runs and dispatches had, from rows and history."""

    def holders(
        self, table_id: str, tenants: Collection[str] | None = None
    ) -> frozenset[tuple[str, str]]:
        """The (database, table) names of the table's live jobs, of all tenants or of some."""

    def registered(self, table_id: str) -> frozenset[tuple[str, str]]:
        """The (tenant, job name) of every row of the table, dropped ones too."""

    def waiting(self, table_id: str) -> frozenset[str]:
        """The tenants with a live job that is pending, running, canceled, or never synchronized."""

    def touched(self, since: Bookmark | None) -> Touched:
        """The jobs that something happened to since a bookmark from an earlier call.

        No transaction is missed, whenever it commits and whatever clocks say; some are reported
        twice. With None, only a bookmark.
        """

    def flush(self, moves: Mapping[JobKey, Range]) -> int:
        """Move idle jobs over ranges in which their tenants' data did not change.

        Only jobs that are live and completed, are at their range's start, have had their first
        iteration and have no unconfirmed batch; only their watermark changes. Returns how many
        moved. Idempotent.
        """

    def dropped(self, before: datetime) -> list[Job]:
        """The rows that were dropped before that time, ordered by key."""

    def forget(self, jobs: Iterable[Job]) -> int:
        """Delete the rows that are still dropped; returns how many."""

    def mark_collected(self, jobs: Iterable[Job]) -> int:
        """Note that the data of the rows that are still dropped was deleted; returns how many."""

    def history(
        self,
        *,
        tenant: str | None = None,
        name: JobID | None = None,
        since: datetime | None = None,
        most: int = 1_000,
    ) -> list[Entry]:
        """The newest entries, at most `most`, oldest first."""

    def usage(
        self, since: datetime | None = None, *, tenant: str | None = None, table: str | None = None
    ) -> list[Usage]:
        """What jobs used since then, ordered by tenant and job; `table` is `database.table`."""

    def prune(self, before: datetime) -> int:
        """Delete history entries from before that time, and old leases; returns how many entries.

        The newest entry stays: bookmarks name it.
        """
