"""An ISCP log in memory: for tests and for trying things out, gone with its process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import count

from iscp_dagster.joblog import lifecycle
from iscp_dagster.joblog.history import Bookmark, Entry, Usage, entry, usage_of
from iscp_dagster.joblog.iterations import (
    ROWS_ALONE,
    Claim,
    Done,
    Failed,
    Iteration,
    Recall,
    waiting,
)
from iscp_dagster.joblog.leases import DEFAULT_LEASES, Leases
from iscp_dagster.joblog.protocol import Interrupted, JobLog, Touched
from iscp_dagster.joblog.sharing import check_alone, joined
from iscp_dagster.joblog.updates import SpecUpdate
from iscp_dagster.model.batch import ALIKE, Layout, Phase, Range
from iscp_dagster.model.clock import Clock, NewId, new_id, utc_now
from iscp_dagster.model.errors import FenceError
from iscp_dagster.model.jobs import Job, JobID, JobKey, NewJob
from iscp_dagster.model.moment import START, Moment
from iscp_dagster.model.specs import JobSpec
from iscp_dagster.model.states import ACTIVE, Event, JobState


class MemoryLog:
    """A JobLog over a dict; threads take turns."""

    def __init__(
        self,
        *,
        clock: Clock = utc_now,
        new_id: NewId = new_id,
        who: str = "",
        leases: Leases = DEFAULT_LEASES,
        lease_clock: Callable[[], float] = time.time,
    ) -> None:
        self.leases = leases
        self._until: dict[str, tuple[str, float]] = {}
        self._now = lease_clock
        self._clock = clock
        self._new_id = new_id
        self._who = who
        self._rows: dict[JobKey, Job] = {}
        self._standing: dict[JobID, JobSpec] = {}
        self._history: list[Entry] = []
        self._numbers = count(1)
        self._lock = threading.Lock()

    @classmethod
    def copy_of(cls, log: JobLog, *, clock: Clock = utc_now) -> MemoryLog:
        """Copy a log's jobs and standing registrations, without its history and leases."""
        copy = cls(clock=clock)
        copy._rows = {job.key: job for job in log.jobs(include_dropped=True)}
        copy._standing = dict(log.standing())
        return copy

    def ensure(self) -> None:
        """Nothing to do."""

    def register(self, tenant: str, name: JobID, table_id: str, spec: JobSpec) -> bool:
        row = NewJob(tenant=tenant, name=name, table_id=table_id, spec=spec)
        return self.register_many([row]) == 1

    def register_many(
        self, rows: Iterable[NewJob], *, revive: bool = True, adopt: bool = True
    ) -> int:
        with self._lock:
            wanted = [row for row in rows if revive or row.key not in self._rows]
            if not revive:
                wanted = [replace(w, spec=self._standing.get(w.name, w.spec)) for w in wanted]
            return self._registered(wanted, adopt=adopt)

    def unregister(self, tenant: str | None, name: JobID, table_id: str | None = None) -> bool:
        with self._lock:
            stood = tenant is None and self._standing.pop(name, None) is not None
            held = self._named(tenant, name)
            found = [job for job in held if table_id in {None, job.key.table_id}]
            self._put([lifecycle.unregistered(job, self._clock()) for job in found])
            return bool(found) or stood

    def update(
        self,
        tenant: str | None,
        name: JobID,
        change: SpecUpdate,
        *,
        interrupt: bool = False,
        declared: JobSpec | None = None,
    ) -> Interrupted | None:
        with self._lock:
            found = self._named(tenant, name)
            stood = self._standing.get(name, declared) if tenant is None else None
            if not found and stood is None:
                return None
            for job in found if tenant is not None else []:
                check_alone(name, change, job, self._called(name))
            stands = stood and change.applied(stood)
            if stands is not None and stands != stood:
                self._standing[name] = stands
            now, before = self._clock(), {job.key: job for job in found}
            active = [job for job in found if interrupt and job.active]
            self._put([lifecycle.freed(job, now, interrupt=interrupt) for job in found])
            updated = [
                lifecycle.updated(job, change, now, interrupt=interrupt)
                for job in self._named(tenant, name)
            ]
            self._put(updated)
        return Interrupted(
            keys=tuple(sorted(job.key for job in active)),
            runs=frozenset(job.run_id for job in active if job.run_id is not None),
            changed=stands != stood
            or any(lifecycle.differs(before[job.key], job) for job in updated),
        )

    def pause(self, tenant: str | None, name: JobID) -> tuple[JobKey, ...]:
        with self._lock:
            found = [job for job in self._named(tenant, name) if job.paused_at is None]
            return self._change(found, lifecycle.paused)

    def resume(self, tenant: str | None, name: JobID) -> tuple[JobKey, ...]:
        with self._lock:
            found = [job for job in self._named(tenant, name) if job.paused_at is not None]
            return self._change(found, lifecycle.resumed)

    def stand(self, name: JobID, spec: JobSpec, rows: Iterable[NewJob] = ()) -> bool:
        with self._lock:
            stands = joined(name, spec, self._called(name), adopt=False)
            created = self._registered(rows, adopt=False)
            new = name not in self._standing
            self._standing.setdefault(name, stands)
            return created > 0 or new

    def standing(self) -> Mapping[JobID, JobSpec]:
        with self._lock:
            return {name: self._standing[name] for name in sorted(self._standing)}

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
        with self._lock:
            rows = [self._rows[key] for key in sorted(self._rows)]
        return [
            job
            for job in rows
            if table_id in {None, job.key.table_id}
            and tenant in {None, job.key.tenant}
            and (tenants is None or job.key.tenant in tenants)
            and name in {None, job.name}
            and state in {None, job.state}
            and (include_dropped or job.drop_at is None)
        ]

    def job(self, key: JobKey) -> Job | None:
        job = self._rows.get(key)
        return job if job is not None and job.drop_at is None else None

    def fences(self, table_id: str, tenants: Collection[str]) -> Mapping[JobKey, tuple[int, int]]:
        jobs = self.jobs(table_id=table_id, tenants=tenants)
        return {job.key: (job.registration, job.seq) for job in jobs}

    def count(self, table_id: str | None = None) -> dict[JobState, int]:
        states = [job.state for job in self.jobs(table_id=table_id)]
        return {state: states.count(state) for state in JobState}

    def enqueue(self, iteration: Iteration, run_id: str) -> Mapping[JobKey, FenceError]:
        with self._lock:
            changed, lost = lifecycle.all_enqueued(self._rows, iteration, run_id, self._clock())
            self._put(changed)
            self._keep([run_id] if changed else [], self.leases.queued)
            return lost

    def queued(self, run_id: str) -> tuple[Iteration, ...]:
        return waiting(job for job in self.jobs(state=JobState.PENDING) if job.run_id == run_id)

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
        with self._lock:
            now = self._clock()
            begun = [
                lifecycle.begun(
                    self._rows.get(key),
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
            self._put([job for job, _ in begun])
            self._keep([run_id], self.leases.run)
            return tuple(claim for _, claim in begun)

    def advance(self, steps: Collection[Done]) -> Mapping[JobKey, Claim | FenceError]:
        with self._lock:
            changed, outcomes = lifecycle.all_advanced(self._rows, steps)
            self._put(changed)
            return outcomes

    def complete(self, steps: Collection[Done]) -> Mapping[JobKey, FenceError]:
        with self._lock:
            changed, lost = lifecycle.all_completed(self._rows, steps, self._clock())
            self._put(changed)
            return lost

    def fail(self, steps: Collection[Failed]) -> Mapping[JobKey, FenceError]:
        with self._lock:
            changed, lost = lifecycle.all_failed(self._rows, steps, self._clock())
            self._put(changed)
            return lost

    def cancel(
        self, keys: Iterable[JobKey], *, seen: Mapping[JobKey, int] | None = None
    ) -> tuple[JobKey, ...]:
        wanted = set(keys)

        def chosen(job: Job) -> bool:
            return job.key in wanted and (seen is None or job.seq == seen.get(job.key))

        return self._end(chosen, lifecycle.canceled)

    def refuse(self, run_id: str, code: int, message: str) -> tuple[JobKey, ...]:
        return self._end(
            lambda job: job.run_id == run_id and job.state is JobState.PENDING,
            lambda job, now: lifecycle.refused(job, code, message, now),
        )

    def active_runs(self, state: JobState | None = None) -> frozenset[str]:
        active = [job for job in self.jobs(state=state) if job.state in ACTIVE]
        return frozenset(job.run_id for job in active if job.run_id is not None)

    def recover(self, gone: Collection[str]) -> tuple[JobKey, ...]:
        return self._end(lambda job: job.run_id in gone, lifecycle.recovered)

    def reclaim(self, runs: Collection[str] | None = None) -> tuple[JobKey, ...]:
        return self._end(
            lambda job: (runs is None or job.run_id in runs) and not self._held(job.run_id),
            lifecycle.lost,
        )

    def keep(self, names: Collection[str], seconds: float) -> None:
        with self._lock:
            self._keep(names, seconds)

    def take(self, names: Collection[str], owner: str, seconds: float) -> frozenset[str]:
        with self._lock:
            others = {each for each in names if self._held(each) and self._until[each][0] != owner}
            taken = frozenset(names) - others
            self._until |= dict.fromkeys(taken, (owner, self._now() + seconds))
            return taken

    def lapsed(self, names: Collection[str], unseen: float) -> frozenset[str]:
        with self._lock:
            over = [name for name in names if name in self._until and not self._held(name)]
            self._keep([name for name in names if name not in self._until], unseen)
            return frozenset(over)

    def repair(self, keys: Iterable[JobKey]) -> tuple[JobKey, ...]:
        wanted = set(keys)
        with self._lock:
            found = [
                job for job in self._live() if job.key in wanted and job.state is JobState.ERROR
            ]
            self._put([lifecycle.repaired(job, self._clock()) for job in found])
            return tuple(sorted(job.key for job in found))

    def rebuild(self, keys: Iterable[JobKey]) -> tuple[JobKey, ...]:
        with self._lock:
            wanted = set(keys)
            found = [job for job in self._live() if job.key in wanted]
            now = self._clock()
            self._put([lifecycle.rebuilt(job, now) for job in found])
            return tuple(sorted(job.key for job in found))

    def strand(self, table_id: str, code: int, message: str) -> tuple[JobKey, ...]:
        with self._lock:
            found = [
                job
                for job in self._live()
                if job.key.table_id == table_id and job.state is not JobState.ERROR
            ]
            now = self._clock()
            self._put([lifecycle.stranded(job, code, message, now) for job in found])
            return tuple(sorted(job.key for job in found))

    def carry_over(self, table_id: str, to: str) -> tuple[JobKey, ...]:
        with self._lock:
            jobs = [job for job in self._live() if job.key.table_id == table_id]
            rows = lifecycle.carried(jobs, to)
            new = [row.key for row in rows if self.job(row.key) is None]
            self._registered(rows, adopt=True)
            now = self._clock()
            paused = {row.key for row, job in zip(rows, jobs, strict=True) if job.paused_at}
            self._put([lifecycle.paused(self._rows[key], now) for key in new if key in paused])
            self._put([lifecycle.unregistered(job, now) for job in jobs])
            return tuple(sorted(new))

    def table_ids(self, db: str, table: str) -> frozenset[str]:
        named = [job for job in self.jobs() if (job.name.db, job.name.table) == (db, table)]
        return frozenset(job.key.table_id for job in named)

    def unbuilt(self, name: JobID) -> frozenset[str]:
        with self._lock:
            return frozenset(
                job.key.tenant
                for job in self._named(None, name)
                if job.rebuild or job.watermark == START
            )

    def places(self, table_id: str) -> frozenset[tuple[str, int, JobState]]:
        return frozenset(
            (job.key.job_name, job.watermark.version, job.state)
            for job in self.jobs(table_id=table_id)
        )

    def watermarks(self, table_id: str) -> tuple[Moment, ...]:
        texts = {str(job.watermark) for job in self.jobs(table_id=table_id)}
        return tuple(sorted(map(Moment.parse, texts)))

    def tenants(self, table_id: str, *, behind: int | None = None) -> frozenset[str]:
        return frozenset(
            job.key.tenant
            for job in self.jobs(table_id=table_id)
            if behind is None or job.watermark.version < behind
        )

    def tenants_of_runs(self, names: Collection[str]) -> frozenset[str]:
        with self._lock:
            rows = [job.key.tenant for job in self._rows.values() if job.run_id in names]
            past = [each.key.tenant for each in self._history if each.who in names]
            return frozenset([*rows, *past])

    def holders(
        self, table_id: str, tenants: Collection[str] | None = None
    ) -> frozenset[tuple[str, str]]:
        jobs = self.jobs(table_id=table_id, tenants=tenants)
        return frozenset((job.name.db, job.name.table) for job in jobs)

    def registered(self, table_id: str) -> frozenset[tuple[str, str]]:
        rows = self.jobs(table_id=table_id, include_dropped=True)
        return frozenset((job.key.tenant, job.key.job_name) for job in rows)

    def waiting(self, table_id: str) -> frozenset[str]:
        return frozenset(
            job.key.tenant
            for job in self.jobs(table_id=table_id)
            if job.active or job.state is JobState.CANCELED or job.watermark == START
        )

    def touched(self, since: Bookmark | None) -> Touched:
        with self._lock:
            signs = {e.number: Bookmark.sign_of(e.at, e.registration) for e in self._history}
            newest = max(signs, default=0)
            upto = Bookmark(newest + 1, newest, signs.get(newest, ""))
            if since is None:
                return Touched(upto=upto)
            found = [each.key for each in self._history if each.number >= since.place]
            tenants = frozenset((key.table_id, key.tenant) for key in found)
            whole = signs.get(since.number, "") == since.sign
            return Touched(upto=upto, tenants=tenants, whole=whole)

    def flush(self, moves: Mapping[JobKey, Range]) -> int:
        with self._lock:
            held = [job for key in sorted(moves) if (job := self.job(key)) is not None]
            idle = [job for job in held if _moves(job, moves[job.key])]
            self._put(
                [
                    replace(job, watermark=moves[job.key].to, seq=job.seq + 1, happened=None)
                    for job in idle
                ]
            )
            return len(idle)

    def dropped(self, before: datetime) -> list[Job]:
        rows = self.jobs(include_dropped=True)
        return [job for job in rows if job.drop_at is not None and job.drop_at < before]

    def forget(self, jobs: Iterable[Job]) -> int:
        with self._lock:
            keys = [job.key for job in jobs if self._is_dropped(job)]
            for key in keys:
                del self._rows[key]
            return len(keys)

    def mark_collected(self, jobs: Iterable[Job]) -> int:
        with self._lock:
            keys, now = [job.key for job in jobs if self._is_dropped(job)], self._clock()
            for key in keys:
                self._rows[key] = replace(self._rows[key], collected_at=now)
            return len(keys)

    def history(
        self,
        *,
        tenant: str | None = None,
        name: JobID | None = None,
        since: datetime | None = None,
        most: int = 1_000,
    ) -> list[Entry]:
        with self._lock:
            found = [
                each
                for each in self._history
                if tenant in {None, each.key.tenant}
                and name in {None, each.name}
                and (since is None or each.at >= since)
            ]
            return found[-most:]

    def usage(
        self, since: datetime | None = None, *, tenant: str | None = None, table: str | None = None
    ) -> list[Usage]:
        entries = self.history(tenant=tenant, since=since, most=len(self._history) + 1)
        return usage_of(e for e in entries if table in {None, f"{e.name.db}.{e.name.table}"})

    def prune(self, before: datetime) -> int:
        with self._lock:
            newest = self._history[-1:]
            kept = [each for each in self._history[:-1] if each.at >= before] + newest
            pruned = len(self._history) - len(kept)
            self._history = kept
            return pruned

    def _registered(self, rows: Iterable[NewJob], *, adopt: bool) -> int:
        new = {row.key: row for row in reversed(list(rows)) if self.job(row.key) is None}
        held = {row.name: self._called(row.name) for row in new.values()}
        specs = {
            key: joined(row.name, row.spec, held[row.name], adopt=adopt) for key, row in new.items()
        }
        for key, row in new.items():
            old = self._rows.get(key)
            seq = 0 if old is None else old.seq + 1
            self._put(
                [
                    lifecycle.registered(
                        replace(row, spec=specs[key]),
                        registration=self._new_id(),
                        seq=seq,
                        now=self._clock(),
                    )
                ]
            )
        return len(new)

    def _called(self, name: JobID) -> list[Job]:
        """The rows of that name, dropped ones included."""
        return [job for job in self._rows.values() if job.name == name]

    def _keep(self, names: Iterable[str], seconds: float) -> None:
        for name in names:
            self._until[name] = (self._until.get(name, ("", 0.0))[0], self._now() + seconds)

    def _held(self, name: str | None) -> bool:
        return name in self._until and self._until[name][1] >= self._now()

    def _end(self, chosen: Callable[[Job], bool], change: Callable[..., Job]) -> tuple[JobKey, ...]:
        with self._lock:
            found = [job for job in self._live() if job.state in ACTIVE and chosen(job)]
            self._put([change(job, self._clock()) for job in found])
            return tuple(sorted(job.key for job in found))

    def _change(
        self, found: Iterable[Job], change: Callable[[Job, datetime], Job]
    ) -> tuple[JobKey, ...]:
        now = self._clock()
        changed = [change(job, now) for job in found]
        self._put(changed)
        return tuple(sorted(job.key for job in changed))

    def _named(self, tenant: str | None, name: JobID) -> list[Job]:
        named = [job for job in self._live() if job.name == name]
        return [job for job in named if tenant in {None, job.key.tenant}]

    def _is_dropped(self, job: Job) -> bool:
        held = self._rows.get(job.key)
        return (
            held is not None and held.registration == job.registration and held.drop_at is not None
        )

    def _live(self) -> list[Job]:
        return [job for job in self._rows.values() if job.drop_at is None]

    def _put(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            before = self._rows.get(job.key)
            was = None if job.happened is Event.REGISTER else before
            written = entry(was, job, at=self._clock(), who=self._who)
            if written is not None:
                self._history.append(replace(written, number=next(self._numbers)))
            self._rows[job.key] = replace(job, happened=None)


def _moves(job: Job, range_: Range) -> bool:
    settled = job.batch is None or job.batch.phase is Phase.AFTER
    stands = START < job.watermark == range_.from_
    return job.state is JobState.COMPLETED and settled and stands
