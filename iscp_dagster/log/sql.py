"""The ISCP log in a SQL database."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from iscp_dagster.core import lifecycle
from iscp_dagster.core.batch import Layout, Phase
from iscp_dagster.core.clock import Clock, NewId, new_id, utc_now
from iscp_dagster.core.errors import FenceError
from iscp_dagster.core.iterations import Claim, Iteration
from iscp_dagster.core.jobs import Job, JobID, JobKey, Registration
from iscp_dagster.core.moment import START, Moment
from iscp_dagster.core.specs import JobSpec
from iscp_dagster.core.states import ACTIVE, JobState
from iscp_dagster.log.engine import ENSURE_LOCK, open_engine, prepare, transaction, use_wal
from iscp_dagster.log.tables import ISCP_LOG, from_row, to_row

KEYS_PER_STATEMENT = 5_000
"""Three parameters each; SQLite takes 32,766 a statement."""

_COLUMNS = ISCP_LOG.c
_KEY = (_COLUMNS.account_id, _COLUMNS.table_id, _COLUMNS.job_name)
_LIVE = _COLUMNS.drop_at.is_(None)
_ACTIVE = _COLUMNS.job_state.in_([int(state) for state in ACTIVE])


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
            created = connection.execute(self._insert_unless_live(), values)
            return len(created.all())

    def unregister(self, account: str, name: JobID, table_id: str | None = None) -> bool:
        named = (
            _COLUMNS.account_id == account,
            _COLUMNS.db_name == name.db,
            _COLUMNS.table_name == name.table,
            _COLUMNS.job_name == name.job,
            *_equal(_COLUMNS.table_id, table_id),
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
            *_equal(_COLUMNS.table_id, table_id),
            *_equal(_COLUMNS.account_id, account),
            *_equal(_COLUMNS.job_state, state),
            *(() if include_dropped else (_LIVE,)),
        )
        with transaction(self._engine, writes=False) as connection:
            found = [from_row(row) for row in connection.execute(chosen)]
        return sorted(found, key=lambda job: job.key)

    def job(self, key: JobKey) -> Job | None:
        chosen = sa.select(ISCP_LOG).where(_is_one_of([key]), _LIVE)
        with transaction(self._engine, writes=False) as connection:
            row = connection.execute(chosen).one_or_none()
        return None if row is None else from_row(row)

    def count(self, table_id: str | None = None) -> dict[JobState, int]:
        counted = (
            sa.select(_COLUMNS.job_state, sa.func.count())
            .where(_LIVE, *_equal(_COLUMNS.table_id, table_id))
            .group_by(_COLUMNS.job_state)
        )
        with transaction(self._engine, writes=False) as connection:
            found = {JobState(state): number for state, number in connection.execute(counted)}
        return {state: found.get(state, 0) for state in JobState}

    def enqueue(self, iteration: Iteration, run_id: str) -> None:
        with transaction(self._engine, writes=True) as connection:
            rows = _locked(connection, iteration.jobs)
            changed = [
                lifecycle.enqueued(rows.get(key), key, iteration, run_id) for key in iteration.jobs
            ]
            _write_back(connection, rows, changed)

    def begin(
        self, iteration: Iteration, run_id: str, layout: Layout, *, queued_as: str | None = None
    ) -> tuple[Claim, ...]:
        now = self._clock()
        with transaction(self._engine, writes=True) as connection:
            rows = _locked(connection, iteration.jobs)
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
            _write_back(connection, rows, [job for job, _ in begun])
        return tuple(claim for _, claim in begun)

    def advance(self, claim: Claim) -> Claim:
        with transaction(self._engine, writes=True) as connection:
            rows = _locked(connection, [claim.key])
            job, moved = lifecycle.advanced(rows.get(claim.key), claim)
            _write_back(connection, rows, [job])
        return moved

    def complete(self, claim: Claim, to: Moment, counts: Mapping[str, int]) -> None:
        self._finish(claim, lambda job, now: lifecycle.completed(job, claim, to, counts, now))

    def fail(self, claim: Claim, code: int, message: str) -> None:
        self._finish(claim, lambda job, now: lifecycle.failed(job, claim, code, message, now))

    def cancel(self, keys: Iterable[JobKey]) -> tuple[JobKey, ...]:
        canceled: list[JobKey] = []
        with transaction(self._engine, writes=True) as connection:
            for some in _portions(sorted(set(keys))):
                chosen = (_is_one_of(some), _ACTIVE)
                canceled += self._change(connection, chosen, lifecycle.canceled)
        return tuple(sorted(canceled))

    def active_runs(self) -> frozenset[str]:
        chosen = sa.select(_COLUMNS.run_id).distinct().where(_LIVE, _ACTIVE)
        with transaction(self._engine, writes=False) as connection:
            return frozenset(run for run in connection.scalars(chosen) if run is not None)

    def recover(self, gone: Collection[str]) -> tuple[JobKey, ...]:
        recovered: list[JobKey] = []
        with transaction(self._engine, writes=True) as connection:
            for some in _portions(sorted(set(gone))):
                chosen = (_COLUMNS.run_id.in_(some), _ACTIVE)
                recovered += self._change(connection, chosen, lifecycle.recovered)
        return tuple(sorted(recovered))

    def repair(self, keys: Iterable[JobKey]) -> tuple[JobKey, ...]:
        repaired: list[JobKey] = []
        broken = _COLUMNS.job_state == int(JobState.ERROR)
        with transaction(self._engine, writes=True) as connection:
            for some in _portions(sorted(set(keys))):
                chosen = (_is_one_of(some), broken)
                repaired += self._change(connection, chosen, lifecycle.repaired)
        return tuple(sorted(repaired))

    def standings(self, table_id: str) -> frozenset[tuple[int, JobState]]:
        chosen = (
            sa.select(_COLUMNS.watermark_version, _COLUMNS.job_state)
            .distinct()
            .where(_COLUMNS.table_id == table_id, _LIVE)
        )
        with transaction(self._engine, writes=False) as connection:
            return frozenset(
                (version, JobState(state)) for version, state in connection.execute(chosen)
            )

    def advance_idle(
        self, table_id: str, accounts: Collection[str], since: Moment, to: Moment
    ) -> int:
        idle = (
            _COLUMNS.table_id == table_id,
            _LIVE,
            _COLUMNS.job_state == int(JobState.COMPLETED),
            _COLUMNS.watermark_version >= max(since.version, START.version + 1),
            _COLUMNS.watermark_version < to.version,
            _COLUMNS.batch_phase.is_distinct_from(Phase.BEFORE.value),
        )
        moved = {
            "watermark": str(to),
            "watermark_version": to.version,
            "seq": _COLUMNS.seq + 1,
        }
        with transaction(self._engine, writes=True) as connection:
            return sum(
                connection.execute(
                    sa.update(ISCP_LOG).where(*idle, _COLUMNS.account_id.in_(some)).values(moved)
                ).rowcount
                for some in _portions(sorted(set(accounts)))
            )

    def _fresh(self, row: Registration) -> Job:
        return lifecycle.registered(row, job_id=self._new_id(), seq=0, now=self._clock())

    def _insert_unless_live(self) -> sa.Executable:
        """Insert, or replace a dropped row; returns the rows that are new."""
        on_sqlite = self._engine.dialect.name == "sqlite"
        insert = sqlite.insert(ISCP_LOG) if on_sqlite else postgresql.insert(ISCP_LOG)
        names = {column.name for column in _COLUMNS} - {column.name for column in _KEY}
        replaced: dict[str, Any] = {name: insert.excluded[name] for name in names}
        replaced["seq"] = _COLUMNS.seq + 1
        return insert.on_conflict_do_update(
            index_elements=list(_KEY), set_=replaced, where=~_LIVE
        ).returning(_COLUMNS.job_id)

    def _change(
        self,
        connection: sa.Connection,
        where: Sequence[sa.ColumnElement[bool]],
        change: Callable[..., Job],
    ) -> list[JobKey]:
        now = self._clock()
        rows = _lock(connection, (*where, _LIVE))
        changed = [change(job, now) for job in rows.values()]
        _write_back(connection, rows, changed)
        return list(rows)

    def _finish(self, claim: Claim, change: Callable[..., Job]) -> None:
        now = self._clock()
        with transaction(self._engine, writes=True) as connection:
            rows = _locked(connection, [claim.key])
            _write_back(connection, rows, [change(rows.get(claim.key), now)])


def _locked(connection: sa.Connection, keys: Sequence[JobKey]) -> dict[JobKey, Job]:
    rows: dict[JobKey, Job] = {}
    for some in _portions(sorted(keys)):
        rows |= _lock(connection, (_is_one_of(some),))
    return rows


def _lock(connection: sa.Connection, where: Sequence[sa.ColumnElement[bool]]) -> dict[JobKey, Job]:
    """The rows, locked to the transaction's end: on SQLite the whole file is already."""
    chosen = sa.select(ISCP_LOG).where(*where).order_by(*_KEY).with_for_update()
    found = [from_row(row) for row in connection.execute(chosen)]
    return {job.key: job for job in found}


def _write_back(
    connection: sa.Connection, before: Mapping[JobKey, Job], jobs: Sequence[Job]
) -> None:
    """Compare-and-set each row by job id and `seq`; FenceError, and no change, if one moved."""
    if not jobs:
        return
    update = sa.update(ISCP_LOG).where(
        *(column == sa.bindparam(f"at_{column.name}") for column in _KEY),
        _COLUMNS.job_id == sa.bindparam("at_job_id"),
        _COLUMNS.seq == sa.bindparam("at_seq"),
    )
    done = connection.execute(update, [_values(before[job.key], job) for job in jobs])
    if done.rowcount != len(jobs):
        names = ", ".join(str(job.key) for job in jobs)
        raise FenceError(f"Another writer changed a row of: {names}; plan again.")


def _values(before: Job, job: Job) -> dict[str, Any]:
    row = to_row(job)
    key = {f"at_{column.name}": row[column.name] for column in _KEY}
    return {**row, **key, "at_job_id": before.job_id, "at_seq": before.seq}


def _is_one_of(keys: Sequence[JobKey]) -> sa.ColumnElement[bool]:
    rows = [(key.account, key.table_id, key.job_name) for key in keys]
    return sa.tuple_(*_KEY).in_(rows)


def _equal(column: sa.ColumnElement[Any], value: Any) -> tuple[sa.ColumnElement[bool], ...]:
    return () if value is None else (column == value,)


def _portions(items: Sequence[Any]) -> Iterator[list[Any]]:
    rest = iter(items)
    while portion := list(islice(rest, KEYS_PER_STATEMENT)):
        yield portion
