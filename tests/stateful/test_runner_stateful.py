"""The runner beside a small model: whatever happens in whatever order, no change is passed over."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections import defaultdict
from datetime import datetime, timedelta, timezone
from itertools import count
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from iscp_dagster import Mirror, SourceTable
from iscp_dagster.clickhouse.endpoint import Endpoint
from iscp_dagster.core.bounds import Bounds
from iscp_dagster.core.errors import FenceError
from iscp_dagster.core.iterations import Claim
from iscp_dagster.core.jobs import JobID
from iscp_dagster.core.states import JobState
from iscp_dagster.core.updates import SpecUpdate
from iscp_dagster.engine.context import Engine
from iscp_dagster.engine.look import Dispatch
from iscp_dagster.engine.maintenance import collect, flush_watermarks, garbage
from iscp_dagster.engine.runner import Runner
from iscp_dagster.log.memory import MemoryLog
from iscp_dagster.log.sql import SqlLog

TENANTS = ("eu", "us", "xx")
INDEXES = ("one", "two")
tenants = st.sampled_from(TENANTS)
names = st.sampled_from(INDEXES)
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
    """`changes` is what each version changed; `covered` what each registration was given of it."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.now, self.ids = START_AT, count(1)
        self.source = SourceTable(
            "m.t",
            key="id",
            tenant="tenant",
            path=str(self.folder / "t"),
            indexes=[Mirror(name=name) for name in INDEXES],
        )
        self.engine = Engine(
            endpoint=Endpoint.parse("http://127.0.0.1:9"),
            log=self.open(),
            spark=lambda: pytest.fail("the runner asked for Spark"),
            lake=str(self.folder),
            clock=lambda: self.now,
            bounds=Bounds(versions=3),
        )
        self.engine.log.ensure()
        self.runner, self.cursor = Runner(self.engine, [self.source]), None
        self.changes: list[frozenset[str]] = []
        self.covered: dict[int, set[int]] = defaultdict(set)
        self.queued: list[Dispatch] = []
        self.running: list[tuple[str, list[Claim]]] = []

    def open(self):
        return MemoryLog(clock=lambda: self.now, new_id=lambda: next(self.ids))

    def teardown(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    @initialize()
    def begin(self):
        self.commit([TENANTS[0]])

    @rule(changed=st.lists(tenants, unique=True, max_size=2))
    def commit(self, changed):
        """One commit that changes these tenants, or nobody."""
        version = len(self.changes)
        millis = int(self.now.timestamp() * 1000)
        actions: list[dict] = [{"commitInfo": {"timestamp": millis, "operation": "WRITE"}}]
        if version == 0:
            actions += [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 4}}, METADATA]
        actions += [add(tenant, version, millis) for tenant in changed]
        log = self.folder / "t" / "_delta_log"
        log.mkdir(parents=True, exist_ok=True)
        lines = "\n".join(map(json.dumps, actions))
        file = log / f"{version:020d}.json"
        file.write_text(lines)
        # A commit without a time of its own has its file's.
        os.utime(file, (self.now.timestamp(), self.now.timestamp()))
        self.changes.append(frozenset(changed))
        self.now += timedelta(seconds=1)

    @rule()
    def tick(self):
        look = self.runner.look(self.cursor)
        assert look.problems == []
        self.cursor = look.cursor
        self.queued += look.dispatches

    @rule()
    def restart(self):
        """Another process, with the cursor that Dagster kept."""
        self.runner = Runner(self.engine, [self.source])

    @rule(seconds=st.integers(1, 900))
    def time_passes(self, seconds):
        self.now += timedelta(seconds=seconds)

    @precondition(lambda self: self.queued)
    @rule(data=st.data())
    def start(self, data):
        dispatch = data.draw(st.sampled_from(self.queued))
        self.queued.remove(dispatch)
        run = f"run-{next(self.ids)}"
        try:
            claims = self.engine.log.begin(dispatch.iteration, run, {}, queued_as=dispatch.name)
        except FenceError:
            # The run ends at once, and the next look finds it gone.
            self.engine.log.recover({dispatch.name})
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
            self.engine.log.recover({run})

    def outcome(self, claim: Claim, how: str) -> None:
        log = self.engine.log
        if how == "later":
            log.fail(claim, 1_100, "away")
        elif how == "repair":
            log.fail(claim, 10_000, "broken")
        while how == "succeed":
            range_ = claim.step.range
            if claim.last:
                log.complete(claim, claim.range.to, {})
            else:
                moved = log.advance(claim, {})
            start = -1 if range_.initial else range_.from_.version
            first = 0 if range_.initial else start + 1
            self.covered[claim.job_id] |= set(range(first, range_.to.version + 1))
            if claim.last:
                return
            claim = moved

    @rule()
    def lose_what_was_queued(self):
        """Dagster never started those runs."""
        self.engine.log.recover({dispatch.name for dispatch in self.queued})
        self.queued.clear()

    @rule()
    def flush(self):
        assert flush_watermarks(self.engine, [self.source]).problems == []

    @rule()
    def collect_garbage(self):
        found = [each for each in garbage(self.engine, [self.source]) if each.drops == "nothing"]
        collect(self.engine, [self.source], found)

    @rule(tenant=tenants, name=names, change=triggers, interrupt=st.booleans())
    def update(self, tenant, name, change, interrupt):
        self.engine.log.update(tenant, job(name), change, interrupt=interrupt)

    @rule(tenant=tenants, name=names, pause=st.booleans())
    def pause_or_resume(self, tenant, name, pause):
        act = self.engine.log.pause if pause else self.engine.log.resume
        act(tenant, job(name))

    @rule(tenant=tenants, name=names)
    def unregister_and_register_again(self, tenant, name):
        for held in self.engine.log.jobs(account=tenant, name=job(name)):
            self.engine.log.unregister(tenant, job(name))
            self.engine.log.register(tenant, held.name, held.key.table_id, held.spec)

    @rule()
    def repair(self):
        self.engine.log.repair([each.key for each in self.engine.log.jobs(state=JobState.ERROR)])

    @invariant()
    def no_watermark_passes_over_a_change(self):
        for each in self.engine.log.jobs():
            upto = each.watermark.version + 1
            wanted = {v for v in range(upto) if each.key.account in self.changes[v]}
            assert wanted <= self.covered[each.job_id], (each.key, each.watermark)

    @invariant()
    def no_job_is_in_two_iterations(self):
        held = [
            key
            for dispatch in self.queued
            for key in dispatch.iteration.jobs
            if any(
                each.key == key and each.run_id == dispatch.name and each.state is JobState.PENDING
                for each in self.engine.log.jobs(account=key.account)
            )
        ]
        assert len(held) == len(set(held))

    @rule()
    def everything_calms_down_in_step(self):
        """Without further trouble every job gets all there is."""
        for each in self.engine.log.jobs():
            self.engine.log.resume(each.key.account, each.name)
        self.repair()
        self.lose_what_was_queued()
        for run, _ in self.running:
            self.engine.log.recover({run})
        self.running.clear()
        for _ in range(60):
            self.now += timedelta(minutes=11)
            self.tick()
            if not self.queued:
                break
            while self.queued:
                dispatch = self.queued.pop()
                claims = self.engine.log.begin(
                    dispatch.iteration, f"run-{next(self.ids)}", {}, queued_as=dispatch.name
                )
                for claim in claims:
                    self.outcome(claim, "succeed")
        assert not self.queued
        for each in self.engine.log.jobs():
            wanted = {v for v, changed in enumerate(self.changes) if each.key.account in changed}
            assert wanted <= self.covered[each.job_id], (each.key, each.state, each.watermark)
        seen = {tenant for changed in self.changes for tenant in changed}
        assert {each.key.account for each in self.engine.log.jobs()} == seen


def job(name: str) -> JobID:
    return JobID(db="m", table="t", job=name)


SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": name, "type": type_, "nullable": True, "metadata": {}}
        for name, type_ in (("tenant", "string"), ("id", "long"))
    ],
}
METADATA = {
    "metaData": {
        "id": "11111111-0000-4000-8000-000000000000",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(SCHEMA),
        "partitionColumns": ["tenant"],
        "configuration": {"delta.enableChangeDataFeed": "true"},
        "createdTime": 0,
    }
}


def add(tenant: str, version: int, millis: int) -> dict:
    return {
        "add": {
            "path": f"tenant={tenant}/part-{version}.parquet",
            "partitionValues": {"tenant": tenant},
            "size": 100,
            "modificationTime": millis,
            "dataChange": True,
        }
    }


class SqlRunnerMachine(RunnerMachine):
    def open(self):
        url = f"sqlite:///{self.folder / 'log.sqlite'}"
        return SqlLog(url, clock=lambda: self.now, new_id=lambda: next(self.ids))


class TestRunnerInMemory(RunnerMachine.TestCase):
    settings: ClassVar = settings(
        max_examples=60,
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


@pytest.mark.slow
class TestRunnerOnSql(SqlRunnerMachine.TestCase):
    settings: ClassVar = settings(
        max_examples=15,
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
