"""Every ISCP log against a small model of it, in any order of calls that hypothesis finds."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from itertools import count
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from iscp_dagster.joblog.iterations import Claim, Iteration
from iscp_dagster.joblog.results import SpecUpdateResult
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.joblog.sql.tables import METADATA
from iscp_dagster.joblog.updates import SpecUpdate
from iscp_dagster.model.batch import BatchAction, Phase
from iscp_dagster.model.errors import BatchError, FenceError
from iscp_dagster.model.jobs import JobID, JobKey
from iscp_dagster.model.specs import ConsumerInfo, IterationDetail, JobSpec
from iscp_dagster.model.states import Event
from support.jobs.log_rows import advance, complete, fail, log_in_memory, moment, over, span

TABLE = "t-1"
KEYS = [
    JobKey(tenant=tenant, table_id=TABLE, job_name=job)
    for tenant in ("acme", "zed")
    for job in ("mirror", "words")
]
keys = st.sampled_from(KEYS)
some_keys = st.lists(keys, min_size=1, max_size=3, unique=True)
RUNS = ["r1", "r2", "r3"]
runs = st.sampled_from(RUNS)
ahead = st.integers(1, 4)


def name(key: JobKey) -> JobID:
    return JobID(db="d", table="t", job=key.job_name)


def spec(key: JobKey) -> JobSpec:
    consumer = ConsumerInfo(type="mirror", table="t", db="d", job=key.job_name)
    return JobSpec(detail=IterationDetail(consumer=consumer))


@dataclass
class Row:
    """What the model knows about a live job."""

    state: str = "completed"
    at: int = -1
    run: str | None = None
    code: int = 0
    priority: int = 0
    paused: bool = False
    unsure: tuple[int, int, int] | None = None
    """A range and its layout that may have been written, or not."""
    claim: int | None = None
    """The one claim that counts."""
    written: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class Grant:
    """A claim that the log once gave for a row."""

    claim: Claim
    row: Row
    number: int

    @property
    def counts(self) -> bool:
        return self.row.claim == self.number and self.row.state == "running"


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = count(1)
        self.now = datetime(2025, 6, 18, tzinfo=timezone.utc)
        self.skew, self.leases_at = timedelta(0), 1_000_000.0
        self.log = self.open()
        self.log.ensure()
        self.rows: dict[JobKey, Row] = {}
        self.grants: list[Grant] = []
        self.places: dict[JobKey, tuple[int, int, int]] = {}
        """Registration, watermark and fence of each job, as last read."""
        self.expires: dict[str, float] = {}
        self.bookmark = self.log.read_changed_tenants(None).upto
        self.entries = 0
        """How many entries of the history were read."""

    def open(self) -> SqlLog:
        return log_in_memory(**self.options())

    def options(self) -> dict[str, Any]:
        clocks = {"clock": self.clock, "lease_clock": self.lease_clock}
        return {"new_id": lambda: next(self.numbers), **clocks}

    def clock(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now + self.skew

    def lease_clock(self) -> float:
        return self.leases_at

    @rule(seconds=st.integers(-7_200, 7_200))
    def skew_the_clock(self, seconds):
        self.skew = timedelta(seconds=seconds)

    @rule(seconds=st.integers(1, 60), live=st.sets(runs))
    def let_leases_expire(self, seconds, live):
        """Silent runs' jobs are freed and live runs' are not, whatever the clocks say."""
        self.leases_at += seconds
        self.log.renew_leases(live, 30)
        self.expires |= dict.fromkeys(live, self.leases_at + 30)
        freed = {
            key for key, row in self.active().items() if self.expires[row.run] < self.leases_at
        }
        assert self.log.expire_unleased_jobs() == tuple(sorted(freed))
        for key in freed:
            row = self.rows[key]
            row.code = 1_700 if row.state == "running" else row.code
            row.state = "completed"

    def active(self) -> dict[JobKey, Row]:
        return {key: row for key, row in self.rows.items() if row.state in {"pending", "running"}}

    @rule(chosen=st.sets(runs))
    def find_silent_runs(self, chosen):
        now = self.leases_at
        silent = {run for run in chosen if self.expires.get(run, now) < now}
        assert self.log.check_or_grant_leases(chosen, 50) == silent
        self.expires |= dict.fromkeys(chosen - self.expires.keys(), now + 50)

    @rule(run=runs, code=st.sampled_from([1_100, 10_200]))
    def refuse(self, run, code):
        queued = [k for k, row in self.rows.items() if row.state == "pending" and row.run == run]
        assert self.log.fail_queued_jobs(run, code, "oh") == tuple(sorted(queued))
        for key in queued:
            row = self.rows[key]
            row.state, row.code = "error" if code >= 10_000 else "completed", code

    @rule()
    def read_changed_tenants(self):
        history = self.log.read_history(most=10_000)
        new = {
            (entry.key.table_id, entry.key.tenant)
            for entry in history[self.entries :]
            if entry.event not in {Event.ENQUEUE, Event.START}
        }
        changed = self.log.read_changed_tenants(self.bookmark)
        assert changed.complete
        assert changed.tenants >= new
        assert self.log.read_changed_tenants(changed.upto).tenants <= changed.tenants
        self.bookmark, self.entries = changed.upto, len(history)

    @initialize(chosen=st.lists(keys, unique=True))
    def start_with(self, chosen):
        for key in chosen:
            self.register(key)

    @rule(key=keys)
    def register(self, key):
        created = self.log.register(key.tenant, name(key), TABLE, spec(key))
        assert created == (key not in self.rows)
        self.rows.setdefault(key, Row())

    @rule(key=keys)
    def unregister(self, key):
        assert self.log.unregister(key.tenant, name(key)) == (key in self.rows)
        if key in self.rows:
            self.rows.pop(key).state = "dropped"

    @rule(chosen=some_keys, run=runs, more=ahead)
    def enqueue(self, chosen, run, more):
        iteration = self.iteration(chosen, more)
        ready = {
            key: row
            for key in chosen
            if (row := self.rows.get(key))
            and row.state in {"completed", "canceled"}
            and row.at == iteration.from_.version
        }
        assert self.log.enqueue(iteration, run).keys() == set(chosen) - ready.keys()
        if ready:
            self.expires[run] = self.leases_at + self.log.leases.queued
        for row in ready.values():
            row.state, row.run = "pending", run

    @rule(chosen=some_keys, run=runs, more=ahead)
    def begin_any(self, chosen, run, more):
        self.begin(chosen, run, more)

    def begin(self, chosen, run, more):
        iteration = self.iteration(chosen, more)
        layout = next(self.numbers)
        rows = [self.rows.get(key) for key in chosen]
        start = iteration.from_.version
        if not all(self.may_begin(row, run) and row.at == start for row in rows):
            with pytest.raises(FenceError):
                self.log.claim_jobs(iteration, run, {"n": layout})
            return
        claims = self.log.claim_jobs(iteration, run, {"n": layout})
        self.expires[run] = self.leases_at + self.log.leases.run
        for claim, row in zip(claims, rows, strict=True):
            self.check_replay(claim, row, iteration)
            row.state, row.run, row.code = "running", run, 0
            self.keep(claim, row)

    @precondition(lambda self: any(self.startable(run) for run in RUNS))
    @rule(data=st.data(), more=ahead)
    def begin_ready_jobs(self, data, more):
        """Of any keys and runs, few iterations would get to their end."""
        run = data.draw(st.sampled_from([run for run in RUNS if self.startable(run)]))
        ready = self.startable(run)
        first = data.draw(st.sampled_from(ready))
        beside = [key for key in ready if self.rows[key].at == self.rows[first].at]
        chosen = data.draw(st.lists(st.sampled_from(beside), max_size=3, unique=True))
        self.begin([first, *(key for key in chosen if key != first)], run, more)

    @precondition(lambda self: any(self.startable(run) for run in RUNS))
    @rule(data=st.data(), more=ahead, ends=st.booleans())
    def end_or_lose_an_iteration(self, data, more, ends):
        before = len(self.grants)
        self.begin_ready_jobs(data, more)
        grants = self.grants[before:]
        if not ends:
            self.recover({grant.row.run for grant in grants})
            return
        for grant in grants:
            self.finish(grant)

    def finish(self, grant):
        while not grant.claim.last:
            self.go_on(grant)
            grant = self.grants[-1]
        self.end(grant)

    def startable(self, run) -> list[JobKey]:
        return [key for key in KEYS if self.may_begin(self.rows.get(key), run)]

    def iteration(self, chosen, more) -> Iteration:
        row = self.rows.get(chosen[0])
        start = -1 if row is None else row.at
        return over(*chosen, start=start, to=start + more)

    @staticmethod
    def may_begin(row: Row | None, run: str) -> bool:
        if row is None:
            return False
        if row.state == "pending":
            return row.run == run
        return row.state == "completed" or (row.state == "canceled" and row.run != run)

    @staticmethod
    def check_replay(claim: Claim, row: Row, iteration: Iteration) -> None:
        """What may have been written is written again unchanged, before anything else."""
        if row.unsure is None or row.at == -1:
            assert [step.action for step in claim.steps] == [BatchAction.INSERT]
            assert claim.range == iteration.range
            return
        start, end, layout = row.unsure
        first = claim.steps[0]
        assert first.action is BatchAction.REPLAY
        assert (first.range.from_.version, first.range.to.version) == (start, end)
        assert first.layout == {"n": layout}
        assert claim.range.to.version == max(end, iteration.to.version)

    def keep(self, claim: Claim, row: Row) -> None:
        step = claim.step
        row.unsure = (step.range.from_.version, step.range.to.version, step.layout["n"])
        row.claim = next(self.numbers)
        self.grants.append(Grant(claim=claim, row=row, number=row.claim))

    @precondition(lambda self: self.grants)
    @rule(data=st.data())
    def advance(self, data):
        self.go_on(self.any_claim(data))

    def go_on(self, grant):
        if not grant.counts or grant.claim.last:
            with pytest.raises((FenceError, BatchError)):
                advance(self.log, grant.claim, {})
            return
        self.confirm(grant)
        self.keep(advance(self.log, grant.claim, {}), grant.row)

    @precondition(lambda self: self.grants)
    @rule(data=st.data())
    def complete(self, data):
        self.end(self.any_claim(data))

    def end(self, grant):
        to = grant.claim.range.to
        if not grant.counts or not grant.claim.last:
            with pytest.raises((FenceError, BatchError)):
                complete(self.log, grant.claim, to, {})
            return
        complete(self.log, grant.claim, to, {"inserted": 1})
        self.confirm(grant)
        grant.row.state, grant.row.unsure = "completed", None

    @precondition(lambda self: self.grants)
    @rule(data=st.data(), code=st.sampled_from([1, 9_999, 10_000]))
    def fail(self, data, code):
        grant = self.any_claim(data)
        if not grant.counts:
            with pytest.raises(FenceError):
                fail(self.log, grant.claim, code, "oh")
            return
        fail(self.log, grant.claim, code, "oh")
        grant.row.state = "error" if code >= 10_000 else "completed"
        grant.row.code = code

    def any_claim(self, data) -> Grant:
        # Among all claims, few count; those are drawn more often.
        counting = [grant for grant in self.grants if grant.counts]
        return data.draw(st.sampled_from(counting or self.grants) | st.sampled_from(self.grants))

    @staticmethod
    def confirm(grant: Grant) -> None:
        step = grant.claim.step.range
        grant.row.written.append((step.from_.version, step.to.version))
        grant.row.at = step.to.version

    @rule(chosen=some_keys)
    def cancel(self, chosen):
        active = self.active().keys() & set(chosen)
        assert self.log.cancel(chosen) == tuple(sorted(active))
        for key in active:
            self.rows[key].state = "canceled"

    @rule(chosen=some_keys)
    def repair(self, chosen):
        broken = [key for key in chosen if self.state(key) == "error"]
        assert self.log.repair(chosen) == tuple(sorted(broken))
        for key in broken:
            row = self.rows[key]
            row.state, row.code, row.unsure = "completed", 0, None

    @rule(ended=st.sets(runs))
    def recover(self, ended):
        active = self.active()
        assert self.log.list_active_runs() == {row.run for row in active.values()}
        lost = sorted(key for key, row in active.items() if row.run in ended)
        assert self.log.recover_run_jobs(ended) == tuple(lost)
        for key in lost:
            self.rows[key].state = "completed"

    @rule(chosen=some_keys, off=st.sampled_from([-1, 0, 0, 0]), more=ahead)
    def flush(self, chosen, off, more):
        rows = {key: row for key in chosen if (row := self.rows.get(key)) and row.at + off >= -1}
        moves = {key: span(row.at + off, row.at + off + more) for key, row in rows.items()}
        idle = [
            row
            for row in rows.values()
            if row.state == "completed" and row.unsure is None and row.at > -1 and not off
        ]
        assert self.log.flush(moves) == len(idle)
        for row in idle:
            row.at += more

    @rule(key=keys, priority=st.integers(0, 3), interrupt=st.booleans())
    def update(self, key, priority, interrupt):
        before = self.log.find_job(key)
        done = self.log.update(
            key.tenant, name(key), SpecUpdate(priority=priority), interrupt=interrupt
        )
        if key not in self.rows:
            assert done is None
            return
        assert before is not None
        row = self.rows[key]
        ends_backoff = interrupt and before.status.attempts > 0
        changed, row.priority = ends_backoff or row.priority != priority, priority
        if row.state == "error" and row.code != 10_220:
            changed = True
            row.state, row.code, row.unsure = "completed", 0, None
        hit = interrupt and row.state in {"pending", "running"}
        assert done == SpecUpdateResult(
            interrupted_jobs=(key,) if hit else (),
            interrupted_runs=frozenset({row.run}) if hit else frozenset(),
            changed=changed or hit,
        )
        if hit:
            row.state = "canceled"

    @rule(key=keys, pause=st.booleans())
    def pause_or_resume(self, key, pause):
        act = self.log.pause if pause else self.log.resume
        row = self.rows.get(key)
        moved = row is not None and row.paused != pause
        assert act(key.tenant, name(key)) == ((key,) if moved else ())
        if moved:
            row.paused = pause

    @rule()
    def strand(self):
        moved = sorted(key for key, row in self.rows.items() if row.state != "error")
        assert self.log.mark_stranded(TABLE, 10_220, "gone") == tuple(moved)
        for key in moved:
            self.rows[key].state, self.rows[key].code = "error", 10_220

    @rule(chosen=some_keys)
    def collect_garbage(self, chosen):
        later = self.now + timedelta(days=1)
        dropped = [job for job in self.log.list_dropped(later) if job.key in chosen]
        assert all(job.key not in self.rows for job in dropped)
        assert self.log.mark_collected([*dropped, *self.log.list_jobs()]) == len(dropped)
        assert self.log.delete_dropped([*dropped, *self.log.list_jobs()]) == len(dropped)
        for job in dropped:
            self.places.pop(job.key)

    @invariant()
    def each_entry_of_the_history_begins_in_the_state_before(self):
        state: dict[int, str] = {}
        for entry in self.log.read_history(most=10_000):
            before = None if entry.from_state is None else entry.from_state.label
            assert state.get(entry.registration) == before, entry
            state[entry.registration] = entry.to_state.label
        for job in self.log.list_jobs():
            assert state[job.registration] == job.state.label

    def state(self, key: JobKey) -> str | None:
        return self.rows[key].state if key in self.rows else None

    @invariant()
    def the_log_agrees_with_the_model(self):
        jobs = self.log.list_jobs()
        assert {job.key: (job.state.label, job.watermark) for job in jobs} == {
            key: (row.state, moment(row.at)) for key, row in self.rows.items()
        }
        for job in jobs:
            row = self.rows[job.key]
            assert job.status.code == row.code
            assert job.run_id == row.run
            assert (job.priority, job.paused_at is not None) == (row.priority, row.paused)
            unsure = job.batch is not None and job.batch.phase is Phase.BEFORE
            assert unsure == (row.unsure is not None)
            if unsure:
                ends = (job.batch.range.from_.version, job.batch.range.to.version)
                assert (*ends, job.batch.layout["n"]) == row.unsure

    @invariant()
    def no_watermark_goes_back_and_every_change_moves_the_fence(self):
        for job in self.log.list_jobs(include_dropped=True):
            now = (job.registration, job.watermark.version, job.seq)
            before = self.places.get(job.key, now)
            assert now[2] >= before[2]
            assert now[2] > before[2] or now == before
            assert now[1] >= before[1] or now[0] != before[0]
            self.places[job.key] = now

    @invariant()
    def every_version_is_confirmed_once(self):
        for row in self.rows.values():
            ends = [-1, *(end for pair in row.written for end in pair), row.at]
            assert ends == sorted(ends)


class TestLogOnSqlite(LogMachine.TestCase):
    settings: ClassVar = settings(max_examples=10, stateful_step_count=30)


@pytest.mark.soak
class TestLogForLong(LogMachine.TestCase):
    settings: ClassVar = settings(max_examples=60, stateful_step_count=40)


class PostgresMachine(LogMachine):
    url: str

    def open(self) -> SqlLog:
        return SqlLog(self.url, **self.options())

    def teardown(self) -> None:
        METADATA.drop_all(self.log.engine)


@pytest.fixture
def _on_postgres(new_postgres, monkeypatch):
    monkeypatch.setattr(PostgresMachine, "url", new_postgres(), raising=False)


@pytest.mark.slow
@pytest.mark.usefixtures("_on_postgres")
class TestPostgresLog(PostgresMachine.TestCase):
    settings: ClassVar = settings(max_examples=2, stateful_step_count=20)
