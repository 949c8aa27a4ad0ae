"""The ISCP log in a SQL database."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import datetime
from operator import itemgetter
from typing import TypeVar

import sqlalchemy as sa

from iscp_dagster.joblog import iterations, lifecycle
from iscp_dagster.joblog.history import Bookmark, Entry, Usage, entry
from iscp_dagster.joblog.leases import DEFAULT_LEASES, Leases
from iscp_dagster.joblog.protocol import Interrupted, Touched
from iscp_dagster.joblog.sharing import check_alone, joined
from iscp_dagster.joblog.sql import active, leases
from iscp_dagster.joblog.sql.engine import ENSURE_LOCK, LOG, open_engine
from iscp_dagster.joblog.sql.flush import flush
from iscp_dagster.joblog.sql.past import history, prune, tenants_of_runs, touched, usage
from iscp_dagster.joblog.sql.standing import (
    delete_standing,
    insert_standing,
    put_standing,
    standing_specs,
)
from iscp_dagster.joblog.sql.statements import (
    COLUMNS,
    IS_ACTIVE,
    KEY,
    LIVE,
    equal,
    insert_unless_live,
    is_one_of,
    latest,
    lock,
    locked,
    named,
    portions,
    remember,
    take_turns,
    write_back,
)
from iscp_dagster.joblog.sql.tables import ISCP_LOG, METADATA, from_row, to_row
from iscp_dagster.joblog.updates import SpecUpdate
from iscp_dagster.model.batch import ALIKE, Layout, Range
from iscp_dagster.model.clock import Clock, NewId, new_id, utc_now
from iscp_dagster.model.errors import FenceError, SetupError
from iscp_dagster.model.jobs import Job, JobID, JobKey, NewJob
from iscp_dagster.model.moment import START, Moment
from iscp_dagster.model.specs import JobSpec
from iscp_dagster.model.states import JobState
from sql_transactions.engine import answering, prepare, shown, transaction
from sql_transactions.tables import ensure_tables, find_missing_column

Step = TypeVar("Step", bound="iterations.Done | iterations.Failed")
Outcomes = TypeVar("Outcomes")

FORGOTTEN = 86_400.0
"""Seconds after which a lease that ran out is deleted."""


class SqlLog:
    """The one durable record of jobs, in SQLite or PostgreSQL. Each method is one transaction.

    Safe to call from several threads and processes. A row that another writer moved raises
    FenceError; a log that does not answer raises UnavailableError.

    Rows are locked, changed by joblog.lifecycle, and written back if `seq` is still what was read.
    `at` is a URL (see `open_engine`) or an engine of the caller's; `who` signs what is done outside
    of runs. Leases use the database's clock, unless `lease_clock` gives seconds.
    """

    def __init__(
        self,
        at: str | sa.URL | sa.Engine,
        *,
        clock: Clock = utc_now,
        new_id: NewId = new_id,
        who: str = "",
        leases: Leases = DEFAULT_LEASES,
        lease_clock: Callable[[], float] | None = None,
    ) -> None:
        self.engine = prepare(at if isinstance(at, sa.Engine) else open_engine(at), LOG)
        self.leases = leases
        """How long leases last."""
        self._clock = clock
        self._new_id = new_id
        self._who = who
        self._lease_clock = lease_clock

    def within(self, connection: sa.Connection) -> SqlLog:
        """The log, with every method in the caller's transaction.

        The connection must be one to the log's database; on SQLite, one of `engine`. Others see
        nothing before the caller commits; after an error the caller must roll back.
        """
        return _Within(self, connection)

    def writing(self) -> AbstractContextManager[sa.Connection]:
        """One transaction of the log's database, for `within`; an error rolls it back."""
        return transaction(self.engine, writes=True)

    def reading(self) -> AbstractContextManager[sa.Connection]:
        """One transaction that only reads."""
        return transaction(self.engine, writes=False)

    def ensure(self) -> None:
        """Make the log ready to use. Idempotent, and safe from several processes at once."""
        if missing := find_missing_column(self.engine, METADATA):
            table, column = missing
            raise SetupError(
                f"ISCP log {shown(self.engine.url)} was made by another version of iscp_dagster: "
                f"its table {table} has no column {column}. Start with a fresh one; the indexes "
                "are rebuilt."
            )
        ensure_tables(self.engine, METADATA, lock=ENSURE_LOCK)

    def fill(self, jobs: Iterable[Job], standing: Mapping[JobID, JobSpec]) -> None:
        """Insert jobs of another log as they are into this empty one, without their history."""
        rows = [to_row(job) for job in jobs]
        with self._transaction(writes=True) as connection:
            if rows:
                connection.execute(sa.insert(ISCP_LOG), rows)
            for name, spec in standing.items():
                put_standing(connection, name, spec, self._clock())

    def register(self, tenant: str, name: JobID, table_id: str, spec: JobSpec) -> bool:
        """Register a job; False when it exists.

        A dropped row of that name is replaced by a new registration, from START.
        """
        row = NewJob(tenant=tenant, name=name, table_id=table_id, spec=spec)
        return self.register_many([row]) == 1

    def register_many(
        self, rows: Iterable[NewJob], *, revive: bool = True, adopt: bool = True
    ) -> int:
        """Register those that do not exist; returns how many. Of equal keys the first row counts.

        Without `revive` a dropped row stays dropped, and a standing registration, if there is one
        now, overrides a row's spec. An index has one consumer for all its tenants: a row with
        another one gets theirs, or without `adopt` raises ConfigError.
        """
        wanted = list(rows)
        if not wanted:
            return 0
        with self._transaction(writes=True) as connection:
            take_turns(connection, [row.name for row in wanted])
            standing = {} if revive else standing_specs(connection)
            wanted = [replace(row, spec=standing.get(row.name, row.spec)) for row in wanted]
            return self._register(connection, wanted, revive=revive, adopt=adopt)

    def unregister(self, tenant: str | None, name: JobID, table_id: str | None = None) -> bool:
        """Drop a job; False when there is none. A run that holds it loses it.

        Without `table_id`, on every table that had that name (also one since recreated). With
        `tenant` None, drop every tenant's, and end the standing registration of that name.
        """
        where = (*named(tenant, name), *equal(COLUMNS.table_id, table_id))
        with self._transaction(writes=True) as connection:
            take_turns(connection, [name])
            stood = tenant is None and delete_standing(connection, name)
            return bool(self._change(connection, where, lifecycle.unregistered)) or stood

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
        now = self._clock()
        with self._transaction(writes=True) as connection:
            take_turns(connection, [name])
            stood = standing_specs(connection).get(name, declared) if tenant is None else None
            rows = lock(connection, (*named(tenant, name), LIVE))
            if not rows and stood is None:
                return None
            for job in rows.values() if tenant is not None else []:
                check_alone(name, change, job, latest(connection, name, but=job.key.tenant))
            stands = stood and change.applied(stood)
            if stands is not None and stands != stood:
                put_standing(connection, name, stands, now)
            active = [job for job in rows.values() if interrupt and job.active]
            freed = {
                key: lifecycle.freed(job, now, interrupt=interrupt) for key, job in rows.items()
            }
            write_back(connection, rows, list(freed.values()), entry_of=self._entry)
            updated = [
                lifecycle.updated(job, change, now, interrupt=interrupt) for job in freed.values()
            ]
            write_back(connection, freed, updated, entry_of=self._entry)
        return Interrupted(
            keys=tuple(sorted(job.key for job in active)),
            runs=frozenset(job.run_id for job in active if job.run_id is not None),
            changed=stands != stood
            or any(lifecycle.differs(rows[job.key], job) for job in updated),
        )

    def pause(self, tenant: str | None, name: JobID) -> tuple[JobKey, ...]:
        """Stop planning the tenant's job (None: every tenant's); returns those it paused."""
        planned = (*named(tenant, name), COLUMNS.paused_at.is_(None))
        with self._transaction(writes=True) as connection:
            return tuple(self._change(connection, planned, lifecycle.paused))

    def resume(self, tenant: str | None, name: JobID) -> tuple[JobKey, ...]:
        """Plan the tenant's job again (None: every tenant's); returns those it resumed."""
        paused = (*named(tenant, name), COLUMNS.paused_at.is_not(None))
        with self._transaction(writes=True) as connection:
            return tuple(self._change(connection, paused, lifecycle.resumed))

    def stand(self, name: JobID, spec: JobSpec, rows: Iterable[NewJob] = ()) -> bool:
        """Register the job for every tenant: those of `rows` now, others as they appear.

        False when that registration exists and no row was created.
        """
        wanted = list(rows)
        with self._transaction(writes=True) as connection:
            take_turns(connection, [name])
            stands = joined(name, spec, latest(connection, name), adopt=False)
            new = insert_standing(connection, name, stands, self._clock())
            return self._register(connection, wanted, revive=True, adopt=False) > 0 or new

    def standing(self) -> Mapping[JobID, JobSpec]:
        """The standing registrations."""
        with self._transaction(writes=False) as connection:
            return standing_specs(connection)

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
        chosen = sa.select(ISCP_LOG).where(
            *equal(COLUMNS.table_id, table_id),
            *equal(COLUMNS.tenant, tenant),
            *equal(COLUMNS.job_state, state),
            *(() if name is None else named(None, name)),
            *(() if include_dropped else (LIVE,)),
        )
        found: list[Job] = []
        with self._transaction(writes=False) as connection:
            for some in [None] if tenants is None else portions(sorted(set(tenants))):
                rows = chosen if some is None else chosen.where(COLUMNS.tenant.in_(some))
                found += [from_row(row) for row in connection.execute(rows)]
        return sorted(found, key=lambda job: job.key)

    def job(self, key: JobKey) -> Job | None:
        """The row, unless there is none or it is dropped."""
        chosen = sa.select(ISCP_LOG).where(is_one_of(self.engine.dialect, [key]), LIVE)
        with self._transaction(writes=False) as connection:
            row = connection.execute(chosen).one_or_none()
        return None if row is None else from_row(row)

    def fences(self, table_id: str, tenants: Collection[str]) -> Mapping[JobKey, tuple[int, int]]:
        """Registration and `seq` of these tenants' live jobs; they change when a run takes one."""
        chosen = sa.select(*KEY, COLUMNS.job_id, COLUMNS.seq)
        chosen = chosen.where(COLUMNS.table_id == table_id, LIVE)
        found: dict[JobKey, tuple[int, int]] = {}
        with self._transaction(writes=False) as connection:
            for some in portions(sorted(set(tenants))):
                rows = connection.execute(chosen.where(COLUMNS.tenant.in_(some)))
                found |= {
                    JobKey(tenant=tenant, table_id=of, job_name=name): (registration, seq)
                    for tenant, of, name, registration, seq in rows
                }
        return found

    def count(self, table_id: str | None = None) -> dict[JobState, int]:
        """How many live jobs are in each state, 0 included."""
        counted = (
            sa.select(COLUMNS.job_state, sa.func.count())
            .where(LIVE, *equal(COLUMNS.table_id, table_id))
            .group_by(COLUMNS.job_state)
        )
        with self._transaction(writes=False) as connection:
            found = {JobState(state): number for state, number in connection.execute(counted)}
        return {state: found.get(state, 0) for state in JobState}

    def enqueue(self, iteration: iterations.Iteration, run_id: str) -> Mapping[JobKey, FenceError]:
        """Set the iteration's jobs pending for `run_id`: a run's id, or the name of a dispatch.

        It gets the lease of a queued iteration. A job that is not startable, or whose watermark is
        not the iteration's start, stays as it is; returns only those.
        """
        now = self._clock()
        with self._transaction(writes=True) as connection:
            rows = locked(connection, iteration.jobs)
            changed, lost = lifecycle.all_enqueued(rows, iteration, run_id, now)
            write_back(connection, rows, changed, entry_of=self._entry)
            if changed:
                leases.keep(connection, [run_id], self.leases.queued, self._now())
            return lost

    def queued(self, run_id: str) -> tuple[iterations.Iteration, ...]:
        """The iterations that still wait for `run_id`, ordered by where they start.

        That is the one that was enqueued, without the jobs taken from it since. Those of its jobs
        that must be rebuilt since then form a second one, from START.
        """
        chosen = sa.select(ISCP_LOG).where(*_waits_for(run_id), LIVE).order_by(*KEY)
        with self._transaction(writes=False) as connection:
            return iterations.waiting(from_row(row) for row in connection.execute(chosen))

    def begin(
        self,
        iteration: iterations.Iteration,
        run_id: str,
        layout: Layout,
        *,
        layouts: Mapping[str, Layout] = ALIKE,
        queued_as: str | None = None,
        recall: iterations.Recall = iterations.ROWS_ALONE,
    ) -> tuple[iterations.Claim, ...]:
        """Claim the iteration's jobs, in its order: running, first step recorded BEFORE.

        Each job must be startable, with the iteration's start as its watermark; a pending one must
        wait for `run_id` or `queued_as`. Otherwise FenceError names it and no row changes. The run
        gets a lease, which it must `keep` while it works. `layouts` has, by tenant, those that
        differ from `layout`. The claim's steps replay or set aside a batch that an earlier run left
        unconfirmed, and reject or skip a range that contradicts it.
        """
        now = self._clock()
        with self._transaction(writes=True) as connection:
            rows = locked(connection, iteration.jobs)
            begun = [
                lifecycle.begun(
                    rows.get(key),
                    key,
                    iteration,
                    run_id=run_id,
                    queued_as=queued_as,
                    layout=layouts.get(key.tenant, layout),
                    now=now,
                    recall=recall,
                )
                for key in iteration.jobs
            ]
            write_back(connection, rows, [job for job, _ in begun], entry_of=self._entry)
            leases.keep(connection, [run_id], self.leases.run, self._now())
        return tuple(claim for _, claim in begun)

    def advance(
        self, steps: Collection[iterations.Done]
    ) -> Mapping[JobKey, iterations.Claim | FenceError]:
        """Confirm that the claims' steps are written: move watermarks, record next steps BEFORE.

        Jobs are independent, as in `complete` and `fail`: one whose row was taken has a FenceError
        as its outcome and is left as it is.
        """
        return self._moved(steps, lifecycle.all_advanced)

    def complete(self, steps: Collection[iterations.Done]) -> Mapping[JobKey, FenceError]:
        """Confirm that the claims' last steps are written: AFTER, watermark, end, completed.

        Returns only the jobs that were taken. Raises BatchError, and changes nothing, for a claim
        that has steps left.
        """
        now = self._clock()
        return self._moved(
            steps, lambda rows, some: lifecycle.all_ended(rows, some, lifecycle.completed, now)
        )

    def fail(self, steps: Collection[iterations.Failed]) -> Mapping[JobKey, FenceError]:
        """Record code and message; batches stay BEFORE, watermarks stay. Returns as `complete`.

        Code 1-9999: completed, to be planned again; 10000 and above: error.
        """
        now = self._clock()
        return self._moved(
            steps, lambda rows, some: lifecycle.all_ended(rows, some, lifecycle.failed, now)
        )

    def cancel(
        self, keys: Iterable[JobKey], *, seen: Mapping[JobKey, int] | None = None
    ) -> tuple[JobKey, ...]:
        """Cancel the jobs that are pending or running; returns those. Idempotent.

        With `seen`, only those whose rows still have the `seq` that the caller saw.
        """
        return self._change_keys(keys, lifecycle.canceled, IS_ACTIVE, seen=seen)

    def refuse(self, run_id: str, code: int, message: str) -> tuple[JobKey, ...]:
        """Fail the jobs pending for `run_id` before they could be claimed; returns them."""

        def change(job: Job, now: datetime) -> Job:
            return lifecycle.refused(job, code, message, now)

        with self._transaction(writes=True) as connection:
            return tuple(self._change(connection, _waits_for(run_id), change))

    def active_runs(self, state: JobState | None = None) -> frozenset[str]:
        """The run ids of pending and running jobs, or of those in one of the two states."""
        chosen = sa.select(COLUMNS.run_id).distinct().where(LIVE, IS_ACTIVE)
        chosen = chosen.where(*equal(COLUMNS.job_state, state))
        with self._transaction(writes=False) as connection:
            return frozenset(run for run in connection.scalars(chosen) if run is not None)

    def recover(self, gone: Collection[str]) -> tuple[JobKey, ...]:
        """Set pending and running jobs of the runs `gone` to completed; returns them.

        It does not count as a failure: they are planned again at once.
        """
        recovered: list[JobKey] = []
        with self._transaction(writes=True) as connection:
            for some in portions(sorted(set(gone))):
                chosen = (COLUMNS.run_id.in_(some), IS_ACTIVE)
                recovered += self._change(connection, chosen, lifecycle.recovered)
        return tuple(sorted(recovered))

    def reclaim(self, runs: Collection[str] | None = None) -> tuple[JobKey, ...]:
        """Set pending and running jobs whose lease ran out to completed; returns them.

        With `runs`, only the jobs of these. Running ones count a failure, with RunGoneError's code.
        """
        reclaimed: list[JobKey] = []
        unheld = [run for run in self.unheld() if runs is None or run in runs]
        for some in portions(unheld):
            now = self._clock()
            with self._transaction(writes=True) as connection:
                rows = {j.key: j for j in leases.left_behind(connection, some, self._now())}
                gone = [lifecycle.lost(job, now) for job in rows.values()]
                write_back(connection, rows, gone, entry_of=self._entry)
            reclaimed += rows
        return tuple(sorted(reclaimed))

    def unheld(self) -> list[str]:
        """The runs and dispatches of active jobs whose lease has run out, or that have none."""
        with self._transaction(writes=False) as connection:
            return leases.unheld(connection, self._now())

    def keep(self, names: Collection[str], seconds: float) -> None:
        """Make or renew the leases of these names, for `seconds` from now."""
        if names:
            with self._transaction(writes=True) as connection:
                leases.keep(connection, names, seconds, self._now())

    def take(self, names: Collection[str], owner: str, seconds: float) -> frozenset[str]:
        """Take or renew leases for `owner` alone; returns those that no other owner holds."""
        if not names:
            return frozenset()
        with self._transaction(writes=True) as connection:
            return leases.take(connection, names, owner, seconds, self._now())

    def lapsed(self, names: Collection[str], unseen: float) -> frozenset[str]:
        """The names whose lease has run out. One without a lease gets one of `unseen` seconds."""
        with self._transaction(writes=False) as connection:
            found = leases.lapsed(connection, names, self._now())
        self.keep(set(names) - found.keys(), unseen)
        return frozenset(name for name, over in found.items() if over)

    def repair(self, keys: Iterable[JobKey]) -> tuple[JobKey, ...]:
        """Set the jobs in error to completed, so that they are planned again; returns them."""
        broken = COLUMNS.job_state == int(JobState.ERROR)
        return self._change_keys(keys, lifecycle.repaired, broken)

    def rebuild(self, keys: Iterable[JobKey]) -> tuple[JobKey, ...]:
        """Give the live jobs all rows again, after any running iteration; returns them.

        What they serve stays until it is replaced.
        """
        return self._change_keys(keys, lifecycle.rebuilt)

    def strand(self, table_id: str, code: int, message: str) -> tuple[JobKey, ...]:
        """Set all jobs of a table that is gone to error; returns those it changed. Idempotent."""
        others = (COLUMNS.table_id == table_id, COLUMNS.job_state != int(JobState.ERROR))

        def change(job: Job, now: datetime) -> Job:
            return lifecycle.stranded(job, code, message, now)

        with self._transaction(writes=True) as connection:
            return tuple(self._change(connection, others, change))

    def carry_over(self, table_id: str, to: str) -> tuple[JobKey, ...]:
        """Register a table's jobs for `to`, which took its place, and drop them; returns the new.

        Each keeps its spec, and its pause, and begins at START; a job that `to` already has stays
        as it is. Idempotent.
        """
        of_table = (COLUMNS.table_id == table_id, LIVE)
        with self._transaction(writes=True) as connection:
            take_turns(connection, _names(connection, of_table))
            held = lock(connection, of_table)
            rows = lifecycle.carried(held.values(), to)
            there = locked(connection, [row.key for row in rows]).items()
            live = {key for key, job in there if job.drop_at is None}
            self._register(connection, rows, revive=True, adopt=True)
            new = {row.key: job for row, job in zip(rows, held.values(), strict=True)}
            new = {key: job for key, job in new.items() if key not in live}
            for some in portions([key for key, job in new.items() if job.paused_at]):
                self._change(connection, [is_one_of(connection.dialect, some)], lifecycle.paused)
            self._change(connection, of_table, lifecycle.unregistered)
            return tuple(sorted(new))

    def table_ids(self, db: str, table: str) -> frozenset[str]:
        """The ids of the tables of that name with live jobs; several if it was recreated."""
        of_name = (COLUMNS.db_name == db, COLUMNS.table_name == table)
        chosen = sa.select(COLUMNS.table_id).distinct().where(*of_name, LIVE)
        with self._transaction(writes=False) as connection:
            return frozenset(connection.scalars(chosen))

    def unbuilt(self, name: JobID) -> frozenset[str]:
        """The tenants whose job of that name has not yet given its consumer all rows."""
        started = sa.or_(COLUMNS.watermark_version == START.version, COLUMNS.rebuild)
        chosen = sa.select(COLUMNS.tenant).where(*named(None, name), LIVE, started)
        with self._transaction(writes=False) as connection:
            return frozenset(connection.scalars(chosen))

    def places(self, table_id: str) -> frozenset[tuple[str, int, JobState]]:
        """The (job name, watermark's version, state) of the table's live jobs, each once."""
        place = (COLUMNS.job_name, COLUMNS.watermark_version, COLUMNS.job_state)
        chosen = sa.select(*place).distinct().where(COLUMNS.table_id == table_id, LIVE)
        with self._transaction(writes=False) as connection:
            found = connection.execute(chosen)
            return frozenset((name, version, JobState(state)) for name, version, state in found)

    def watermarks(self, table_id: str) -> tuple[Moment, ...]:
        """The watermarks of the table's live jobs, each version and time once."""
        chosen = sa.select(COLUMNS.watermark).distinct().where(COLUMNS.table_id == table_id, LIVE)
        with self._transaction(writes=False) as connection:
            return tuple(sorted(map(Moment.parse, connection.scalars(chosen))))

    def tenants(self, table_id: str, *, behind: int | None = None) -> frozenset[str]:
        """The tenants with a live job of the table, or with one at a version before `behind`."""
        chosen = sa.select(COLUMNS.tenant).distinct().where(COLUMNS.table_id == table_id, LIVE)
        if behind is not None:
            chosen = chosen.where(COLUMNS.watermark_version < behind)
        with self._transaction(writes=False) as connection:
            return frozenset(connection.scalars(chosen))

    def tenants_of_runs(self, names: Collection[str]) -> frozenset[str]:
        """The tenants of jobs that these runs and dispatches had, from rows and history."""
        found: set[str] = set()
        with self._transaction(writes=False) as connection:
            for some in portions(sorted(set(names))):
                rows = sa.select(COLUMNS.tenant).where(COLUMNS.run_id.in_(some))
                found |= {*connection.scalars(rows), *tenants_of_runs(connection, some)}
        return frozenset(found)

    def holders(
        self, table_id: str, tenants: Collection[str] | None = None
    ) -> frozenset[tuple[str, str]]:
        """The (database, table) names of the table's live jobs, of all tenants or of some."""
        names = sa.select(COLUMNS.db_name, COLUMNS.table_name).distinct()
        chosen = names.where(COLUMNS.table_id == table_id, LIVE)
        found: set[tuple[str, str]] = set()
        with self._transaction(writes=False) as connection:
            for some in [None] if tenants is None else portions(sorted(set(tenants))):
                of = chosen if some is None else chosen.where(COLUMNS.tenant.in_(some))
                found |= {(db, table) for db, table in connection.execute(of)}
        return frozenset(found)

    def registered(self, table_id: str) -> frozenset[tuple[str, str]]:
        """The (tenant, job name) of every row of the table, dropped ones too."""
        chosen = sa.select(COLUMNS.tenant, COLUMNS.job_name)
        with self._transaction(writes=False) as connection:
            found = connection.execute(chosen.where(COLUMNS.table_id == table_id))
            return frozenset((tenant, name) for tenant, name in found)

    def waiting(self, table_id: str) -> frozenset[str]:
        """The tenants with a live job that is pending, running, canceled, or never synchronized."""
        unsettled = sa.or_(
            COLUMNS.job_state.in_([JobState.PENDING, JobState.RUNNING, JobState.CANCELED]),
            COLUMNS.watermark_version == START.version,
        )
        chosen = sa.select(COLUMNS.tenant).distinct()
        chosen = chosen.where(COLUMNS.table_id == table_id, LIVE, unsettled)
        with self._transaction(writes=False) as connection:
            return frozenset(connection.scalars(chosen))

    def touched(self, since: Bookmark | None) -> Touched:
        """The jobs that something happened to since a bookmark from an earlier call.

        No transaction is missed, whenever it commits and whatever clocks say; some are reported
        twice. With None, only a bookmark.
        """
        with self._transaction(writes=False) as connection:
            return touched(connection, since)

    def flush(self, moves: Mapping[JobKey, Range]) -> int:
        """Move idle jobs over ranges in which their tenants' data did not change.

        Only jobs that are live and completed, are at their range's start, have had their first
        iteration and have no unconfirmed batch; only their watermark changes. Returns how many
        moved. Idempotent.
        """
        each = sorted(moves.items(), key=itemgetter(0))
        with self._transaction(writes=True) as connection:
            return sum(flush(connection, some) for some in portions(each))

    def dropped(self, before: datetime) -> list[Job]:
        """The rows that were dropped before that time, ordered by key."""
        chosen = sa.select(ISCP_LOG).where(COLUMNS.drop_at < before).order_by(*KEY)
        with self._transaction(writes=False) as connection:
            return [from_row(row) for row in connection.execute(chosen)]

    def forget(self, jobs: Iterable[Job]) -> int:
        """Delete the rows that are still dropped; returns how many."""
        return self._of_dropped(sa.delete(ISCP_LOG), list(jobs))

    def mark_collected(self, jobs: Iterable[Job]) -> int:
        """Note that the data of the rows that are still dropped was deleted; returns how many."""
        marked = sa.update(ISCP_LOG).values(collected_at=self._clock())
        return self._of_dropped(marked, list(jobs))

    def history(
        self,
        *,
        tenant: str | None = None,
        name: JobID | None = None,
        since: datetime | None = None,
        most: int = 1_000,
    ) -> list[Entry]:
        """The newest entries, at most `most`, oldest first."""
        with self._transaction(writes=False) as connection:
            return history(connection, tenant, name, since, most)

    def usage(
        self, since: datetime | None = None, *, tenant: str | None = None, table: str | None = None
    ) -> list[Usage]:
        """What jobs used since then, ordered by tenant and job; `table` is `database.table`."""
        with self._transaction(writes=False) as connection:
            return usage(connection, since, tenant, table)

    def prune(self, before: datetime) -> int:
        """Delete history entries from before that time, and old leases; returns how many entries.

        The newest entry stays: bookmarks name it.
        """
        with self._transaction(writes=True) as connection:
            leases.forget(connection, FORGOTTEN, self._now())
            return prune(connection, before)

    def _transaction(self, *, writes: bool) -> AbstractContextManager[sa.Connection]:
        return transaction(self.engine, writes=writes)

    def _now(self) -> leases.Now:
        return leases.NOW if self._lease_clock is None else sa.literal(self._lease_clock())

    def _register(
        self,
        connection: sa.Connection,
        rows: Sequence[NewJob],
        *,
        revive: bool,
        adopt: bool,
    ) -> int:
        """Insert the rows that do not exist, each with its index's consumer; returns how many."""
        if not rows:
            return 0
        first = {row.key: row for row in reversed(rows)}
        others = {name: latest(connection, name) for name in {row.name for row in rows}}

        def fitting(row: NewJob, *, adopt: bool) -> NewJob:
            spec = joined(row.name, row.spec, others[row.name], adopt=adopt)
            return replace(row, spec=spec)

        # In the order of keys, so that two callers never wait for each other.
        fresh = {key: self._fresh(fitting(first[key], adopt=True)) for key in sorted(first)}
        insert = insert_unless_live(self.engine.dialect, revive=revive)
        found = connection.execute(insert, [to_row(job) for job in fresh.values()])
        created = sorted(JobKey(tenant=a, table_id=t, job_name=j) for a, t, j in found)
        for key in created:
            # A row that exists stays as it is; only new ones must fit.
            fitting(first[key], adopt=adopt)
        remember(connection, [self._entry(None, fresh[key]) for key in created])
        return len(created)

    def _fresh(self, row: NewJob) -> Job:
        return lifecycle.registered(row, registration=self._new_id(), seq=0, now=self._clock())

    def _entry(self, before: Job | None, after: Job) -> Entry | None:
        return entry(before, after, at=self._clock(), who=self._who)

    def _of_dropped(self, statement: sa.Delete | sa.Update, jobs: Sequence[Job]) -> int:
        """Execute it on the jobs' rows that are still dropped; returns how many.

        Their active rows are deleted with them.
        """
        exactly = (*KEY, COLUMNS.job_id)
        rows = [to_row(job) for job in jobs]
        values = [{f"at_{each.key}": row[each.key] for each in exactly} for row in rows]
        if not values:
            return 0
        same = (column == sa.bindparam(f"at_{column.key}") for column in exactly)
        with self._transaction(writes=True) as connection:
            active.forget(connection, {job.key: job.registration for job in jobs})
            return connection.execute(statement.where(*same, ~LIVE), values).rowcount

    def _change(
        self,
        connection: sa.Connection,
        where: Sequence[sa.ColumnElement[bool]],
        change: Callable[[Job, datetime], Job],
        seen: Mapping[JobKey, int] | None = None,
    ) -> list[JobKey]:
        now = self._clock()
        rows = lock(connection, (*where, LIVE))
        if seen is not None:
            rows = {key: job for key, job in rows.items() if job.seq == seen.get(key)}
        changed = [change(job, now) for job in rows.values()]
        write_back(connection, rows, changed, entry_of=self._entry)
        return list(rows)

    def _change_keys(
        self,
        keys: Iterable[JobKey],
        change: Callable[[Job, datetime], Job],
        *where: sa.ColumnElement[bool],
        seen: Mapping[JobKey, int] | None = None,
    ) -> tuple[JobKey, ...]:
        changed: list[JobKey] = []
        with self._transaction(writes=True) as connection:
            for some in portions(sorted(set(keys))):
                chosen = (is_one_of(connection.dialect, some), *where)
                changed += self._change(connection, chosen, change, seen)
        return tuple(sorted(changed))

    def _moved(
        self,
        steps: Collection[Step],
        change: Callable[[Mapping[JobKey, Job], Collection[Step]], tuple[list[Job], Outcomes]],
    ) -> Outcomes:
        """Change the claims' rows in one transaction; returns the claims' outcomes."""
        if not steps:
            return change({}, steps)[1]
        with self._transaction(writes=True) as connection:
            rows = locked(connection, [step.claim.key for step in steps])
            changed, outcomes = change(rows, steps)
            write_back(connection, rows, changed, entry_of=self._entry)
            return outcomes


def _waits_for(run_id: str) -> tuple[sa.ColumnElement[bool], ...]:
    return COLUMNS.run_id == run_id, COLUMNS.job_state == int(JobState.PENDING)


def _names(connection: sa.Connection, where: Sequence[sa.ColumnElement[bool]]) -> list[JobID]:
    """The names of the jobs that match, each once."""
    name = (COLUMNS.db_name, COLUMNS.table_name, COLUMNS.job_name)
    found = connection.execute(sa.select(*name).distinct().where(*where))
    return [JobID(db=db, table=table, job=job) for db, table, job in found]


class _Within(SqlLog):
    """A log whose transaction is the caller's."""

    def __init__(self, log: SqlLog, connection: sa.Connection) -> None:
        vars(self).update(vars(log))
        self._connection = connection

    @contextmanager
    def _transaction(self, *, writes: bool) -> Iterator[sa.Connection]:
        del writes
        with answering(self.engine):
            yield self._connection
