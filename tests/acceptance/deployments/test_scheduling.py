"""The whole stack with every trigger at once, a busy tenant, a failing consumer, and few slots."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from durable_invocations import Context, Service, service_app
from iscp_dagster.demo.dagster_api import LOCATION, REPOSITORY
from iscp_dagster.location.names import (
    RUNNER,
    SERVICES_TAG,
    TABLE_TAG,
    TENANT_TAG,
    get_clickhouse_pool,
)
from iscp_dagster.model.jobs import Job, JobID
from iscp_dagster.model.moment import START
from iscp_dagster.model.specs import JobSpec
from iscp_dagster.model.states import Event, JobState
from iscp_dagster.planning.job_specs import make_new_jobs
from iscp_dagster.upkeep.position import read_positions
from runtime_support.endpoints.asgi_servers import uvicorn_of
from support.errors import assert_names
from support.jobs.deployment import A_TENANTS_SLOTS, SLOTS, Deployed
from support.lake.delta_tables import Table, rows
from support.paths import ROOT
from support.services.stack import PARTS, assert_nothing_left, assert_runs, wait_for

pytestmark = pytest.mark.timeout(900)

SENSOR = """
query($selector: SensorSelector!) {
  sensorOrError(sensorSelector: $selector) {
    ... on Sensor { id sensorState { ticks(limit: 1) { status } } }
  }
}
"""
STOP = "mutation($id: String!) { stopSensor(id: $id) { __typename } }"
START_AGAIN = """
mutation($selector: SensorSelector!) { startSensor(sensorSelector: $selector) { __typename } }
"""
BACKFILL = """
mutation($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message }
  }
}
"""
BACKFILLED = """
query($id: String!) {
  partitionBackfillOrError(backfillId: $id) {
    ... on PartitionBackfill { status numPartitions runs(limit: 100) { id status } }
  }
}
"""
SET_LIMIT = """
mutation($key: String!, $limit: Int!) {
  setConcurrencyLimit(concurrencyKey: $key, limit: $limit)
}
"""
GREEDY = {"job_type": "greedy"}
FIRST = {"priority": 9, "consumer": {"type": "mirror"}}
UNDER_WAY = {"REQUESTED", "COMPLETING"}
SECONDS = 240.0
BUSY = 3
COMMITTED = ("busy", "calm", "noisy", "one", "two", "pool")
"""The tenants whose rows 1 to 3 stand in the table before the tests."""


@dataclass(kw_only=True)
class Scheduled(Deployed):
    """The stack over `others` and `table`, whose consumers wait for a file."""

    @property
    def table(self) -> Table:
        return self.tables[0]

    @property
    def others(self) -> Table:
        return self.tables[1]

    @property
    def slow(self) -> Table:
        return self.tables[2]

    def gates(self, tenant: str, *names: str) -> list[Path]:
        """Register jobs whose consumers each wait for a file; return the files."""
        files = [self.project / f"{tenant} {name} is open" for name in names]
        consumers = [{"type": "mine:Gate", "options": {"file": str(file)}} for file in files]
        self.register(
            {
                (name, tenant): {"trigger": GREEDY, "detail": {"consumer": consumer}}
                for name, consumer in zip(names, consumers, strict=True)
            }
        )
        return files

    @contextmanager
    def gated(self, tenant: str, *names: str) -> Iterator[list[Path]]:
        """As `gates`; at the end open them and, once nothing failed, unregister the jobs."""
        files = self.gates(tenant, *names)
        try:
            yield files
        finally:
            for file in files:
                file.touch()
        self.await_in_step(tenant)
        self.unregister(tenant, *names)

    def register(self, specs: Mapping[tuple[str, str], Mapping[str, Any]]) -> None:
        """Register the jobs of these names and tenants."""
        table_id = self.table.deployment.make_delta_log(self.table.source).get_table_id()
        for (name, tenant), spec in specs.items():
            detail = spec["detail"]
            consumer = {"db": "sched", "table": "rows", "job": name} | detail["consumer"]
            whole = JobSpec.from_json({**spec, "detail": {**detail, "consumer": consumer}})
            named = {JobID(db="sched", table="rows", job=name): whole}
            self.table.deployment.log.register_many(make_new_jobs(table_id, [tenant], named))

    def unregister(self, tenant: str, *names: str) -> None:
        for name in names:
            named = JobID(db="sched", table="rows", job=name)
            assert self.table.deployment.log.unregister(tenant, named)

    def job(self, name: str, tenant: str, table: str = "rows") -> Job | None:
        named = JobID(db="sched", table=table, job=name)
        return next(iter(self.table.deployment.log.list_jobs(tenant=tenant, name=named)), None)

    def began(self, name: str, tenant: str) -> datetime:
        """Return when the job's first iteration began; it may have begun before there were rows."""
        named = JobID(db="sched", table="rows", job=name)
        entries = self.table.deployment.log.read_history(tenant=tenant, name=named)
        return min(entry.at for entry in entries if entry.to_state is JobState.RUNNING)

    def await_state(self, name: str, tenant: str, state: JobState) -> None:
        def is_so() -> bool:
            job = self.job(name, tenant)
            return job is not None and job.state is state

        wait_for(is_so, SECONDS, self.told)

    def in_step(self, *tenants: str, but: tuple[str, ...] = (), table: Table | None = None) -> bool:
        found = [
            each
            for each in read_positions(self.table.deployment, (table or self.table).source)
            if each.tenant in tenants and each.job_name not in but
        ]
        return {each.tenant for each in found} == set(tenants) and all(e.in_step for e in found)

    def statuses(self, table: str, tenant: str | None = None) -> list[str]:
        """Return the statuses of the runs of a table's iterations, or only one tenant's."""
        tags = {TABLE_TAG: table} | ({} if tenant is None else {TENANT_TAG: tenant})
        return [each["status"] for each in self.runs(tags)]

    def await_queued(self, tenant: str) -> None:
        """Wait until Dagster's queue holds the tenant's run; its job is pending even before."""

        def is_so() -> bool:
            return self.statuses("sched.rows", tenant) == ["QUEUED"]

        wait_for(is_so, SECONDS, self.told)

    @contextmanager
    def pool_limit(self, number: int) -> Iterator[None]:
        """Set how many runs may write to ClickHouse at once, as a person does."""
        pool = get_clickhouse_pool(self.environment["CLICKHOUSE_URL"])
        self.dagster.query(SET_LIMIT, {"key": pool, "limit": number})
        try:
            yield
        finally:
            mutation = "mutation($key: String!) { deleteConcurrencyLimit(concurrencyKey: $key) }"
            self.dagster.query(mutation, {"key": pool})

    @contextmanager
    def sensor_off(self, name: str) -> Iterator[None]:
        """Switch the sensor off as a person does, await its tick, and switch it on at the end."""
        selector = {
            "repositoryLocationName": LOCATION,
            "repositoryName": REPOSITORY,
            "sensorName": name,
        }
        found = self.dagster.query(SENSOR, {"selector": selector})["sensorOrError"]
        self.dagster.run_mutation(STOP, {"id": found["id"]}, {"StopSensorMutationResult"})

        def ended() -> bool:
            (tick,) = self.dagster.query(SENSOR, {"selector": selector})["sensorOrError"][
                "sensorState"
            ]["ticks"]
            return tick["status"] != "STARTED"

        wait_for(ended, SECONDS, self.told)
        try:
            yield
        finally:
            self.dagster.run_mutation(START_AGAIN, {"selector": selector}, {"Sensor"})

    def backfill(self, index: str, partitions: Sequence[str]) -> dict[str, Any]:
        """Materialize these partitions of an index asset; return the ended backfill."""
        wanted = {
            "assetSelection": [{"path": ["sched", index]}],
            "partitionNames": sorted(partitions),
        }
        launched = self.dagster.run_mutation(
            BACKFILL, {"params": wanted}, {"LaunchBackfillSuccess"}
        )

        def now() -> dict[str, Any]:
            asked = {"id": launched["backfillId"]}
            return dict(self.dagster.query(BACKFILLED, asked)["partitionBackfillOrError"])

        wait_for(lambda: now()["status"] not in UNDER_WAY, SECONDS, lambda: f"{now()}")
        return now()

    def await_in_step(self, *tenants: str, but: tuple[str, ...] = ()) -> None:
        wait_for(lambda: self.in_step(*tenants, but=but), SECONDS, self.told)


@pytest.fixture(scope="module")
def world(ground, compared_near):
    tables = (
        Table(ground.deployment, ground.declared[name]) for name in ("rows", "others", "slow")
    )
    world = Scheduled(
        stack=ground.stack,
        environment=ground.environment,
        dagster=ground.dagster,
        tables=tuple(tables),
    )
    values = ", ".join(rows(1, 2, 3, tenant=tenant) for tenant in COMMITTED)
    world.table.sql(f"INSERT INTO {{t}} VALUES {values}")
    world.await_in_step(*COMMITTED)
    return world


def running(world, tenant):
    jobs = world.table.deployment.log.list_jobs(tenant=tenant, state=JobState.RUNNING)
    return [job for job in jobs if job.key.job_name.startswith("gate")]


def waiting(world, tenant):
    jobs = world.table.deployment.log.list_jobs(tenant=tenant, state=JobState.PENDING)
    return [job for job in jobs if job.key.job_name.startswith("gate")]


@pytest.mark.soak
def test_every_trigger_at_once_with_a_failing_consumer_and_a_busy_tenant(world):
    tenants = ("noisy", "one", "two")
    often = {"job_type": "periodic", "schedule": {"interval": "2s"}}
    shared = {"job_type": "periodic", "schedule": {"interval": "2s", "share": True}}
    triggers = {
        ("eager", "noisy"): GREEDY,
        ("lone", "noisy"): often,
        ("tick", "one"): shared,
        ("tock", "one"): shared,
        ("alone", "two"): {"independent": True},
        ("own", "two"): {"job_type": "mine:each_by_itself"},
    }
    mirror, broken = ({"consumer": {"type": each}} for each in ("mirror", "mine:Broken"))
    specs = {each: {"trigger": trigger, "detail": mirror} for each, trigger in triggers.items()}
    world.register({**specs, ("broken", "one"): {"detail": broken}})
    for number in range(10, 10 + BUSY):
        world.table.insert(number, tenant="noisy")
    world.table.sql("UPDATE {t} SET name = 'changed' WHERE tenant = 'one' AND id = 1")
    world.table.sql("DELETE FROM {t} WHERE tenant = 'two' AND id = 2")
    world.await_in_step(*tenants, but=("broken",))
    version = str(world.table.version)
    assert "sched.rows" in world.done("wait", "sched.rows", "--tenant", "two", "--version", version)
    broken = world.job("broken", "one")
    assert (broken.state, broken.watermark.version) == (JobState.ERROR, -1)
    assert_names(broken.status.message, "ValueError")
    verdicts = [each for each in world.table.verdicts() if each.tenant in tenants]
    declared = {(index.name, tenant) for index in world.table.source.indexes for tenant in tenants}
    assert {(each.index, each.tenant) for each in verdicts} == declared | set(triggers)
    assert [each for each in verdicts if not each.agrees] == []
    history = json.loads(world.done("job", "history", "--tenant", "one", "--json"))
    assert {each["event"] for each in history} >= {"register", "start", "complete"}
    usage = json.loads(world.done("usage", "--json"))
    noisy = next(u for u in usage if u["tenant"] == "noisy" and u["job"] == "sched.rows/eager")
    assert noisy["inserted"] == 3 + BUSY


def test_a_limit_on_the_pool_keeps_the_runs_of_other_tables_waiting(world, ground):
    with world.pool_limit(1):
        (gate,) = world.gates("pool", "gate")
        world.await_state("gate", "pool", JobState.RUNNING)
        world.others.insert(1, tenant="pool")
        wait_for(lambda: world.statuses("sched.others") == ["QUEUED"], SECONDS, world.told)
        # There are free slots: a run queued later, in no pool, runs.
        world.dagster.wait(world.dagster.launch("iscp_flush_watermarks"), SECONDS)
        assert world.statuses("sched.others") == ["QUEUED"]
        assert world.job("mirror", "pool", "others").state is JobState.PENDING
        with ground.with_spark():
            gate.touch()
            wait_for(lambda: world.in_step("pool", table=world.others), SECONDS, world.told)
    before, after = world.job("gate", "pool"), world.job("mirror", "pool", "others")
    assert before.status.end_at <= after.status.start_at


def test_runs_that_wait_for_handlers_leave_slots_to_the_runs_of_their_table():
    """That they are tagged so is in test_consumers; the rest is in test_slow_services."""
    runs = yaml.safe_load((ROOT / "dagster.yaml").read_text())["concurrency"]["runs"]
    limits = {each["key"]: {} for each in runs["tag_concurrency_limits"]}
    for each in runs["tag_concurrency_limits"]:
        limits[each["key"]]["value" in each] = each["limit"]
    of_all, of_a_table = limits[SERVICES_TAG][False], limits[SERVICES_TAG][True]
    assert of_all < runs["max_concurrent_runs"]
    assert of_a_table < min(limits[TABLE_TAG][True], limits[TENANT_TAG][True])


@dataclass
class Slow:
    """A service whose handler works until it is opened."""

    opened: threading.Event = field(default_factory=threading.Event)
    entered: threading.Event = field(default_factory=threading.Event)
    done: Counter[tuple[str, int]] = field(default_factory=Counter)

    def service(self) -> Service:
        slow = Service("Slow")

        @slow.handler
        async def told(ctx: Context, batch: dict[str, Any]) -> None:
            await ctx.run("work", self._work, batch)

        return slow

    def _work(self, batch: dict[str, Any]) -> None:
        self.entered.set()
        assert self.opened.wait(2 * SECONDS)
        self.done.update((batch["tenant"], row["id"]) for row in batch["rows"])


@pytest.mark.soak
def test_indexes_go_on_in_their_table_while_handlers_work(world, ground):
    table, slow, tenants = world.slow, Slow(), [f"slow-{number}" for number in range(SLOTS + 1)]
    with uvicorn_of(service_app(slow.service()), port=ground.services):
        try:
            table.insert(1, tenant=tenants[0])
            wait_for(slow.entered.is_set, SECONDS, world.told)
            for number in (2, 3):
                values = ", ".join(rows(number, tenant=each) for each in tenants)
                table.sql(f"INSERT INTO {{t}} VALUES {values}")
                wait_for(
                    lambda: world.in_step(*tenants, but=("told",), table=table),
                    SECONDS,
                    world.told,
                )
            assert not slow.opened.is_set()
            assert not slow.done
        finally:
            slow.opened.set()
        wait_for(lambda: world.in_step(*tenants, table=table), SECONDS, world.told)
    once = {(tenant, number): 1 for tenant in tenants for number in (2, 3)}
    assert slow.done == {(tenants[0], 1): 1, **once}


@pytest.mark.soak
def test_a_backfill_of_scattered_partitions_is_few_runs(world):
    """The runner is off, so that only the backfill follows the tenants' commits."""
    tenants = [f"fill-{number:02}" for number in range(16)]
    chosen = [*tenants[::2], tenants[1]]
    commit = "INSERT INTO {{t}} VALUES {}".format
    world.others.sql(commit(", ".join(rows(1, tenant=each) for each in tenants)))
    wait_for(lambda: world.in_step(*tenants, table=world.others), SECONDS, world.told)
    with world.sensor_off(RUNNER):
        world.others.sql(commit(", ".join(rows(2, tenant=each) for each in tenants)))
        filled = world.backfill("others_mirror", chosen)
        assert (filled["status"], filled["numPartitions"]) == ("COMPLETED_SUCCESS", len(chosen))
        assert world.in_step(*chosen, table=world.others)
        assert not any(world.in_step(each, table=world.others) for each in {*tenants} - {*chosen})
        worked = Counter(run["status"] for run in filled["runs"])["SUCCESS"]
        # Dagster makes a run of each stretch; the first ends those that are still queued.
        assert 1 <= worked < len(filled["runs"]) == len(tenants) // 2 - 1
        ends = {run["status"] for run in filled["runs"]}
        assert ends == {"SUCCESS", "CANCELED"}
    wait_for(lambda: world.in_step(*tenants, table=world.others), SECONDS, world.told)


def test_a_busy_tenant_leaves_a_slot_priority_decides_and_the_stacks_end_cancels(world):
    """This is the last test here, since it ends the stack."""
    names = [f"gate{number}" for number in range(SLOTS)]
    world.gates("busy", *names)
    wait_for(lambda: len(running(world, "busy")) == A_TENANTS_SLOTS, SECONDS, world.told)
    with world.gated("calm", "hold"):
        world.await_state("hold", "calm", JobState.RUNNING)
        # All slots are taken now.
        world.table.insert(1, tenant="low")
        world.await_queued("low")
        world.register({("mirror", "high"): {"detail": FIRST}})
        world.table.insert(1, tenant="high")
        world.await_queued("high")
    world.await_in_step("low", "high")
    assert world.began("mirror", "high") < world.began("mirror", "low"), world.told()
    assert len(running(world, "busy")) == A_TENANTS_SLOTS, "the gates are still closed"
    assert len(waiting(world, "busy")) == SLOTS - A_TENANTS_SLOTS
    ran = {name for name in names if world.job(name, "busy").state is JobState.RUNNING}
    home = world.stack.home
    assert_runs(home, {*PARTS} - {"SparkConnectServer"})
    os.kill(world.stack.supervisor, signal.SIGINT)
    assert_nothing_left(home)
    log = (home / "up.log").read_text()
    assert "Traceback" not in log, log
    for name in names:
        ended = world.job(name, "busy")
        assert (ended.state, ended.watermark) == (JobState.CANCELED, START)
        history = world.table.deployment.log.read_history(tenant="busy", name=ended.name)
        begun = [Event.START] if name in ran else []
        assert [e.event for e in history] == [Event.REGISTER, Event.ENQUEUE, *begun, Event.CANCEL]
    assert not world.table.deployment.log.list_active_runs()
