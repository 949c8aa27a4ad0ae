"""The whole stack with every trigger at once, a busy tenant, a failing consumer, and few slots."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from stackfixture import SERVICES, Stack, copied_project, running_stack, wait_for
from tables import COLUMNS, FEED, Table

from iscp_dagster import FullText, Mirror, SourceTable
from iscp_dagster.core.jobs import Job, JobID
from iscp_dagster.core.moment import START
from iscp_dagster.core.states import Event, JobState
from iscp_dagster.engine.environment import engine_of
from iscp_dagster.engine.standing import standings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

DECLARED = """
from iscp_dagster import FullText, Mirror, SourceTable

rows = SourceTable(
    "sched.rows", key="id", tenant="tenant", indexes=[Mirror(), FullText("name")]
)
"""
MINE = """
import time
from pathlib import Path

from iscp_dagster.core.triggers import iteration_of


class Gate:
    def __init__(self, source, info):
        self.file = Path(info.options["file"])

    def consume(self, retriever):
        while not retriever.next()[2]:
            continue
        deadline = time.monotonic() + 300
        while not self.file.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"nobody opened {self.file}")
            time.sleep(0.1)


class Broken:
    def __init__(self, source, info):
        pass

    def consume(self, retriever):
        raise ValueError("broken by design")


def each_by_itself(jobs, latest, now):
    return tuple(i for job in jobs for i in iteration_of([job], latest))
"""
SLOTS = 3
A_TENANTS_SLOTS = 2
SECONDS = 240.0
BUSY = 3
INDEXES = (Mirror(), FullText("name"))


@dataclass
class World:
    """The whole stack over one declared table, as its users see it."""

    stack: Stack
    table: Table
    project: Path

    def iscp(self, *arguments: str) -> str:
        """What a command prints; it succeeds."""
        done = subprocess.run(
            [sys.executable, "-m", "iscp_dagster.cli", *arguments],
            env=self.stack.environment | {"PYTHONPATH": str(self.project)},
            cwd=self.project,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def gate(self, name: str, tenant: str) -> Path:
        """Register a job whose consumer waits for the file; the file."""
        file = self.project / f"{tenant} {name} is open"
        options = ("--type", "mine:Gate", "--option", f"file={json.dumps(str(file))}")
        place = ("job", "register", f"sched.rows/{name}", "--account", tenant)
        self.iscp(*place, *options, "--trigger", "greedy")
        return file

    def job(self, name: str, tenant: str) -> Job | None:
        named = JobID(db="sched", table="rows", job=name)
        return next(iter(self.table.engine.log.jobs(account=tenant, name=named)), None)

    def await_state(self, name: str, tenant: str, state: JobState) -> None:
        def is_so() -> bool:
            job = self.job(name, tenant)
            return job is not None and job.state is state

        wait_for(is_so, SECONDS, self.told)

    def in_step(self, *tenants: str, but: tuple[str, ...] = ()) -> bool:
        found = [
            each
            for each in standings(self.table.engine, self.table.source)
            if each.tenant in tenants and each.index not in but
        ]
        return {each.tenant for each in found} == set(tenants) and all(e.in_step for e in found)

    def await_in_step(self, *tenants: str, but: tuple[str, ...] = ()) -> None:
        wait_for(lambda: self.in_step(*tenants, but=but), SECONDS, self.told)

    def told(self) -> str:
        jobs = "\n".join(
            f"{job.key} {job.state} {job.watermark} {job.status.error_msg}"
            for job in self.table.jobs()
        )
        return f"{jobs}\n{self.stack.home.joinpath('logs', 'dagster.log').read_text()[-6_000:]}"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    project = copied_project(tmp_path_factory.mktemp("scheduling") / "project")
    (project / "assets" / "docs.py").unlink()
    (project / "assets" / "rows.py").write_text(DECLARED)
    (project / "mine.py").write_text(MINE)
    settings = project / "dagster.yaml"
    slots = settings.read_text().replace("max_concurrent_runs: 4", f"max_concurrent_runs: {SLOTS}")
    assert f"        limit: {A_TENANTS_SLOTS}\n" in slots
    settings.write_text(slots)
    extra = {"PYTHONPATH": str(project), "ISCP_SCAN_SECONDS": "1"}
    with running_stack(project / ".iscp", SERVICES, extra=extra) as stack:
        engine = engine_of(stack.environment | {"ISCP_LAKE": str(stack.home / "lake")})
        source = SourceTable("sched.rows", key="id", tenant="tenant", indexes=INDEXES)
        table = Table(engine, source)
        table.create(COLUMNS, FEED)
        yield World(stack=stack, table=table, project=project)


def test_a_busy_tenant_does_not_take_all_slots_and_priority_decides_who_goes_first(world):
    world.table.insert(1, tenant="busy")
    world.await_in_step("busy")
    gates = [world.gate(f"gate{number}", "busy") for number in range(SLOTS)]
    wait_for(lambda: len(running(world, "busy")) == A_TENANTS_SLOTS, SECONDS, world.told)
    world.table.insert(1, tenant="calm")
    world.await_in_step("calm")
    assert len(running(world, "busy")) == A_TENANTS_SLOTS, "the gates are closed still"
    assert len(waiting(world, "busy")) == SLOTS - A_TENANTS_SLOTS
    held = world.gate("hold", "calm")
    world.await_state("hold", "calm", JobState.RUNNING)
    # All slots are taken now.
    world.table.insert(1, tenant="low")
    world.await_state("mirror", "low", JobState.PENDING)
    world.iscp("job", "register", "sched.rows/mirror", "--account", "high", "--priority", "9")
    world.table.insert(1, tenant="high")
    world.await_state("mirror", "high", JobState.PENDING)
    held.touch()
    world.await_in_step("low", "high")
    high, low = (world.job("mirror", tenant) for tenant in ("high", "low"))
    assert high.status.start_at < low.status.start_at
    for gate in gates:
        gate.touch()
    world.await_in_step("busy", "calm", "low", "high")
    for tenant in ("busy", "calm"):
        for name in [*(f"gate{number}" for number in range(SLOTS)), "hold"]:
            if world.job(name, tenant):
                world.iscp("job", "unregister", f"sched.rows/{name}", "--account", tenant)


def running(world, tenant):
    jobs = world.table.engine.log.jobs(account=tenant, state=JobState.RUNNING)
    return [job for job in jobs if job.key.job_name.startswith("gate")]


def waiting(world, tenant):
    jobs = world.table.engine.log.jobs(account=tenant, state=JobState.PENDING)
    return [job for job in jobs if job.key.job_name.startswith("gate")]


def test_every_trigger_at_once_with_a_failing_consumer_and_a_busy_tenant(world):
    tenants = ("noisy", "one", "two")
    for tenant in tenants:
        world.table.insert(1, 2, 3, tenant=tenant)
    world.await_in_step(*tenants)
    own = ("--trigger", "mine:each_by_itself")
    shared = ("--trigger", "periodic", "--interval", "2s", "--share")
    triggers = {
        ("eager", "noisy"): ("--trigger", "greedy"),
        ("tick", "one"): shared,
        ("tock", "one"): shared,
        ("alone", "two"): ("--independent",),
        ("own", "two"): own,
    }
    for (name, tenant), options in triggers.items():
        place = (f"sched.rows/{name}", "--account", tenant)
        world.iscp("job", "register", *place, "--type", "mirror", *options)
    world.iscp("job", "register", "sched.rows/broken", "--account", "one", "--type", "mine:Broken")
    for number in range(10, 10 + BUSY):
        world.table.insert(number, tenant="noisy")
    world.table.sql("UPDATE {t} SET name = 'changed' WHERE tenant = 'one' AND id = 1")
    world.table.sql("DELETE FROM {t} WHERE tenant = 'two' AND id = 2")
    world.await_in_step(*tenants, but=("broken",))
    version = str(world.table.version)
    assert "sched.rows" in world.iscp(
        "wait", "sched.rows", "--account", "two", "--version", version
    )
    broken = world.job("broken", "one")
    assert (broken.state, broken.watermark.version) == (JobState.ERROR, -1)
    assert "ValueError: broken by design" in broken.status.error_msg
    verdicts = [each for each in world.table.verdicts() if each.tenant in tenants]
    declared = {(index.name, tenant) for index in INDEXES for tenant in tenants}
    assert {(each.index, each.tenant) for each in verdicts} == declared | set(triggers)
    assert [each for each in verdicts if not each.agrees] == []
    history = json.loads(world.iscp("job", "history", "--account", "one", "--json"))
    assert {each["event"] for each in history} >= {"register", "start", "complete"}
    usage = json.loads(world.iscp("usage", "--json"))
    noisy = next(u for u in usage if u["account"] == "noisy" and u["job"] == "sched.rows/eager")
    assert noisy["inserted"] == 3 + BUSY


def test_an_interrupted_iteration_ends_its_run_and_the_next_one_has_the_new_spec(world):
    world.table.insert(1, tenant="stop")
    world.await_in_step("stop")
    gate = world.gate("gate", "stop")
    world.await_state("gate", "stop", JobState.RUNNING)
    run = world.job("gate", "stop").run_id
    opened = gate.with_name("another file")
    opened.touch()
    option = ("--option", f"file={json.dumps(str(opened))}")
    world.iscp(*("job", "update", "sched.rows/gate", "--account", "stop", *option, "--interrupt"))
    events = [
        each["event"]
        for each in json.loads(world.iscp("job", "history", "sched.rows/gate", "--json"))
        if each["account"] == "stop"
    ]
    assert "cancel" in events
    world.await_in_step("stop")
    assert world.job("gate", "stop").run_id != run
    assert not gate.exists()


def test_a_run_that_a_person_terminates_in_the_ui_cancels_its_jobs(world):
    world.table.insert(1, tenant="ui")
    world.await_in_step("ui")
    gate = world.gate("gate", "ui")
    world.await_state("gate", "ui", JobState.RUNNING)
    run = world.job("gate", "ui").run_id
    mutation = "mutation($id: String!) { terminateRun(runId: $id) { __typename } }"
    asked = {"query": mutation, "variables": {"id": run}}
    answer = httpx.post(f"{world.stack.dagster_url}/graphql", json=asked, timeout=60).json()
    assert answer["data"]["terminateRun"]["__typename"] == "TerminateRunSuccess", answer
    named = JobID(db="sched", table="rows", job="gate")

    def canceled() -> bool:
        history = world.table.engine.log.history(account="ui", name=named)
        return any(each.event is Event.CANCEL for each in history)

    wait_for(canceled, SECONDS, world.told)
    assert world.job("gate", "ui").watermark == START
    gate.touch()
    world.await_in_step("ui")
    assert world.job("gate", "ui").run_id != run
