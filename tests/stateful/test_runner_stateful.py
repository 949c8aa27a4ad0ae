"""The runner against a small model: it misses no change, whatever happens in whatever order."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import count
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from iscp_dagster import Mirror, SourceTable
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.joblog.iterations import Claim
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.joblog.updates import SpecUpdate
from iscp_dagster.model.errors import FenceError
from iscp_dagster.model.jobs import JobID, JobKey
from iscp_dagster.model.specs import ConsumerInfo, IterationDetail, JobSpec
from iscp_dagster.model.states import JobState
from iscp_dagster.planning.job_specs import make_job_specs
from iscp_dagster.planning.look import Dispatch
from iscp_dagster.planning.runner import Runner
from iscp_dagster.sync.bounds import IterationBounds
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.upkeep.maintenance import (
    JOB_RETENTION,
    delete_garbage,
    find_garbage,
    flush_watermarks,
)
from support.jobs.log_rows import advance, complete, fail, log_in_memory
from support.jobs.one_table import write_commit

TENANTS = ("eu", "us", "xx")
INDEXES = ("one", "two")
MINE = "mine"
"""An undeclared job, whose consumer keeps no index."""
tenants = st.sampled_from(TENANTS)
dagsters = st.sampled_from([0, 1])
names = st.sampled_from([*INDEXES, MINE])
triggers = st.sampled_from(
    [
        SpecUpdate(job_type="default", independent=False),
        SpecUpdate(independent=True),
        SpecUpdate(job_type="greedy"),
        SpecUpdate(job_type="periodic", schedule={"interval": "20s", "share": True}),
        SpecUpdate(priority=3),
    ]
)
START_AT = datetime(2026, 1, 1, tzinfo=timezone.utc)


class RunnerMachine(RuleBasedStateMachine):
    """`changes` has the tenants of each version; `covered`, the versions of each registration.

    `unregistered` are the jobs that a person unregistered, and whether their data was collected.
    """

    clickhouse = "http://127.0.0.1:9"
    fired: ClassVar[Counter[str]] = Counter()
    """How often rules had their effect."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.now, self.ids = START_AT, count(1)
        self.leases_at, self.skew = 1_000_000.0, timedelta(0)
        self.source = SourceTable(
            "m.t",
            key="id",
            tenant="tenant",
            path=str(self.folder / "t"),
            indexes=[Mirror(name=name) for name in INDEXES],
        )
        self.deployment = Deployment(
            endpoint=ClickHouseEndpoint.parse(self.clickhouse),
            log=self.open(),
            spark=lambda: pytest.fail("the runner asked for Spark"),
            lake=str(self.folder),
            clock=lambda: self.now,
            bounds=IterationBounds(versions=3),
        )
        # Another Dagster on the same log, whose clock is wrong.
        self.other = replace(self.deployment, log=self.beside(), clock=lambda: self.now + self.skew)
        self.runners = [self.runner(who) for who in (0, 1)]
        self.cursors: list[str | None] = [None, None]
        self.changes: list[frozenset[str]] = []
        self.covered: dict[int, set[int]] = defaultdict(set)
        self.queued: list[Dispatch] = []
        self.running: list[tuple[str, list[Claim]]] = []
        self.unregistered: dict[JobKey, bool] = {}

    @property
    def log_options(self):
        return {"new_id": lambda: next(self.ids), "lease_clock": lambda: self.leases_at}

    def open(self):
        return log_in_memory(clock=lambda: self.now, **self.log_options)

    def beside(self):
        """The log as the other Dagster opened it."""
        engine = self.deployment.log.engine
        return SqlLog(engine, clock=lambda: self.now + self.skew, **self.log_options)

    def runner(self, who):
        deployment, owner = (self.deployment, self.other)[who], f"dagster {who}"
        return Runner(deployment, [self.source], owner=owner, monotonic=lambda: self.leases_at)

    def teardown(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    @initialize()
    def begin(self):
        self.commit([TENANTS[0]])
        self.register(TENANTS[0], MINE)

    @rule(changed=st.lists(tenants, unique=True, max_size=2))
    def commit(self, changed):
        """Change these tenants, or none, in one commit."""
        write_commit(self.folder / "t", len(self.changes), changed, self.now.timestamp())
        self.changes.append(frozenset(changed))
        self.now += timedelta(seconds=1)

    @rule(who=dagsters)
    def tick(self, who=0):
        look = self.runners[who].look(self.cursors[who])
        assert look.problems == []
        self.cursors[who] = look.cursor
        self.queued += look.dispatches
        self.fired["stood by"] += bool(look.elsewhere)

    @rule(who=dagsters)
    def restart(self, who):
        """Run in another process, with the cursor that Dagster kept."""
        self.runners[who] = self.runner(who)

    @rule(seconds=st.integers(1, 900))
    def move_the_clock(self, seconds):
        self.now += timedelta(seconds=seconds)

    @rule(seconds=st.integers(-300, 300))
    def skew_a_clock(self, seconds):
        self.skew = timedelta(seconds=seconds)

    @rule(seconds=st.integers(1, 200), alive=st.booleans(), waits=st.booleans())
    def let_leases_expire(self, seconds, alive, waits):
        """A live run renews its lease and keeps its jobs; a silent one may wake up later."""
        log = self.deployment.log
        active = {job.key: job.run_id for job in log.list_jobs() if job.active}
        for _ in range(0, seconds, 20):
            self.leases_at += 20
            runs = {run for run, _ in self.running if alive}
            dispatches = {dispatch.name for dispatch in self.queued if waits}
            log.renew_leases(runs, log.leases.run)
            log.renew_leases(dispatches, log.leases.queued)
            freed = log.expire_unleased_jobs()
            assert not {active.get(key) for key in freed} & (runs | dispatches)
            self.fired["freed"] += len(freed)

    @precondition(lambda self: self.queued)
    @rule(data=st.data())
    def start(self, data):
        dispatch = data.draw(st.sampled_from(self.queued))
        self.queued.remove(dispatch)
        run = f"run-{next(self.ids)}"
        try:
            claims = self.deployment.log.claim_jobs(
                dispatch.iteration, run, {}, queued_as=dispatch.name
            )
        except FenceError:
            # The run ends at once, as the next look finds.
            self.deployment.log.recover_run_jobs({dispatch.name})
            return
        self.running.append((run, list(claims)))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), how=st.sampled_from(["succeed", "later", "repair", "crash"]))
    def end(self, data, how):
        chosen = data.draw(st.integers(0, len(self.running) - 1))
        run, claims = self.running.pop(chosen)
        for claim in claims:
            try:
                self.end_claim(claim, how)
            except FenceError:
                continue
        if how == "crash":
            self.deployment.log.recover_run_jobs({run})

    def end_claim(self, claim: Claim, how: str) -> None:
        log = self.deployment.log
        if how == "later":
            fail(log, claim, 1_100, "away")
        elif how == "repair":
            fail(log, claim, 10_000, "broken")
        while how == "succeed":
            range_ = claim.step.range
            if claim.last:
                complete(log, claim, claim.range.to, {})
            else:
                moved = advance(log, claim, {})
            start = -1 if range_.initial else range_.from_.version
            first = 0 if range_.initial else start + 1
            self.covered[claim.registration] |= set(range(first, range_.to.version + 1))
            if claim.last:
                return
            claim = moved

    @rule()
    def lose_the_queue(self):
        """Dagster never starts the queued runs."""
        self.deployment.log.recover_run_jobs({dispatch.name for dispatch in self.queued})
        self.queued.clear()

    @rule()
    def flush(self):
        assert flush_watermarks(self.deployment, [self.source]).problems == []

    @precondition(lambda self: self.unregistered)
    @rule(later=st.booleans())
    def collect_garbage(self, later):
        """A job dropped a day ago loses its data once, and its row if nothing declares it."""
        self.now += JOB_RETENTION + timedelta(seconds=1) if later else timedelta(0)
        live, log = self.deployment.log.list_jobs(), self.deployment.log
        due = {job.key for job in log.list_dropped(self.now - JOB_RETENTION)}
        garbage = find_garbage(self.deployment, [self.source])
        keys = {item.job.key for item in garbage}
        assert keys == {key for key in due if not self.unregistered[key]}
        mine = [key for key in due if key.job_name == MINE]
        assert delete_garbage(self.deployment, [self.source], garbage) == len(mine)
        self.unregistered |= dict.fromkeys(keys, True)
        for key in mine:
            del self.unregistered[key]
        assert find_garbage(self.deployment, [self.source]) == []
        assert log.list_jobs() == live
        self.fired.update(collected=len(garbage) - len(mine), forgotten=len(mine))

    @precondition(lambda self: self.deployment.log.list_jobs())
    @rule(data=st.data(), collected=st.booleans())
    def unregister_one(self, data, collected):
        chosen = data.draw(st.sampled_from([job.key for job in self.deployment.log.list_jobs()]))
        self.unregister(chosen.tenant, chosen.job_name)
        if collected:
            self.collect_garbage(later=True)

    def unregister(self, tenant, name):
        live = self.deployment.log.list_jobs(tenant=tenant, name=job_id(name))
        assert self.deployment.log.unregister(tenant, job_id(name)) == bool(live)
        self.unregistered |= {job.key: False for job in live}
        self.fired["unregistered"] += len(live)

    @precondition(lambda self: self.unregistered)
    @rule(data=st.data())
    def register_again(self, data):
        chosen = data.draw(st.sampled_from(sorted(self.unregistered)))
        self.register(chosen.tenant, chosen.job_name)

    @rule(tenant=tenants, name=names)
    def register(self, tenant, name):
        consumer = ConsumerInfo(type="my.own:Consumer", db="m", table="t", job=name)
        mine = JobSpec(detail=IterationDetail(consumer=consumer))
        spec = make_job_specs(self.source, self.source.indexes).get(job_id(name), mine)
        live = self.deployment.log.list_jobs(tenant=tenant, name=job_id(name))
        table_id = self.deployment.make_delta_log(self.source).get_table_id()
        assert self.deployment.log.register(tenant, job_id(name), table_id, spec) == (not live)
        key = JobKey(tenant=tenant, table_id=table_id, job_name=name)
        self.fired["registered again"] += self.unregistered.pop(key, None) is not None

    @rule(data=st.data())
    def cancel_some(self, data):
        self.tick()
        active = sorted({job.key.tenant for job in self.deployment.log.list_jobs() if job.active})
        self.cancel(data.draw(st.sampled_from(active or TENANTS)))

    def cancel(self, tenant):
        """Take the jobs from the tenant's queued and running iterations; they are planned again."""
        jobs = self.deployment.log.list_jobs(tenant=tenant)
        active = [job.key for job in jobs if job.active]
        assert self.deployment.log.cancel(job.key for job in jobs) == tuple(sorted(active))
        self.fired["canceled"] += len(active)

    @rule(tenant=tenants, name=names, change=triggers, interrupt=st.booleans())
    def update(self, tenant, name, change, interrupt):
        self.deployment.log.update(tenant, job_id(name), change, interrupt=interrupt)

    @rule(tenant=tenants, name=names, pause=st.booleans())
    def pause_or_resume(self, tenant, name, pause):
        act = self.deployment.log.pause if pause else self.deployment.log.resume
        act(tenant, job_id(name))

    @rule(tenant=tenants, name=names)
    def unregister_and_register_again(self, tenant, name):
        for job in self.deployment.log.list_jobs(tenant=tenant, name=job_id(name)):
            self.deployment.log.unregister(tenant, job_id(name))
            self.deployment.log.register(tenant, job.name, job.key.table_id, job.spec)

    @rule()
    def repair(self):
        failed = self.deployment.log.list_jobs(state=JobState.ERROR)
        self.deployment.log.repair([job.key for job in failed])

    @invariant()
    def no_watermark_passes_over_a_change(self):
        for job in self.deployment.log.list_jobs():
            self.check_changes(job, job.watermark.version + 1)

    def check_changes(self, job, upto):
        """The job got each change of its tenant before that version."""
        tenant = job.key.tenant
        changes = {version for version in range(upto) if tenant in self.changes[version]}
        assert changes <= self.covered[job.registration], (job.key, job.state, job.watermark)

    @invariant()
    def what_a_person_unregistered_stays_so(self):
        rows = {job.key: job for job in self.deployment.log.list_jobs(include_dropped=True)}
        assert {key for key, job in rows.items() if job.drop_at} == set(self.unregistered)
        for key, collected in self.unregistered.items():
            assert (rows[key].collected_at is not None) == collected

    @invariant()
    def no_job_is_in_two_iterations(self):
        jobs = self.deployment.log.list_jobs()
        queued_as = {job.key: job.run_id for job in jobs if job.state is JobState.PENDING}
        keys = [
            key
            for dispatch in self.queued
            for key in dispatch.iteration.jobs
            if queued_as.get(key) == dispatch.name
        ]
        assert len(keys) == len(set(keys))

    @rule()
    def calm_down(self):
        """Without further trouble every job gets every change."""
        for job in self.deployment.log.list_jobs():
            self.deployment.log.resume(job.key.tenant, job.name)
        self.repair()
        self.lose_the_queue()
        for run, _ in self.running:
            self.deployment.log.recover_run_jobs({run})
        self.running.clear()
        for _ in range(60):
            self.now += timedelta(minutes=11)
            self.leases_at += 10
            self.tick(0)
            self.tick(1)
            if not self.queued:
                break
            while self.queued:
                dispatch = self.queued.pop()
                claims = self.deployment.log.claim_jobs(
                    dispatch.iteration, f"run-{next(self.ids)}", {}, queued_as=dispatch.name
                )
                for claim in claims:
                    self.end_claim(claim, "succeed")
        assert not self.queued
        jobs = self.deployment.log.list_jobs()
        for job in jobs:
            self.check_changes(job, len(self.changes))
        tenants_seen = {tenant for changed in self.changes for tenant in changed}
        away = {(key.tenant, key.job_name) for key in self.unregistered}
        live = {(job.key.tenant, job.key.job_name) for job in jobs}
        assert {(t, n) for t in tenants_seen for n in INDEXES} - away <= live


def job_id(name: str) -> JobID:
    return JobID(db="m", table="t", job=name)


@pytest.fixture(scope="module")
def _real_clickhouse(clickhouse_url):
    """Drop garbage from a real ClickHouse."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunnerMachine, "clickhouse", clickhouse_url)
        yield


@pytest.fixture(scope="class")
def _rules_fire(_real_clickhouse):
    RunnerMachine.fired.clear()
    yield
    # Random runs cause these some fifty times or more; rarer ones have their own test below.
    assert all(RunnerMachine.fired[name] for name in ("unregistered", "stood by"))


@pytest.fixture
def world():
    world = RunnerMachine()
    world.fired.clear()
    world.begin()
    world.tick()
    yield world
    world.teardown()


@pytest.mark.usefixtures("_real_clickhouse")
def test_a_canceled_job_is_planned_again_and_an_unregistered_one_is_collected_once(world):
    world.cancel("eu")
    assert world.fired["canceled"] == 3
    world.unregister("eu", MINE)
    world.unregister("eu", "one")
    world.collect_garbage(later=False)
    assert (world.fired["collected"], world.fired["forgotten"]) == (0, 0)
    for _ in range(2):
        world.collect_garbage(later=True)
        assert (world.fired["collected"], world.fired["forgotten"]) == (1, 1)
    world.calm_down()
    assert [job.key.job_name for job in world.deployment.log.list_jobs()] == ["two"]
    world.register("eu", "one")
    assert world.fired["registered again"] == 1
    world.calm_down()
    assert [job.key.job_name for job in world.deployment.log.list_jobs()] == ["one", "two"]


def test_jobs_without_a_lease_are_freed_and_planned_again(world):
    world.let_leases_expire(200, alive=True, waits=True)
    assert world.fired["freed"] == 0
    world.let_leases_expire(200, alive=True, waits=False)
    assert world.fired["freed"] == 3
    world.calm_down()


@pytest.mark.usefixtures("_real_clickhouse")
class TestRunner(RunnerMachine.TestCase):
    settings: ClassVar = settings(max_examples=10, stateful_step_count=25)


@pytest.mark.soak
@pytest.mark.usefixtures("_rules_fire")
class TestRunnerForLong(RunnerMachine.TestCase):
    settings: ClassVar = settings(max_examples=60, stateful_step_count=30)
