"""An ISCP log in memory: for tests and for trying things out, gone with its process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from iscp_dagster.core import lifecycle
from iscp_dagster.core.batch import Layout, Phase
from iscp_dagster.core.clock import Clock, NewId, new_id, utc_now
from iscp_dagster.core.iterations import Claim, Iteration
from iscp_dagster.core.jobs import Job, JobID, JobKey, Registration
from iscp_dagster.core.moment import START, Moment
from iscp_dagster.core.specs import JobSpec
from iscp_dagster.core.states import ACTIVE, JobState


class MemoryLog:
    """A JobLog over a dict; threads take turns."""

    def __init__(self, *, clock: Clock = utc_now, new_id: NewId = new_id) -> None:
        self._clock = clock
        self._new_id = new_id
        self._rows: dict[JobKey, Job] = {}
        self._lock = threading.Lock()

    def ensure(self) -> None:
        """Nothing to make."""

    def register(self, account: str, name: JobID, table_id: str, spec: JobSpec) -> bool:
        row = Registration(account=account, name=name, table_id=table_id, spec=spec)
        return self.register_many([row]) == 1

    def register_many(self, rows: Iterable[Registration]) -> int:
        with self._lock:
            return sum([self._registered(row) for row in rows])

    def unregister(self, account: str, name: JobID, table_id: str | None = None) -> bool:
        with self._lock:
            found = [
                job
                for job in self._live()
                if (job.key.account, job.name) == (account, name)
                and table_id in {None, job.key.table_id}
            ]
            self._put([lifecycle.unregistered(job, self._clock()) for job in found])
            return bool(found)

    def jobs(
        self,
        *,
        table_id: str | None = None,
        account: str | None = None,
        state: JobState | None = None,
        include_dropped: bool = False,
    ) -> list[Job]:
        with self._lock:
            rows = [self._rows[key] for key in sorted(self._rows)]
        return [
            job
            for job in rows
            if table_id in {None, job.key.table_id}
            and account in {None, job.key.account}
            and state in {None, job.state}
            and (include_dropped or job.drop_at is None)
        ]

    def job(self, key: JobKey) -> Job | None:
        job = self._rows.get(key)
        return job if job is not None and job.drop_at is None else None

    def count(self, table_id: str | None = None) -> dict[JobState, int]:
        states = [job.state for job in self.jobs(table_id=table_id)]
        return {state: states.count(state) for state in JobState}

    def enqueue(self, iteration: Iteration, run_id: str) -> None:
        with self._lock:
            rows = self._rows
            self._put(
                [lifecycle.enqueued(rows.get(k), k, iteration, run_id) for k in iteration.jobs]
            )

    def begin(
        self, iteration: Iteration, run_id: str, layout: Layout, *, queued_as: str | None = None
    ) -> tuple[Claim, ...]:
        with self._lock:
            now = self._clock()
            begun = [
                lifecycle.begun(
                    self._rows.get(key),
                    key,
                    iteration,
                    run_id=run_id,
                    queued_as=queued_as,
                    layout=layout,
                    now=now,
                )
                for key in iteration.jobs
            ]
            self._put([job for job, _ in begun])
            return tuple(claim for _, claim in begun)

    def advance(self, claim: Claim) -> Claim:
        with self._lock:
            job, moved = lifecycle.advanced(self._rows.get(claim.key), claim)
            self._put([job])
            return moved

    def complete(self, claim: Claim, to: Moment, counts: Mapping[str, int]) -> None:
        with self._lock:
            job = self._rows.get(claim.key)
            self._put([lifecycle.completed(job, claim, to, counts, self._clock())])

    def fail(self, claim: Claim, code: int, message: str) -> None:
        with self._lock:
            job = self._rows.get(claim.key)
            self._put([lifecycle.failed(job, claim, code, message, self._clock())])

    def cancel(self, keys: Iterable[JobKey]) -> tuple[JobKey, ...]:
        wanted = set(keys)
        return self._end(lambda job: job.key in wanted, lifecycle.canceled)

    def active_runs(self) -> frozenset[str]:
        active = [job for job in self.jobs() if job.state in ACTIVE]
        return frozenset(job.run_id for job in active if job.run_id is not None)

    def recover(self, gone: Collection[str]) -> tuple[JobKey, ...]:
        return self._end(lambda job: job.run_id in gone, lifecycle.recovered)

    def repair(self, keys: Iterable[JobKey]) -> tuple[JobKey, ...]:
        wanted = set(keys)
        with self._lock:
            found = [
                job for job in self._live() if job.key in wanted and job.state is JobState.ERROR
            ]
            self._put([lifecycle.repaired(job, self._clock()) for job in found])
            return tuple(sorted(job.key for job in found))

    def standings(self) -> Mapping[str, frozenset[tuple[str, int, JobState]]]:
        found: dict[str, set[tuple[str, int, JobState]]] = {}
        for job in self.jobs():
            place = job.key.job_name, job.watermark.version, job.state
            found.setdefault(job.key.table_id, set()).add(place)
        return {table_id: frozenset(places) for table_id, places in found.items()}

    def advance_idle(
        self, table_id: str, accounts: Collection[str], since: Moment, to: Moment
    ) -> int:
        with self._lock:
            idle = [
                job
                for job in self._live()
                if job.key.table_id == table_id
                and job.key.account in accounts
                and job.state is JobState.COMPLETED
                and max(since.version, START.version + 1) <= job.watermark.version < to.version
                and (job.batch is None or job.batch.phase is Phase.AFTER)
            ]
            self._put([replace(job, watermark=to, seq=job.seq + 1) for job in idle])
            return len(idle)

    def _registered(self, row: Registration) -> bool:
        old = self._rows.get(row.key)
        if old is not None and old.drop_at is None:
            return False
        seq = 0 if old is None else old.seq + 1
        job_id = self._new_id()
        self._put([lifecycle.registered(row, job_id=job_id, seq=seq, now=self._clock())])
        return True

    def _end(self, chosen: Callable[[Job], bool], change: Callable[..., Job]) -> tuple[JobKey, ...]:
        with self._lock:
            found = [job for job in self._live() if job.state in ACTIVE and chosen(job)]
            self._put([change(job, self._clock()) for job in found])
            return tuple(sorted(job.key for job in found))

    def _live(self) -> list[Job]:
        return [job for job in self._rows.values() if job.drop_at is None]

    def _put(self, jobs: Iterable[Job]) -> None:
        self._rows.update({job.key: job for job in jobs})
