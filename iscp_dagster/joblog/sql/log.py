"""The ISCP log in a SQL database."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import datetime
from operator import itemgetter
from typing import Any, TypeVar

import sqlalchemy as sa

from iscp_dagster.joblog import groups, iterations, lifecycle
from iscp_dagster.joblog.history import Bookmark, HistoryEntry, Usage, make_entry
from iscp_dagster.joblog.index_consumer import check_shared_consumer, fit_index_consumer
from iscp_dagster.joblog.leases import DEFAULT_LEASES, LeaseDurations
from iscp_dagster.joblog.results import ChangedTenants, SpecUpdateResult
from iscp_dagster.joblog.sql import active_sets, leases
from iscp_dagster.joblog.sql.engine import ENSURE_LOCK, LOG, open_engine
from iscp_dagster.joblog.sql.flush import flush
from iscp_dagster.joblog.sql.job_history import (
    prune,
    read_changed_tenants,
    read_history,
    read_run_tenants,
    read_usage,
)
from iscp_dagster.joblog.sql.rows import group_jobs, read_jobs, select_jobs, to_row
from iscp_dagster.joblog.sql.standing import (
    delete_standing,
    insert_standing,
    put_standing,
    read_standing_specs,
)
from iscp_dagster.joblog.sql.statements import (
    COLUMNS,
    IS_ACTIVE,
    KEY,
    LIVE,
    add_entries,
    find_latest_job,
    insert_unless_live,
    is_one_of,
    lock,
    lock_groups,
    lock_jobs,
    lock_names,
    match_name,
    match_value,
    split_for_statements,
    write_back,
    write_groups,
)
from iscp_dagster.joblog.sql.tables import ISCP_LOG, METADATA
from iscp_dagster.joblog.updates import SpecUpdate
from iscp_dagster.model.batch import SAME_LAYOUT, Layout, Range
from iscp_dagster.model.clock import Clock, NewId, get_utc_now, make_id
from iscp_dagster.model.errors import FenceError, SetupError
from iscp_dagster.model.jobs import Job, JobID, JobKey, NewJob
from iscp_dagster.model.moment import START, Moment
from iscp_dagster.model.specs import JobSpec
from iscp_dagster.model.states import JobState
from sql_transactions.engine import begin_transaction, prepare_engine, render_url, translate_errors
from sql_transactions.tables import ensure_tables, find_missing_column

Step = TypeVar("Step", bound="iterations.WrittenStep | iterations.FailedStep")
Outcomes = TypeVar("Outcomes")

LEASE_RETENTION_SECONDS = 86_400.0
"""Seconds after which an expired lease is deleted."""


class SqlLog:
    """The one durable record of jobs, in SQLite or PostgreSQL. Each method is one transaction.

    Safe to call from several threads and processes. A row that another writer changed raises
    FenceError; a log that does not answer raises UnavailableError.

    Rows are locked, changed by joblog.lifecycle, and written back if `seq` is unchanged. `at` is a
    URL (see `open_engine`) or the caller's engine; `actor` signs changes made outside of runs.
    Leases use the database's clock, unless `lease_clock` returns seconds.
    """

    def __init__(
        self,
        at: str | sa.URL | sa.Engine,
        *,
        clock: Clock = get_utc_now,
        new_id: NewId = make_id,
        actor: str = "",
        leases: LeaseDurations = DEFAULT_LEASES,
        lease_clock: Callable[[], float] | None = None,
    ) -> None:
        self.engine = prepare_engine(at if isinstance(at, sa.Engine) else open_engine(at), LOG)
        self.leases = leases
        """How long leases last."""
        self._clock = clock
        self._new_id = new_id
        self._actor = actor
        self._lease_clock = lease_clock

    def bind(self, connection: sa.Connection) -> SqlLog:
        """The log, with every method in the caller's transaction.

        The connection must be to the log's database; on SQLite, from `engine`. Others see nothing
        before the caller commits; after an error the caller must roll back.
        """
        return _BoundLog(self, connection)

    def begin_write(self) -> AbstractContextManager[sa.Connection]:
        """A transaction in the log's database, for `bind`; an error rolls it back."""
        return begin_transaction(self.engine, writes=True)

    def begin_read(self) -> AbstractContextManager[sa.Connection]:
        """A transaction that only reads."""
        return begin_transaction(self.engine, writes=False)

    def ensure(self) -> None:
        """Create the log's tables. Idempotent, and safe from several processes at once."""
        if missing := find_missing_column(self.engine, METADATA):
            table, column = missing
            raise SetupError(
                f"ISCP log {render_url(self.engine.url)} was made by another version of "
                f"iscp_dagster: its table {table} has no column {column}. Start with a fresh one; "
                "the indexes are rebuilt."
            )
        ensure_tables(self.engine, METADATA, lock=ENSURE_LOCK)

    def import_jobs(self, jobs: Iterable[Job], standing: Mapping[JobID, JobSpec]) -> None:
        """Insert another log's jobs unchanged into this empty one, without their history."""
        rows = [to_row(job) for job in jobs]
        with self._begin_transaction(writes=True) as connection:
            if rows:
                connection.execute(sa.insert(ISCP_LOG), rows)
            for name, spec in standing.items():
                put_standing(connection, name, spec, self._clock())

    def register(self, tenant: str, name: JobID, table_id: str, spec: JobSpec) -> bool:
        """Register a job; False if it exists.

        A dropped row of that name is replaced by a new registration, from START.
        """
        row = NewJob(tenant=tenant, name=name, table_id=table_id, spec=spec)
        return self.register_many([row]) == 1

    def register_many(
        self, rows: Iterable[NewJob], *, revive: bool = True, adopt: bool = True
    ) -> int:
        """Register jobs that do not exist; returns how many. Of equal keys the first row counts.

        Without `revive` a dropped row stays dropped, and a standing registration, if there is one
        now, overrides a row's spec. An index has one consumer for all its tenants: a row with
        another one gets theirs, or without `adopt` raises ConfigError.
        """
        new_jobs = list(rows)
        if not new_jobs:
            return 0
        with self._begin_transaction(writes=True) as connection:
            lock_names(connection, [row.name for row in new_jobs])
            standing = {} if revive else read_standing_specs(connection)
            new_jobs = [replace(row, spec=standing.get(row.name, row.spec)) for row in new_jobs]
            return self._register_jobs(connection, new_jobs, revive=revive, adopt=adopt)

    def unregister(self, tenant: str | None, name: JobID, table_id: str | None = None) -> bool:
        """Drop a job; False if there is none. A run that holds it loses it.

        Without `table_id`, on every table that had that name (also one since recreated). With
        `tenant` None, drop every tenant's job, and end the standing registration of that name.
        """
        where = (*match_name(tenant, name), *match_value(COLUMNS.table_id, table_id))
        with self._begin_transaction(writes=True) as connection:
            lock_names(connection, [name])
            ended = tenant is None and delete_standing(connection, name)
            return bool(self._update_matching(connection, where, lifecycle.unregister_job)) or ended

    def update(
        self,
        tenant: str | None,
        name: JobID,
        change: SpecUpdate,
        *,
        interrupt: bool = False,
        declared: JobSpec | None = None,
    ) -> SpecUpdateResult | None:
        """Change the job's spec; None if there is no such job.

        Takes effect at the next iteration; `interrupt` cancels the current one and returns its
        runs. A job in error is completed, unless its table is gone. Without `tenant`, change every
        tenant's job and the standing registration; if there is none, the changed `declared` becomes
        it, if that differs. Raises ConfigError if it would change an index's consumer for one
        tenant of several.
        """
        now = self._clock()
        with self._begin_transaction(writes=True) as connection:
            lock_names(connection, [name])
            spec = read_standing_specs(connection).get(name, declared) if tenant is None else None
            rows = lock(connection, (*match_name(tenant, name), LIVE))
            if not rows and spec is None:
                return None
            for job in rows.values() if tenant is not None else []:
                check_shared_consumer(
                    name,
                    change,
                    job,
                    find_latest_job(connection, name, except_tenant=job.key.tenant),
                )
            new_spec = spec and change.apply_to(spec)
            if new_spec is not None and new_spec != spec:
                put_standing(connection, name, new_spec, now)
            interrupted = [job for job in rows.values() if interrupt and job.active]
            prepared = {
                key: lifecycle.prepare_update(job, now, interrupt=interrupt)
                for key, job in rows.items()
            }
            write_back(connection, rows, list(prepared.values()), entry_of=self._make_entry)
            updated = [
                lifecycle.update_job(job, change, now, interrupt=interrupt)
                for job in prepared.values()
            ]
            write_back(connection, prepared, updated, entry_of=self._make_entry)
        return SpecUpdateResult(
            interrupted_jobs=tuple(sorted(job.key for job in interrupted)),
            interrupted_runs=frozenset(job.run_id for job in interrupted if job.run_id is not None),
            changed=new_spec != spec
            or any(lifecycle.has_changed(rows[job.key], job) for job in updated),
        )

    def pause(self, tenant: str | None, name: JobID) -> tuple[JobKey, ...]:
        """Stop planning the tenant's job (None: every tenant's); returns the paused jobs."""
        planned = (*match_name(tenant, name), COLUMNS.paused_at.is_(None))
        with self._begin_transaction(writes=True) as connection:
            return tuple(self._update_matching(connection, planned, lifecycle.pause_job))

    def resume(self, tenant: str | None, name: JobID) -> tuple[JobKey, ...]:
        """Plan the tenant's job again (None: every tenant's); returns the resumed jobs."""
        paused = (*match_name(tenant, name), COLUMNS.paused_at.is_not(None))
        with self._begin_transaction(writes=True) as connection:
            return tuple(self._update_matching(connection, paused, lifecycle.resume_job))

    def register_standing(self, name: JobID, spec: JobSpec, rows: Iterable[NewJob] = ()) -> bool:
        """Register the job for every tenant: tenants of `rows` now, others as they appear.

        False if that registration exists and no row was created.
        """
        jobs = list(rows)
        with self._begin_transaction(writes=True) as connection:
            lock_names(connection, [name])
            standing = fit_index_consumer(
                name, spec, find_latest_job(connection, name), adopt=False
            )
            created = insert_standing(connection, name, standing, self._clock())
            return self._register_jobs(connection, jobs, revive=True, adopt=False) > 0 or created

    def list_standing(self) -> Mapping[JobID, JobSpec]:
        """The standing registrations."""
        with self._begin_transaction(writes=False) as connection:
            return read_standing_specs(connection)

    def list_jobs(
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
        query = select_jobs().where(
            *match_value(COLUMNS.table_id, table_id),
            *match_value(COLUMNS.tenant, tenant),
            *match_value(COLUMNS.job_state, state),
            *(() if name is None else match_name(None, name)),
            *(() if include_dropped else (LIVE,)),
        )
        jobs: list[Job] = []
        with self._begin_transaction(writes=False) as connection:
            for statement in _split_by_tenants(query, tenants):
                jobs += read_jobs(connection.execute(statement))
        return sorted(jobs, key=lambda job: job.key)

    def find_job(self, key: JobKey) -> Job | None:
        """The live job; None if there is none."""
        query = select_jobs().where(is_one_of(self.engine.dialect, [key]), LIVE)
        with self._begin_transaction(writes=False) as connection:
            return next(read_jobs(connection.execute(query)), None)

    def read_fences(
        self, table_id: str, tenants: Collection[str]
    ) -> Mapping[tuple[str, str], tuple[int, int]]:
        """Registration and `seq` of these tenants' live jobs, by tenant and job name.

        They change when a run takes one.
        """
        query = sa.select(COLUMNS.tenant, COLUMNS.job_name, COLUMNS.job_id, COLUMNS.seq)
        query = query.where(COLUMNS.table_id == table_id, LIVE)
        fences: dict[tuple[str, str], tuple[int, int]] = {}
        with self._begin_transaction(writes=False) as connection:
            for statement in _split_by_tenants(query, tenants):
                for tenant, name, registration, seq in connection.execute(statement):
                    fences[tenant, name] = registration, seq
        return fences

    def count(self, table_id: str | None = None) -> dict[JobState, int]:
        """How many live jobs are in each state, 0 included."""
        query = (
            sa.select(COLUMNS.job_state, sa.func.count())
            .where(LIVE, *match_value(COLUMNS.table_id, table_id))
            .group_by(COLUMNS.job_state)
        )
        with self._begin_transaction(writes=False) as connection:
            counts = {JobState(state): number for state, number in connection.execute(query)}
        return {state: counts.get(state, 0) for state in JobState}

    def enqueue(self, iteration: iterations.Iteration, run_id: str) -> Mapping[JobKey, FenceError]:
        """Set the iteration's jobs pending for `run_id`: a run's id, or the name of a dispatch.

        `run_id` gets the lease of a queued iteration. A job that is not startable, or whose
        watermark is not the iteration's start, is unchanged; returns only those.
        """
        now = self._clock()
        with self._begin_transaction(writes=True) as connection:
            locked = lock_groups(connection, iteration.jobs, by_status=False)
            changes, errors = groups.enqueue_groups(locked, iteration, run_id, now)
            write_groups(connection, changes, entry_of=self._make_entry)
            if changes:
                leases.renew_leases(connection, [run_id], self.leases.queued, self._get_now())
            return errors

    def list_queued(self, run_id: str) -> tuple[iterations.Iteration, ...]:
        """The iterations that still wait for `run_id`, ordered by start version.

        That is the enqueued one, without the jobs that others took since. Jobs that must be rebuilt
        since then form a second one, from START.
        """
        query = select_jobs().where(*_match_queued(run_id), LIVE).order_by(*KEY)
        with self._begin_transaction(writes=False) as connection:
            rows = connection.execute(query).all()
        return groups.make_queued_iterations(group_jobs(rows, by_status=False))

    def claim_jobs(
        self,
        iteration: iterations.Iteration,
        run_id: str,
        layout: Layout,
        *,
        layouts: Mapping[str, Layout] = SAME_LAYOUT,
        queued_as: str | None = None,
        earlier: iterations.EarlierBatches = iterations.NO_EARLIER_BATCHES,
    ) -> tuple[iterations.Claim, ...]:
        """Claim the iteration's jobs, in its order: running, first step recorded BEFORE.

        Each job must be startable, with the iteration's start as its watermark; a pending one must
        wait for `run_id` or `queued_as`. Otherwise FenceError names it and no row changes. The run
        gets a lease, which it must renew (`renew_leases`) while it works. `layouts` overrides
        `layout` by tenant.
        The claim's steps replay or set aside a batch that an earlier run left unconfirmed, and
        reject or skip a range that contradicts it.
        """
        now = self._clock()
        with self._begin_transaction(writes=True) as connection:
            changes, claims = groups.claim_groups(
                lock_groups(connection, iteration.jobs, by_status=False),
                iteration,
                run_id=run_id,
                queued_as=queued_as,
                layout=layout,
                layouts=layouts,
                now=now,
                earlier=earlier,
            )
            write_groups(connection, changes, entry_of=self._make_entry)
            leases.renew_leases(connection, [run_id], self.leases.run, self._get_now())
        return claims

    def advance(
        self, steps: Collection[iterations.WrittenStep]
    ) -> Mapping[JobKey, iterations.Claim | FenceError]:
        """Confirm that the claims' steps are written: move watermarks, record next steps BEFORE.

        Jobs are independent, as in `complete` and `fail`: a job whose row was taken has a
        FenceError as its outcome and is unchanged.
        """
        return self._update_claimed(steps, groups.advance_groups)

    def complete(self, steps: Collection[iterations.WrittenStep]) -> Mapping[JobKey, FenceError]:
        """Confirm that the claims' last steps are written: AFTER, watermark, end, completed.

        Returns only the jobs that were taken. Raises BatchError, and changes nothing, for a claim
        that has steps left.
        """
        now = self._clock()
        return self._update_claimed(
            steps, lambda locked, done: groups.complete_groups(locked, done, now)
        )

    def fail(self, steps: Collection[iterations.FailedStep]) -> Mapping[JobKey, FenceError]:
        """Record code and message; batches stay BEFORE, watermarks stay. Returns like `complete`.

        Code 1-9999: completed, to be planned again; 10000 and above: error.
        """
        now = self._clock()
        return self._update_claimed(
            steps, lambda locked, failed: groups.fail_groups(locked, failed, now)
        )

    def cancel(
        self, keys: Iterable[JobKey], *, expected_seqs: Mapping[JobKey, int] | None = None
    ) -> tuple[JobKey, ...]:
        """Cancel jobs that are pending or running; returns them. Idempotent.

        With `expected_seqs`, only jobs whose rows still have the `seq` that the caller saw.
        """
        return self._update_jobs(keys, lifecycle.cancel_job, IS_ACTIVE, expected_seqs=expected_seqs)

    def fail_queued_jobs(self, run_id: str, code: int, message: str) -> tuple[JobKey, ...]:
        """Fail the jobs pending for `run_id` before they could be claimed; returns them."""

        def refuse_job(job: Job, now: datetime) -> Job:
            return lifecycle.refuse_job(job, code, message, now)

        with self._begin_transaction(writes=True) as connection:
            return tuple(self._update_matching(connection, _match_queued(run_id), refuse_job))

    def list_active_runs(self, state: JobState | None = None) -> frozenset[str]:
        """The run ids of pending and running jobs, or of jobs in one of the two states."""
        query = sa.select(COLUMNS.run_id).distinct().where(LIVE, IS_ACTIVE)
        query = query.where(*match_value(COLUMNS.job_state, state))
        with self._begin_transaction(writes=False) as connection:
            return frozenset(run for run in connection.scalars(query) if run is not None)

    def recover_run_jobs(self, gone: Collection[str]) -> tuple[JobKey, ...]:
        """Set pending and running jobs of the runs `gone` to completed; returns them.

        This does not count as a failure: they are planned again at once.
        """
        recovered: list[JobKey] = []
        with self._begin_transaction(writes=True) as connection:
            for portion in split_for_statements(sorted(set(gone))):
                where = (COLUMNS.run_id.in_(portion), IS_ACTIVE)
                recovered += self._update_matching(connection, where, lifecycle.recover_job)
        return tuple(sorted(recovered))

    def expire_unleased_jobs(self, runs: Collection[str] | None = None) -> tuple[JobKey, ...]:
        """Set pending and running jobs whose lease expired to completed; returns them.

        With `runs`, only jobs of these. Running jobs count a failure, with RunGoneError's code.
        """
        reclaimed: list[JobKey] = []
        unleased = [run for run in self.find_unleased_runs() if runs is None or run in runs]
        for portion in split_for_statements(unleased):
            now = self._clock()
            with self._begin_transaction(writes=True) as connection:
                locked = leases.lock_unleased_jobs(connection, portion, self._get_now())
                rows = {job.key: job for job in locked}
                released = [lifecycle.expire_job(job, now) for job in rows.values()]
                write_back(connection, rows, released, entry_of=self._make_entry)
            reclaimed += rows
        return tuple(sorted(reclaimed))

    def find_unleased_runs(self) -> list[str]:
        """The runs and dispatches of active jobs whose lease has expired or is missing."""
        with self._begin_transaction(writes=False) as connection:
            return leases.find_unleased_runs(connection, self._get_now())

    def renew_leases(self, names: Collection[str], seconds: float) -> None:
        """Create or renew leases with these names, for `seconds` from now."""
        if names:
            with self._begin_transaction(writes=True) as connection:
                leases.renew_leases(connection, names, seconds, self._get_now())

    def take_leases(self, names: Collection[str], owner: str, seconds: float) -> frozenset[str]:
        """Take or renew leases for `owner`; returns the names that no other owner holds."""
        if not names:
            return frozenset()
        with self._begin_transaction(writes=True) as connection:
            return leases.take_leases(connection, names, owner, seconds, self._get_now())

    def check_or_grant_leases(self, names: Collection[str], unseen: float) -> frozenset[str]:
        """The names whose lease has expired. A name without one gets one of `unseen` seconds."""
        with self._begin_transaction(writes=False) as connection:
            expiry = leases.read_lease_expiry(connection, names, self._get_now())
        self.renew_leases(set(names) - expiry.keys(), unseen)
        return frozenset(name for name, expired in expiry.items() if expired)

    def repair(self, keys: Iterable[JobKey]) -> tuple[JobKey, ...]:
        """Set jobs in error to completed, so that they are planned again; returns them."""
        in_error = COLUMNS.job_state == int(JobState.ERROR)
        return self._update_jobs(keys, lifecycle.repair_job, in_error)

    def rebuild(self, keys: Iterable[JobKey]) -> tuple[JobKey, ...]:
        """Give live jobs all rows again, after any running iteration; returns them.

        They serve their old rows until then.
        """
        return self._update_jobs(keys, lifecycle.rebuild_job)

    def mark_stranded(self, table_id: str, code: int, message: str) -> tuple[JobKey, ...]:
        """Set all jobs of a missing table to error; returns the changed ones. Idempotent."""
        where = (COLUMNS.table_id == table_id, COLUMNS.job_state != int(JobState.ERROR))

        def mark_job(job: Job, now: datetime) -> Job:
            return lifecycle.mark_stranded(job, code, message, now)

        with self._begin_transaction(writes=True) as connection:
            return tuple(self._update_matching(connection, where, mark_job))

    def reregister_jobs(self, table_id: str, to: str) -> tuple[JobKey, ...]:
        """Register a table's jobs for `to`, which replaced it, and drop the old; returns the new.

        Each keeps its spec and its pause, and starts at START; a job that `to` already has is
        unchanged. Idempotent.
        """
        of_table = (COLUMNS.table_id == table_id, LIVE)
        with self._begin_transaction(writes=True) as connection:
            lock_names(connection, _read_names(connection, of_table))
            jobs = lock(connection, of_table)
            rows = lifecycle.make_successor_jobs(jobs.values(), to)
            existing = lock_jobs(connection, [row.key for row in rows]).items()
            live = {key for key, job in existing if job.drop_at is None}
            self._register_jobs(connection, rows, revive=True, adopt=True)
            migrated = {row.key: job for row, job in zip(rows, jobs.values(), strict=True)}
            migrated = {key: job for key, job in migrated.items() if key not in live}
            for portion in split_for_statements(
                [key for key, job in migrated.items() if job.paused_at]
            ):
                self._update_matching(
                    connection, [is_one_of(connection.dialect, portion)], lifecycle.pause_job
                )
            self._update_matching(connection, of_table, lifecycle.unregister_job)
            return tuple(sorted(migrated))

    def find_table_ids(self, db: str, table: str) -> frozenset[str]:
        """The ids of tables of that name with live jobs; several if it was recreated."""
        of_name = (COLUMNS.db_name == db, COLUMNS.table_name == table)
        query = sa.select(COLUMNS.table_id).distinct().where(*of_name, LIVE)
        with self._begin_transaction(writes=False) as connection:
            return frozenset(connection.scalars(query))

    def find_unbuilt_tenants(self, name: JobID) -> frozenset[str]:
        """The tenants whose job of that name has not delivered all rows yet."""
        unbuilt = sa.or_(COLUMNS.watermark_version == START.version, COLUMNS.rebuild)
        query = sa.select(COLUMNS.tenant).where(*match_name(None, name), LIVE, unbuilt)
        with self._begin_transaction(writes=False) as connection:
            return frozenset(connection.scalars(query))

    def list_watermark_versions(self, table_id: str) -> frozenset[tuple[str, int, JobState]]:
        """The (job name, watermark's version, state) of the table's live jobs, each once."""
        columns = (COLUMNS.job_name, COLUMNS.watermark_version, COLUMNS.job_state)
        query = sa.select(*columns).distinct().where(COLUMNS.table_id == table_id, LIVE)
        with self._begin_transaction(writes=False) as connection:
            rows = connection.execute(query)
            return frozenset((name, version, JobState(state)) for name, version, state in rows)

    def list_unsettled_versions(self, table_id: str) -> list[tuple[str, str, JobState, int]]:
        """The jobs that are queued, running or in error: name, tenant, state, watermark's version.

        Its cost follows how many there are.
        """
        columns = (COLUMNS.job_name, COLUMNS.tenant, COLUMNS.job_state, COLUMNS.watermark_version)
        states = (JobState.PENDING, JobState.RUNNING, JobState.ERROR)
        query = sa.select(*columns).where(
            COLUMNS.table_id == table_id, LIVE, COLUMNS.job_state.in_(map(int, states))
        )
        with self._begin_transaction(writes=False) as connection:
            return [
                (name, tenant, JobState(state), version)
                for name, tenant, state, version in connection.execute(query)
            ]

    def list_idle_versions(
        self, table_id: str, version: int, tenants: Collection[str]
    ) -> list[tuple[str, str, int]]:
        """These tenants' jobs that are completed before `version` and not paused.

        Name, tenant and the watermark's version of each.
        """
        query = sa.select(COLUMNS.job_name, COLUMNS.tenant, COLUMNS.watermark_version).where(
            COLUMNS.table_id == table_id,
            LIVE,
            COLUMNS.paused_at.is_(None),
            COLUMNS.job_state == int(JobState.COMPLETED),
            COLUMNS.watermark_version < version,
        )
        idle: list[tuple[str, str, int]] = []
        with self._begin_transaction(writes=False) as connection:
            for statement in _split_by_tenants(query, tenants):
                idle += [(name, tenant, at) for name, tenant, at in connection.execute(statement)]
        return idle

    def list_watermarks(self, table_id: str) -> tuple[Moment, ...]:
        """The watermarks of the table's live jobs, each version and time once."""
        query = sa.select(COLUMNS.watermark).distinct().where(COLUMNS.table_id == table_id, LIVE)
        with self._begin_transaction(writes=False) as connection:
            return tuple(sorted(map(Moment.parse, connection.scalars(query))))

    def list_tenants(self, table_id: str, *, behind: int | None = None) -> frozenset[str]:
        """The tenants with a live job of the table, or with one at a version before `behind`."""
        query = sa.select(COLUMNS.tenant).distinct().where(COLUMNS.table_id == table_id, LIVE)
        if behind is not None:
            query = query.where(COLUMNS.watermark_version < behind)
        with self._begin_transaction(writes=False) as connection:
            return frozenset(connection.scalars(query))

    def read_run_tenants(self, names: Collection[str]) -> frozenset[str]:
        """The tenants of these runs' and dispatches' jobs, from rows and history."""
        tenants: set[str] = set()
        with self._begin_transaction(writes=False) as connection:
            for portion in split_for_statements(sorted(set(names))):
                query = sa.select(COLUMNS.tenant).where(COLUMNS.run_id.in_(portion))
                tenants |= {*connection.scalars(query), *read_run_tenants(connection, portion)}
        return frozenset(tenants)

    def find_table_names(
        self, table_id: str, tenants: Collection[str] | None = None
    ) -> frozenset[tuple[str, str]]:
        """The (database, table) names of the table's live jobs, of all tenants or of some."""
        names = sa.select(COLUMNS.db_name, COLUMNS.table_name).distinct()
        query = names.where(COLUMNS.table_id == table_id, LIVE)
        table_names: set[tuple[str, str]] = set()
        with self._begin_transaction(writes=False) as connection:
            for statement in _split_by_tenants(query, tenants):
                table_names |= {(db, table) for db, table in connection.execute(statement)}
        return frozenset(table_names)

    def list_known_jobs(
        self, table_id: str, tenants: Collection[str] | None = None
    ) -> frozenset[tuple[str, str]]:
        """The (tenant, job name) of every row of the table, of all tenants or of some.

        Includes dropped ones.
        """
        query = sa.select(COLUMNS.tenant, COLUMNS.job_name).where(COLUMNS.table_id == table_id)
        known_jobs: set[tuple[str, str]] = set()
        with self._begin_transaction(writes=False) as connection:
            for statement in _split_by_tenants(query, tenants):
                known_jobs |= {(tenant, name) for tenant, name in connection.execute(statement)}
        return frozenset(known_jobs)

    def find_startable_tenants(
        self, table_id: str, version: int, tenants: Collection[str]
    ) -> frozenset[str]:
        """Of these tenants, those with a live job that can start and is before `version`.

        A canceled one can start whatever its version.
        """
        idle = sa.and_(
            COLUMNS.job_state == int(JobState.COMPLETED), COLUMNS.watermark_version < version
        )
        startable = sa.or_(idle, COLUMNS.job_state == int(JobState.CANCELED))
        query = sa.select(COLUMNS.tenant).distinct()
        query = query.where(
            COLUMNS.table_id == table_id, LIVE, COLUMNS.paused_at.is_(None), startable
        )
        startable_tenants: set[str] = set()
        with self._begin_transaction(writes=False) as connection:
            for statement in _split_by_tenants(query, tenants):
                startable_tenants.update(connection.scalars(statement))
        return frozenset(startable_tenants)

    def find_unsettled_tenants(self, table_id: str) -> frozenset[str]:
        """The tenants with a live job that is pending, running, canceled, or never synchronized."""
        unsettled = sa.or_(
            COLUMNS.job_state.in_([JobState.PENDING, JobState.RUNNING, JobState.CANCELED]),
            COLUMNS.watermark_version == START.version,
        )
        query = sa.select(COLUMNS.tenant).distinct()
        query = query.where(COLUMNS.table_id == table_id, LIVE, unsettled)
        with self._begin_transaction(writes=False) as connection:
            return frozenset(connection.scalars(query))

    def read_changed_tenants(
        self, since: Bookmark | None, *, beginnings: bool = False
    ) -> ChangedTenants:
        """The tenants whose jobs have history entries since a bookmark of an earlier call.

        Without `beginnings`, leaves out that an iteration was queued or began, since its end has an
        entry too.

        No transaction is missed, whenever it commits and whatever clocks say; some are reported
        twice. None returns only a bookmark.
        """
        with self._begin_transaction(writes=False) as connection:
            return read_changed_tenants(connection, since, beginnings=beginnings)

    def flush(self, moves: Mapping[JobKey, Range]) -> int:
        """Move idle jobs over ranges in which their tenants' data did not change.

        Moves only jobs that are live and completed, are at their range's start, had their first
        iteration and have no unconfirmed batch; only their watermark changes. Returns how many
        moved. Idempotent.
        """
        ordered = sorted(moves.items(), key=itemgetter(0))
        with self._begin_transaction(writes=True) as connection:
            return sum(flush(connection, portion) for portion in split_for_statements(ordered))

    def list_dropped(self, before: datetime) -> list[Job]:
        """The rows dropped before that time, ordered by key."""
        query = select_jobs().where(COLUMNS.drop_at < before).order_by(*KEY)
        with self._begin_transaction(writes=False) as connection:
            return list(read_jobs(connection.execute(query)))

    def delete_dropped(self, jobs: Iterable[Job]) -> int:
        """Delete the rows that are still dropped; returns how many."""
        return self._execute_on_dropped(sa.delete(ISCP_LOG), list(jobs))

    def mark_collected(self, jobs: Iterable[Job]) -> int:
        """Record that the data of rows that are still dropped was deleted; returns how many."""
        statement = sa.update(ISCP_LOG).values(collected_at=self._clock())
        return self._execute_on_dropped(statement, list(jobs))

    def read_history(
        self,
        *,
        tenant: str | None = None,
        name: JobID | None = None,
        since: datetime | None = None,
        most: int = 1_000,
    ) -> list[HistoryEntry]:
        """The newest entries, at most `most`, oldest first."""
        with self._begin_transaction(writes=False) as connection:
            return read_history(connection, tenant, name, since, most)

    def read_usage(
        self, since: datetime | None = None, *, tenant: str | None = None, table: str | None = None
    ) -> list[Usage]:
        """What jobs used since then, ordered by tenant and job; `table` is `database.table`."""
        with self._begin_transaction(writes=False) as connection:
            return read_usage(connection, since, tenant, table)

    def prune(self, before: datetime) -> int:
        """Delete history entries older than `before`, and old leases; returns how many entries.

        The newest entry stays: bookmarks refer to it.
        """
        with self._begin_transaction(writes=True) as connection:
            leases.delete_expired_leases(connection, LEASE_RETENTION_SECONDS, self._get_now())
            return prune(connection, before)

    def _begin_transaction(self, *, writes: bool) -> AbstractContextManager[sa.Connection]:
        return begin_transaction(self.engine, writes=writes)

    def _get_now(self) -> leases.Now:
        return leases.NOW if self._lease_clock is None else sa.literal(self._lease_clock())

    def _register_jobs(
        self,
        connection: sa.Connection,
        rows: Sequence[NewJob],
        *,
        revive: bool,
        adopt: bool,
    ) -> int:
        """Insert rows that do not exist, each with its index's consumer; returns how many."""
        if not rows:
            return 0
        by_key = {row.key: row for row in reversed(rows)}
        existing = {name: find_latest_job(connection, name) for name in {row.name for row in rows}}

        def fit_row(row: NewJob, *, adopt: bool) -> NewJob:
            spec = fit_index_consumer(row.name, row.spec, existing[row.name], adopt=adopt)
            return replace(row, spec=spec)

        # Sorted, so that two callers cannot deadlock.
        now = self._clock()
        new_jobs = {
            key: lifecycle.register_job(
                fit_row(by_key[key], adopt=True), registration=self._new_id(), seq=0, now=now
            )
            for key in sorted(by_key)
        }
        created = sorted(insert_unless_live(connection, list(new_jobs.values()), revive=revive))
        for key in created:
            # An existing row is unchanged; only new ones must fit.
            fit_row(by_key[key], adopt=adopt)
        entries = (make_entry(None, new_jobs[key], at=now, actor=self._actor) for key in created)
        add_entries(connection, entries)
        return len(created)

    def _make_entry(self, before: Job | None, after: Job) -> HistoryEntry | None:
        return make_entry(before, after, at=self._clock(), actor=self._actor)

    def _execute_on_dropped(self, statement: sa.Delete | sa.Update, jobs: Sequence[Job]) -> int:
        """Execute the statement on rows that are still dropped; returns how many.

        Their active rows are deleted with them.
        """
        key_columns = (*KEY, COLUMNS.job_id)
        rows = [to_row(job) for job in jobs]
        values = [{f"at_{column.key}": row[column.key] for column in key_columns} for row in rows]
        if not values:
            return 0
        same_key = (column == sa.bindparam(f"at_{column.key}") for column in key_columns)
        with self._begin_transaction(writes=True) as connection:
            active_sets.delete_active_sets(connection, {job.key: job.registration for job in jobs})
            return connection.execute(statement.where(*same_key, ~LIVE), values).rowcount

    def _update_matching(
        self,
        connection: sa.Connection,
        where: Sequence[sa.ColumnElement[bool]],
        change: Callable[[Job, datetime], Job],
        expected_seqs: Mapping[JobKey, int] | None = None,
    ) -> list[JobKey]:
        now = self._clock()
        rows = lock(connection, (*where, LIVE))
        if expected_seqs is not None:
            rows = {key: job for key, job in rows.items() if job.seq == expected_seqs.get(key)}
        changed = [change(job, now) for job in rows.values()]
        write_back(connection, rows, changed, entry_of=self._make_entry)
        return list(rows)

    def _update_jobs(
        self,
        keys: Iterable[JobKey],
        change: Callable[[Job, datetime], Job],
        *where: sa.ColumnElement[bool],
        expected_seqs: Mapping[JobKey, int] | None = None,
    ) -> tuple[JobKey, ...]:
        changed: list[JobKey] = []
        with self._begin_transaction(writes=True) as connection:
            for portion in split_for_statements(sorted(set(keys))):
                conditions = (is_one_of(connection.dialect, portion), *where)
                changed += self._update_matching(connection, conditions, change, expected_seqs)
        return tuple(sorted(changed))

    def _update_claimed(
        self,
        steps: Collection[Step],
        change: Callable[
            [Collection[groups.JobGroup], Collection[Step]],
            tuple[list[groups.GroupChange], Outcomes],
        ],
    ) -> Outcomes:
        """Change the claims' rows in one transaction; returns the claims' outcomes."""
        if not steps:
            return change([], steps)[1]
        with self._begin_transaction(writes=True) as connection:
            locked = lock_groups(connection, [step.claim.key for step in steps])
            changes, outcomes = change(locked, steps)
            write_groups(connection, changes, entry_of=self._make_entry)
            return outcomes


def _match_queued(run_id: str) -> tuple[sa.ColumnElement[bool], ...]:
    return COLUMNS.run_id == run_id, COLUMNS.job_state == int(JobState.PENDING)


def _split_by_tenants(
    query: sa.Select[Any], tenants: Collection[str] | None
) -> Iterator[sa.Select[Any]]:
    """The query, or one for each portion of the tenants."""
    if tenants is None:
        yield query
        return
    for portion in split_for_statements(sorted(set(tenants))):
        yield query.where(COLUMNS.tenant.in_(portion))


def _read_names(connection: sa.Connection, where: Sequence[sa.ColumnElement[bool]]) -> list[JobID]:
    """The names of the jobs that match, each once."""
    columns = (COLUMNS.db_name, COLUMNS.table_name, COLUMNS.job_name)
    rows = connection.execute(sa.select(*columns).distinct().where(*where))
    return [JobID(db=db, table=table, job=job) for db, table, job in rows]


class _BoundLog(SqlLog):
    """A log in the caller's transaction."""

    def __init__(self, log: SqlLog, connection: sa.Connection) -> None:
        vars(self).update(vars(log))
        self._connection = connection

    @contextmanager
    def _begin_transaction(self, *, writes: bool) -> Iterator[sa.Connection]:
        del writes
        with translate_errors(self.engine):
            yield self._connection
