"""The runner against a small model: whatever happens in whatever order, it misses no change."""

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
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from iscp_dagster import Mirror, SourceTable
from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.joblog.iterations import Claim
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.joblog.updates import SpecUpdate
from iscp_dagster.model.errors import FenceError
from iscp_dagster.model.jobs import JobID, JobKey
from iscp_dagster.model.specs import ConsumerInfo, IterationDetail, JobSpec
from iscp_dagster.model.states import JobState
from iscp_dagster.planning.declared import make_job_specs
from iscp_dagster.planning.look import Dispatch
from iscp_dagster.planning.runner import Runner
from iscp_dagster.sync.bounds import IterationBounds
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.upkeep.maintenance import JOB_RETENTION, collect, find_garbage, flush_watermarks
from support.jobs.log_rows import advance, complete, fail, log_in_memory
from support.jobs.one_table import write_commit

TENANTS = ("eu", "us", "xx")
INDEXES = ("one", "two")
MINE = "mine"
"""A job that nothing declares, and whose consumer keeps no index."""
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
    """`changes` is what each version changed; `covered` is what each registration got of that.

    `gone` are the jobs that a person unregistered, and whether their data was collected.
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
            endpoint=Endpoint.parse(self.clickhouse),
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
        self.gone: dict[JobKey, bool] = {}

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
        deployment = (self.deployment, self.other)[who]
        return Runner(
            deployment, [self.source], owner=f"dagster {who}", monotonic=lambda: self.leases_at
        )

    def teardown(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    @initialize()
    def begin(self):
        self.commit([TENANTS[0]])
        self.register(TENANTS[0], MINE)

    @rule(changed=st.lists(tenants, unique=True, max_size=2))
    def commit(self, changed):
        """One commit that changes these tenants, or nobody."""
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
        """Another process, with the cursor that Dagster kept."""
        self.runners[who] = self.runner(who)

    @rule(seconds=st.integers(1, 900))
    def time_passes(self, seconds):
        self.now += timedelta(seconds=seconds)

    @rule(seconds=st.integers(-300, 300))
    def a_clock_goes_wrong(self, seconds):
        self.skew = timedelta(seconds=seconds)

    @rule(seconds=st.integers(1, 200), alive=st.booleans(), waits=st.booleans())
    def leases_run_out(self, seconds, alive, waits):
        """A live run renews its lease and keeps its jobs; a silent one may wake up later."""
        log = self.deployment.log
        active = {each.key: each.run_id for each in log.list_jobs() if each.active}
        for _ in range(0, seconds, 20):
            self.leases_at += 20
            log.renew_leases([run for run, _ in self.running] if alive else [], log.leases.run)
            log.renew_leases(
                [each.name for each in self.queued] if waits else [], log.leases.queued
            )
            freed = log.reclaim()
            runs, names = {run for run, _ in self.running}, {each.name for each in self.queued}
            kept = (runs if alive else set()) | (names if waits else set())
            assert not {active.get(key) for key in freed} & kept
            self.fired["freed"] += len(freed)

    @precondition(lambda self: self.queued)
    @rule(data=st.data())
    def start(self, data):
        dispatch = data.draw(st.sampled_from(self.queued))
        self.queued.remove(dispatch)
        run = f"run-{next(self.ids)}"
        try:
            claims = self.deployment.log.begin(dispatch.iteration, run, {}, queued_as=dispatch.name)
        except FenceError:
            # The run ends at once, and the next look finds it gone.
            self.deployment.log.recover({dispatch.name})
            return
        self.running.append((run, list(claims)))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), how=st.sampled_from(["succeed", "later", "repair", "crash"]))
    def end(self, data, how):
        chosen = data.draw(st.integers(0, len(self.running) - 1))
        run, claims = self.running.pop(chosen)
        for claim in claims:
            try:
                self.outcome(claim, how)
            except FenceError:
                continue
        if how == "crash":
            self.deployment.log.recover({run})

    def outcome(self, claim: Claim, how: str) -> None:
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
    def lose_what_was_queued(self):
        """Dagster never started those runs."""
        self.deployment.log.recover({dispatch.name for dispatch in self.queued})
        self.queued.clear()

    @rule()
    def flush(self):
        assert flush_watermarks(self.deployment, [self.source]).problems == []

    @precondition(lambda self: self.gone)
    @rule(later=st.booleans())
    def collect_garbage(self, later):
        """A job dropped a day ago loses its data once; its row goes only if nothing declares it."""
        self.now += JOB_RETENTION + timedelta(seconds=1) if later else timedelta(0)
        live, log = self.deployment.log.list_jobs(), self.deployment.log
        due = {each.key for each in log.list_dropped(self.now - JOB_RETENTION)}
        found = find_garbage(self.deployment, [self.source])
        assert {each.job.key for each in found} == {key for key in due if not self.gone[key]}
        mine = [key for key in due if key.job_name == MINE]
        assert collect(self.deployment, [self.source], found) == len(mine)
        self.gone |= {each.job.key: True for each in found}
        for key in mine:
            del self.gone[key]
        assert find_garbage(self.deployment, [self.source]) == []
        assert log.list_jobs() == live
        self.fired.update(collected=len(found) - len(mine), forgotten=len(mine))

    @precondition(lambda self: self.deployment.log.list_jobs())
    @rule(data=st.data(), collected=st.booleans())
    def unregister_one(self, data, collected):
        chosen = data.draw(st.sampled_from([each.key for each in self.deployment.log.list_jobs()]))
        self.unregister(chosen.tenant, chosen.job_name)
        if collected:
            self.collect_garbage(later=True)

    def unregister(self, tenant, name):
        live = self.deployment.log.list_jobs(tenant=tenant, name=job(name))
        assert self.deployment.log.unregister(tenant, job(name)) == bool(live)
        self.gone |= {each.key: False for each in live}
        self.fired["unregistered"] += len(live)

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def register_again(self, data):
        chosen = data.draw(st.sampled_from(sorted(self.gone)))
        self.register(chosen.tenant, chosen.job_name)

    @rule(tenant=tenants, name=names)
    def register(self, tenant, name):
        consumer = ConsumerInfo(type="my.own:Consumer", db="m", table="t", job=name)
        mine = JobSpec(detail=IterationDetail(consumer=consumer))
        spec = make_job_specs(self.source, self.source.indexes).get(job(name), mine)
        live = self.deployment.log.list_jobs(tenant=tenant, name=job(name))
        table_id = self.deployment.make_delta_log(self.source).get_table_id()
        assert self.deployment.log.register(tenant, job(name), table_id, spec) == (not live)
        key = JobKey(tenant=tenant, table_id=table_id, job_name=name)
        self.fired["registered again"] += self.gone.pop(key, None) is not None

    @rule(data=st.data())
    def cancel_some(self, data):
        self.tick()
        active = sorted(
            {each.key.tenant for each in self.deployment.log.list_jobs() if each.active}
        )
        self.cancel(data.draw(st.sampled_from(active or TENANTS)))

    def cancel(self, tenant):
        """The tenant's queued and running iterations lose their jobs, which are planned again."""
        jobs = self.deployment.log.list_jobs(tenant=tenant)
        active = [each.key for each in jobs if each.active]
        assert self.deployment.log.cancel(each.key for each in jobs) == tuple(sorted(active))
        self.fired["canceled"] += len(active)

    @rule(tenant=tenants, name=names, change=triggers, interrupt=st.booleans())
    def update(self, tenant, name, change, interrupt):
        self.deployment.log.update(tenant, job(name), change, interrupt=interrupt)

    @rule(tenant=tenants, name=names, pause=st.booleans())
    def pause_or_resume(self, tenant, name, pause):
        act = self.deployment.log.pause if pause else self.deployment.log.resume
        act(tenant, job(name))

    @rule(tenant=tenants, name=names)
    def unregister_and_register_again(self, tenant, name):
        for held in self.deployment.log.list_jobs(tenant=tenant, name=job(name)):
            self.deployment.log.unregister(tenant, job(name))
            self.deployment.log.register(tenant, held.name, held.key.table_id, held.spec)

    @rule()
    def repair(self):
        self.deployment.log.repair(
            [each.key for each in self.deployment.log.list_jobs(state=JobState.ERROR)]
        )

    @invariant()
    def no_watermark_passes_over_a_change(self):
        for each in self.deployment.log.list_jobs():
            upto = each.watermark.version + 1
            wanted = {v for v in range(upto) if each.key.tenant in self.changes[v]}
            assert wanted <= self.covered[each.registration], (each.key, each.watermark)

    @invariant()
    def what_a_person_unregistered_stays_so(self):
        rows = {each.key: each for each in self.deployment.log.list_jobs(include_dropped=True)}
        assert {key for key, each in rows.items() if each.drop_at} == set(self.gone)
        for key, collected in self.gone.items():
            assert (rows[key].collected_at is not None) == collected

    @invariant()
    def no_job_is_in_two_iterations(self):
        held = [
            key
            for dispatch in self.queued
            for key in dispatch.iteration.jobs
            if any(
                each.key == key and each.run_id == dispatch.name and each.state is JobState.PENDING
                for each in self.deployment.log.list_jobs(tenant=key.tenant)
            )
        ]
        assert len(held) == len(set(held))

    @rule()
    def everything_calms_down_in_step(self):
        """Without further trouble every job gets every change."""
        for each in self.deployment.log.list_jobs():
            self.deployment.log.resume(each.key.tenant, each.name)
        self.repair()
        self.lose_what_was_queued()
        for run, _ in self.running:
            self.deployment.log.recover({run})
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
                claims = self.deployment.log.begin(
                    dispatch.iteration, f"run-{next(self.ids)}", {}, queued_as=dispatch.name
                )
                for claim in claims:
                    self.outcome(claim, "succeed")
        assert not self.queued
        for each in self.deployment.log.list_jobs():
            wanted = {v for v, changed in enumerate(self.changes) if each.key.tenant in changed}
            assert wanted <= self.covered[each.registration], (each.key, each.state, each.watermark)
        seen = {tenant for changed in self.changes for tenant in changed}
        gone = {(key.tenant, key.job_name) for key in self.gone}
        live = {(each.key.tenant, each.key.job_name) for each in self.deployment.log.list_jobs()}
        assert {(t, n) for t in seen for n in INDEXES} - gone <= live


def job(name: str) -> JobID:
    return JobID(db="m", table="t", job=name)


@pytest.fixture(scope="module")
def real(clickhouse_url):
    """Garbage is dropped from a real ClickHouse."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunnerMachine, "clickhouse", clickhouse_url)
        yield


@pytest.fixture(scope="class")
def _rules_fire(real):
    RunnerMachine.fired.clear()
    yield
    # Random runs cause these some fifty times or more; rarer ones have their own test below.
    assert all(RunnerMachine.fired[name] for name in ("unregistered", "stood by"))


def test_what_is_canceled_goes_on_and_what_is_unregistered_is_collected_once(real):
    world = RunnerMachine()
    try:
        world.fired.clear()
        world.begin()
        world.tick()
        world.cancel("eu")
        assert world.fired["canceled"] == 3
        world.unregister("eu", MINE)
        world.unregister("eu", "one")
        world.collect_garbage(later=False)
        assert (world.fired["collected"], world.fired["forgotten"]) == (0, 0)
        for _ in range(2):
            world.collect_garbage(later=True)
            assert (world.fired["collected"], world.fired["forgotten"]) == (1, 1)
        world.everything_calms_down_in_step()
        assert [each.key.job_name for each in world.deployment.log.list_jobs()] == ["two"]
        world.register("eu", "one")
        assert world.fired["registered again"] == 1
        world.everything_calms_down_in_step()
        assert [each.key.job_name for each in world.deployment.log.list_jobs()] == ["one", "two"]
    finally:
        world.teardown()


def test_what_is_kept_stays_and_what_is_not_is_freed_and_goes_on():
    world = RunnerMachine()
    try:
        world.fired.clear()
        world.begin()
        world.tick()
        world.leases_run_out(200, alive=True, waits=True)
        assert world.fired["freed"] == 0
        world.leases_run_out(200, alive=True, waits=False)
        assert world.fired["freed"] == 3
        world.everything_calms_down_in_step()
    finally:
        world.teardown()


@pytest.mark.usefixtures("_rules_fire")
class TestRunner(RunnerMachine.TestCase):
    settings: ClassVar = settings(
        max_examples=60,
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
