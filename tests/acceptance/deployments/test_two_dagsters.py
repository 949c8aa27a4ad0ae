"""Two Dagster instances on one ISCP log in PostgreSQL, one of them killed or stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from iscp_dagster.joblog.leases import LeaseDurations
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.joblog.sql.tables import ISCP_LEASES
from iscp_dagster.model.errors import RunGoneError
from iscp_dagster.model.jobs import Job, JobID
from iscp_dagster.model.specs import ConsumerInfo, IterationDetail, JobSpec, TriggerSpec
from iscp_dagster.model.states import Event, JobState
from support.lake.delta_tables import Table, deployment_at
from support.paths import PACKAGES, ROOT
from support.services.dagster_process import NOWHERE
from support.services.stack import clean_environment
from support.spark.fake_spark import NearSpark

LEASE_SECONDS = 8.0
LEASES = dict.fromkeys(("run", "queued", "runner", "unseen"), LEASE_SECONDS)
DEADLINE, POLL_SECONDS = 200.0, 0.3
INSTANCE = """
telemetry:
  enabled: false
# The default one waits for processes of its own that a signal may not reach.
compute_logs:
  module: dagster._core.storage.noop_compute_log_manager
  class: NoOpComputeLogManager
"""


@dataclass
class Dagsters:
    """A table with a consumer, its log in PostgreSQL, and the Dagsters that work on both."""

    folder: Path
    table: Table
    config: dict[str, Any]
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, name: str) -> subprocess.Popen[bytes]:
        home = self.folder / name
        home.mkdir(exist_ok=True)
        (home / "dagster.yaml").write_text(INSTANCE)
        config = self.config | {"name": name, "home": str(home), "parent": os.getpid()}
        file = self.folder / f"{name}.json"
        file.write_text(json.dumps(config))
        path = os.pathsep.join(map(str, (ROOT, ROOT / "tests", *PACKAGES)))
        environment = clean_environment(home) | {"DAGSTER_HOME": str(home), "PYTHONPATH": path}
        with (self.folder / f"{name}.log").open("ab") as out:
            child = subprocess.Popen(
                [sys.executable, "-m", "support.services.dagster_process", str(file)],
                stdout=out,
                stderr=out,
                env=environment,
            )
        self.started.append(child)
        return child

    def read_events(self, what: str, **fields: Any) -> list[dict[str, Any]]:
        lines = Path(self.config["told"]).read_bytes().splitlines()
        events = [each for each in map(json.loads, lines) if each["what"] == what]
        return [each for each in events if fields.items() <= each.items()]

    def wait_until(self, get_value: Callable[[], Any]) -> Any:
        end = time.monotonic() + DEADLINE
        while not (value := get_value()):
            assert time.monotonic() < end, self.describe_state()
            dead = [each.pid for each in self.started if each.poll() not in {None, -signal.SIGKILL}]
            assert not dead, self.describe_state()
            time.sleep(POLL_SECONDS)
        return value

    def describe_state(self) -> str:
        logs = [f"{file.name}: {file.read_text()[-2_000:]}" for file in self.folder.glob("*.log")]
        lines = Path(self.config["told"]).read_text().splitlines()[-30:]
        return "\n".join([str(self.job()), *lines, *logs])

    def job(self) -> Job:
        (job,) = self.table.deployment.log.list_jobs()
        return job

    def in_step(self) -> bool:
        job = self.job()
        idle = job.state is JobState.COMPLETED and job.status.code == 0
        return idle and job.watermark.version == self.table.version

    def has_looked(self, child: subprocess.Popen[bytes], since: int) -> bool:
        return len(self.read_events("looks", pid=child.pid)) > since

    def await_consumer(self, children: list[subprocess.Popen[bytes]], ends: list[int]) -> Any:
        """Return the child that consumes that range, held at its gate."""
        (event,) = self.wait_until(lambda: self.read_events("begins", ends=ends))[-1:]
        return next(each for each in children if each.pid == event["pid"])

    def gate_of(self, child: subprocess.Popen[bytes]) -> Path:
        return self.folder / f"hold-{child.pid}"

    def read_lease(self, run_id: str) -> float:
        engine = self.table.deployment.log.engine
        with engine.connect() as connection:
            chosen = sa.select(ISCP_LEASES.c.until).where(ISCP_LEASES.c.name == run_id)
            return connection.execute(chosen).scalar_one()


@pytest.fixture
def world(new_postgres, tmp_path):
    log = SqlLog(new_postgres(), leases=LeaseDurations(**LEASES))
    log.ensure()
    deployment = deployment_at(NOWHERE, NearSpark(), tmp_path, log=log)
    table = Table.make(deployment)
    events = tmp_path / "events"
    events.touch()
    config = {
        "log": log.engine.url.render_as_string(hide_password=False),
        "lake": deployment.lake,
        "table": table.source.name,
        "told": str(events),
        "leases": LEASES,
    }
    world = Dagsters(folder=tmp_path, table=table, config=config)
    name = JobID(db=table.source.database, table=table.source.table, job="kept")
    info = ConsumerInfo(
        type="support.services.dagster_process:Gated", db=name.db, table=name.table, job="kept",
        options={"told": str(events)},
    )  # fmt: skip
    spec = JobSpec(trigger=TriggerSpec(job_type="greedy"), detail=IterationDetail(consumer=info))
    table.insert(1)
    assert log.register("a", name, deployment.make_delta_log(table.source).get_table_id(), spec)
    yield world
    for child in world.started:
        child.kill()
        child.wait()


@pytest.mark.soak
def test_each_range_is_consumed_once_whoever_dies_or_stands_still(world):
    table = world.table
    children = [world.start("one"), world.start("two")]
    world.wait_until(world.in_step)
    for number in (2, 3):
        table.insert(number)
        world.wait_until(world.in_step)
    dispatched = {each["pid"] for each in world.read_events("looks") if each["requests"]}
    assert len(dispatched) == 1, "one looks after the table"
    idle = next(each for each in children if each.pid not in dispatched)
    world.wait_until(
        lambda: any("stands by" in e["skipped"] for e in world.read_events("looks", pid=idle.pid))
    )

    # A working run is left alone, however long it takes.
    for child in children:
        world.gate_of(child).touch()
    table.insert(4)
    ends = [table.version - 1, table.version]
    busy = world.await_consumer(children, ends)
    before = world.job()
    first = world.read_lease(before.run_id)
    seen = {child.pid: len(world.read_events("looks", pid=child.pid)) for child in children}
    world.wait_until(lambda: world.read_lease(before.run_id) - first > LEASE_SECONDS)
    world.wait_until(
        lambda: all(world.has_looked(child, seen[child.pid] + 2) for child in children)
    )
    assert (world.job().seq, world.job().run_id) == (before.seq, before.run_id)

    # It is stopped there and resumed; its consumer gets nothing that another run has taken.
    busy.send_signal(signal.SIGSTOP)
    other = next(each for each in children if each is not busy)
    world.gate_of(other).unlink()
    world.wait_until(world.in_step)
    lost = [e for e in table.deployment.log.read_history() if e.event is Event.RECOVER]
    assert [(each.code, each.interrupted) for each in lost] == [(RunGoneError.code, True)]
    world.gate_of(busy).unlink()
    busy.send_signal(signal.SIGCONT)
    world.wait_until(lambda: world.read_events("refused", pid=busy.pid, ends=ends))
    assert {each["pid"] for each in world.read_events("takes", ends=ends)} == {other.pid}
    late, heir_of_it = (
        world.read_events("begins", pid=child.pid, ends=ends)[-1] for child in (busy, other)
    )
    assert late["fence"] < heir_of_it["fence"]

    # One is killed while it works, and the other goes on.
    for child in children:
        world.gate_of(child).touch()
    table.insert(5)
    ends = [table.version - 1, table.version]
    killed = world.await_consumer(children, ends)
    killed.kill()
    killed.wait()
    heir = next(each for each in children if each is not killed)
    world.gate_of(heir).unlink()
    world.wait_until(world.in_step)
    assert {each["pid"] for each in world.read_events("takes", ends=ends)} == {heir.pid}

    # Every row was taken once, range after range.
    taken = [each for each in world.read_events("takes") if each["ids"]]
    assert sorted(key for each in taken for key in each["ids"]) == [1, 2, 3, 4, 5]
    assert all(a["ends"][1] == b["ends"][0] for a, b in pairwise(taken))
    assert [a["fence"] for a in taken] == sorted({a["fence"] for a in taken})
