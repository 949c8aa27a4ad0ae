"""The ISCP log in a SQL database."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.schema import CreateIndex, CreateTable

from iscp_dagster.core import lifecycle
from iscp_dagster.core.batch import Layout, Phase
from iscp_dagster.core.clock import Clock, NewId, new_id, utc_now
from iscp_dagster.core.iterations import Claim, Iteration
from iscp_dagster.core.jobs import Job, JobID, JobKey, Registration
from iscp_dagster.core.moment import START, Moment
from iscp_dagster.core.specs import JobSpec
from iscp_dagster.core.states import JobState
from iscp_dagster.log.engine import ENSURE_LOCK, open_engine, prepare, transaction, use_wal
from iscp_dagster.log.statements import (
    COLUMNS,
    IS_ACTIVE,
    LIVE,
    equal,
    insert_unless_live,
    is_one_of,
    lock,
    locked,
    portions,
    write_back,
)
from iscp_dagster.log.tables import ISCP_LOG, from_row, to_row


class SqlLog:
    """A JobLog in SQLite or PostgreSQL.

    Rows are locked, changed by core.lifecycle, and written back on condition that `seq` is what
    was read. `at` is a URL (see `open_engine`) or an engine of the caller's.
    """

    def __init__(
        self, at: str | sa.URL | sa.Engine, *, clock: Clock = utc_now, new_id: NewId = new_id
    ) -> None:
        self._engine = prepare(at if isinstance(at, sa.Engine) else open_engine(at))
        self._clock = clock
        self._new_id = new_id

    def ensure(self) -> None:
        with transaction(self._engine, writes=False) as connection:
            ready = sa.inspect(connection).has_table(ISCP_LOG.name)
        if ready:
            return
        if self._engine.dialect.name == "sqlite":
            use_wal(self._engine)
        with transaction(self._engine, writes=True) as connection:
            if self._engine.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(ENSURE_LOCK)))
            connection.execute(CreateTable(ISCP_LOG, if_not_exists=True))
            for index in sorted(ISCP_LOG.indexes, key=lambda index: str(index.name)):
                connection.execute(CreateIndex(index, if_not_exists=True))

    def register(self, account: str, name: JobID, table_id: str, spec: JobSpec) -> bool:
        row = Registration(account=account, name=name, table_id=table_id, spec=spec)
        return self.register_many([row]) == 1

    def register_many(self, rows: Iterable[Registration]) -> int:
        first = {row.key: row for row in reversed(list(rows))}
        if not first:
            return 0
        # In the order of keys, so that two callers never wait for each other.
        values = [to_row(self._fresh(first[key])) for key in sorted(first)]
        with transaction(self._engine, writes=True) as connection:
            created = connection.execute(insert_unless_live(self._engine.dialect.name), values)
            return len(created.all())

    def unregister(self, account: str, name: JobID, table_id: str | None = None) -> bool:
        named = (
            COLUMNS.account_id == account,
            COLUMNS.db_name == name.db,
            COLUMNS.table_name == name.table,
            COLUMNS.job_name == name.job,
            *equal(COLUMNS.table_id, table_id),
        )
        with transaction(self._engine, writes=True) as connection:
            return bool(self._change(connection, named, lifecycle.unregistered))

    def jobs(
        self,
        *,
        table_id: str | None = None,
        account: str | None = None,
        state: JobState | None = None,
        include_dropped: bool = False,
    ) -> list[Job]:
        chosen = sa.select(ISCP_LOG).where(
            *equal(COLUMNS.table_id, table_id),
            *equal(COLUMNS.account_id, account),
            *equal(COLUMNS.job_state, state),
            *(() if include_dropped else (LIVE,)),
        )
        with transaction(self._engine, writes=False) as connection:
            found = [from_row(row) for row in connection.execute(chosen)]
        return sorted(found, key=lambda job: job.key)

    def job(self, key: JobKey) -> Job | None:
        chosen = sa.select(ISCP_LOG).where(is_one_of([key]), LIVE)
        with transaction(self._engine, writes=False) as connection:
            row = connection.execute(chosen).one_or_none()
        return None if row is None else from_row(row)

    def count(self, table_id: str | None = None) -> dict[JobState, int]:
        counted = (
            sa.select(COLUMNS.job_state, sa.func.count())
            .where(LIVE, *equal(COLUMNS.table_id, table_id))
            .group_by(COLUMNS.job_state)
        )
        with transaction(self._engine, writes=False) as connection:
            found = {JobState(state): number for state, number in connection.execute(counted)}
        return {state: found.get(state, 0) for state in JobState}

    def enqueue(self, iteration: Iteration, run_id: str) -> None:
        with transaction(self._engine, writes=True) as connection:
            rows = locked(connection, iteration.jobs)
            changed = [
                lifecycle.enqueued(rows.get(key), key, iteration, run_id) for key in iteration.jobs
            ]
            write_back(connection, rows, changed)

    def begin(
        self, iteration: Iteration, run_id: str, layout: Layout, *, queued_as: str | None = None
    ) -> tuple[Claim, ...]:
        now = self._clock()
        with transaction(self._engine, writes=True) as connection:
            rows = locked(connection, iteration.jobs)
            begun = [
                lifecycle.begun(
                    rows.get(key),
                    key,
                    iteration,
                    run_id=run_id,
                    queued_as=queued_as,
                    layout=layout,
                    now=now,
                )
                for key in iteration.jobs
            ]
            write_back(connection, rows, [job for job, _ in begun])
        return tuple(claim for _, claim in begun)

    def advance(self, claim: Claim) -> Claim:
        with transaction(self._engine, writes=True) as connection:
            rows = locked(connection, [claim.key])
            job, moved = lifecycle.advanced(rows.get(claim.key), claim)
            write_back(connection, rows, [job])
        return moved

    def complete(self, claim: Claim, to: Moment, counts: Mapping[str, int]) -> None:
        self._finish(claim, lambda job, now: lifecycle.completed(job, claim, to, counts, now))

    def fail(self, claim: Claim, code: int, message: str) -> None:
        self._finish(claim, lambda job, now: lifecycle.failed(job, claim, code, message, now))

    def cancel(self, keys: Iterable[JobKey]) -> tuple[JobKey, ...]:
        canceled: list[JobKey] = []
        with transaction(self._engine, writes=True) as connection:
            for some in portions(sorted(set(keys))):
                chosen = (is_one_of(some), IS_ACTIVE)
                canceled += self._change(connection, chosen, lifecycle.canceled)
        return tuple(sorted(canceled))

    def active_runs(self) -> frozenset[str]:
        chosen = sa.select(COLUMNS.run_id).distinct().where(LIVE, IS_ACTIVE)
        with transaction(self._engine, writes=False) as connection:
            return frozenset(run for run in connection.scalars(chosen) if run is not None)

    def recover(self, gone: Collection[str]) -> tuple[JobKey, ...]:
        recovered: list[JobKey] = []
        with transaction(self._engine, writes=True) as connection:
            for some in portions(sorted(set(gone))):
                chosen = (COLUMNS.run_id.in_(some), IS_ACTIVE)
                recovered += self._change(connection, chosen, lifecycle.recovered)
        return tuple(sorted(recovered))

    def repair(self, keys: Iterable[JobKey]) -> tuple[JobKey, ...]:
        repaired: list[JobKey] = []
        broken = COLUMNS.job_state == int(JobState.ERROR)
        with transaction(self._engine, writes=True) as connection:
            for some in portions(sorted(set(keys))):
                chosen = (is_one_of(some), broken)
                repaired += self._change(connection, chosen, lifecycle.repaired)
        return tuple(sorted(repaired))

    def standings(self) -> Mapping[str, frozenset[tuple[str, int, JobState]]]:
        places = (
            COLUMNS.table_id,
            COLUMNS.job_name,
            COLUMNS.watermark_version,
            COLUMNS.job_state,
        )
        found: dict[str, set[tuple[str, int, JobState]]] = {}
        with transaction(self._engine, writes=False) as connection:
            for table_id, name, version, state in connection.execute(
                sa.select(*places).distinct().where(LIVE)
            ):
                found.setdefault(table_id, set()).add((name, version, JobState(state)))
        return {table_id: frozenset(each) for table_id, each in found.items()}

    def advance_idle(
        self, table_id: str, accounts: Collection[str], since: Moment, to: Moment
    ) -> int:
        idle = (
            COLUMNS.table_id == table_id,
            LIVE,
            COLUMNS.job_state == int(JobState.COMPLETED),
            COLUMNS.watermark_version >= max(since.version, START.version + 1),
            COLUMNS.watermark_version < to.version,
            COLUMNS.batch_phase.is_distinct_from(Phase.BEFORE.value),
        )
        moved = {
            "watermark": str(to),
            "watermark_version": to.version,
            "seq": COLUMNS.seq + 1,
        }
        with transaction(self._engine, writes=True) as connection:
            return sum(
                connection.execute(
                    sa.update(ISCP_LOG).where(*idle, COLUMNS.account_id.in_(some)).values(moved)
                ).rowcount
                for some in portions(sorted(set(accounts)))
            )

    def _fresh(self, row: Registration) -> Job:
        return lifecycle.registered(row, job_id=self._new_id(), seq=0, now=self._clock())

    def _change(
        self,
        connection: sa.Connection,
        where: Sequence[sa.ColumnElement[bool]],
        change: Callable[..., Job],
    ) -> list[JobKey]:
        now = self._clock()
        rows = lock(connection, (*where, LIVE))
        changed = [change(job, now) for job in rows.values()]
        write_back(connection, rows, changed)
        return list(rows)

    def _finish(self, claim: Claim, change: Callable[..., Job]) -> None:
        now = self._clock()
        with transaction(self._engine, writes=True) as connection:
            rows = locked(connection, [claim.key])
            write_back(connection, rows, [change(rows.get(claim.key), now)])
