"""kill -9 in the middle of an iteration, with everything running; then in step, nothing lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from threading import Thread

import httpx
import pytest
from stackfixture import SERVICES, Stack, copied_project, running_stack, wait_for
from tables import FEED, Table

from iscp_dagster import FullText, Mirror, SourceTable, Vector
from iscp_dagster.core.jobs import Job
from iscp_dagster.core.states import JobState
from iscp_dagster.demo.dagster_api import DagsterApi
from iscp_dagster.engine.environment import engine_of
from iscp_dagster.engine.standing import standings
from iscp_dagster.engine.verify import verify
from iscp_dagster.stack.settings import CLICKHOUSE, SPARK

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

DECLARED = """
from iscp_dagster import FullText, Mirror, SourceTable, Vector

rows = SourceTable(
    "faults.rows",
    key="id",
    tenant="tenant",
    indexes=[Mirror(), FullText("words"), Vector("v", dimension=8)],
)
"""
INDEXES = (Mirror(), FullText("words"), Vector("v", dimension=8))
ROWS = 40_000
FEW = 2_000
CAUGHT_SECONDS = 120.0
HEALED_SECONDS = 240.0
FINISHED = {"SUCCESS", "FAILURE", "CANCELED"}


@dataclass
class World:
    """The whole stack over one declared table, as its users see it."""

    stack: Stack
    table: Table
    dagster: DagsterApi
    sizes: dict[str, int] = field(default_factory=dict)

    def put(self, tenant: str, round_: str, rows: int = ROWS) -> None:
        """One commit that writes every row of the tenant, in place of those before."""
        self.table.sql(
            "INSERT INTO {t} REPLACE WHERE tenant = "
            f"'{tenant}' SELECT '{tenant}' AS tenant, id, concat('{round_} ', hex(id * 7919)) "
            f"AS words, transform(sequence(1, 8), n -> float(hash(id, n) % 97)) AS v "
            f"FROM range({rows})"
        )
        self.sizes[tenant] = rows

    def change(self, tenant: str, round_: str) -> None:
        """One commit that changes most rows and removes some, to be followed by the feed."""
        self.table.sql(
            f"MERGE INTO {{t}} AS held USING (SELECT id AS now FROM range({ROWS})) "
            f"ON held.id = now AND held.tenant = '{tenant}' "
            f"WHEN MATCHED AND now % 7 = 3 THEN DELETE "
            f"WHEN MATCHED THEN UPDATE SET words = concat('{round_} ', held.words)"
        )
        self.sizes[tenant] -= len(range(3, self.sizes[tenant], 7))

    def running(self) -> list[str]:
        """The runs in the middle of an iteration: claimed, and some of its rows in ClickHouse."""
        jobs = [job for job in self.table.jobs() if job.state is JobState.RUNNING]
        return [str(job.run_id) for job in jobs if self.written(job)]

    def written(self, job: Job) -> bool:
        """Whether rows of the job's tenant are there that its watermark has not reached."""
        rows = (
            "SELECT _version FROM merge('faults', '^rows_mirror__') WHERE tenant = {tenant:String}"
        )
        query = f"SELECT count() FROM ({rows} AND toInt64(_version) > {{mark:Int64}})"
        there = "SELECT count() FROM system.tables WHERE name = 'rows_mirror__staging'"
        bound = {"tenant": job.key.account, "mark": job.watermark.version}
        return int(self.ask(there)) > 0 and int(self.ask(query, **bound)) > 0

    def ask(self, query: str, **parameters: str | int) -> str:
        found = httpx.post(
            self.stack.clickhouse_url,
            content=query,
            params={f"param_{name}": value for name, value in parameters.items()},
        )
        return found.raise_for_status().text.strip()

    def caught(self) -> str:
        """Wait for the middle of an iteration; its run."""
        runs: list[str] = []

        def in_the_middle() -> bool:
            runs[:] = self.running()
            return bool(runs)

        wait_for(in_the_middle, CAUGHT_SECONDS, self.told, every=0.01)
        return runs[0]

    def heal(self, tenant: str) -> None:
        """Wait until every index is in step; then nothing is lost, doubled or other."""

        def in_step() -> bool:
            found = standings(self.table.engine, self.table.source)
            return len(found) == len(self.sizes) * len(INDEXES) and all(
                each.in_step for each in found
            )

        wait_for(in_step, HEALED_SECONDS, self.told)
        verdicts = verify(self.table.engine, self.table.source, tenant=tenant)
        assert {each.index for each in verdicts} == {index.name for index in INDEXES}
        assert [each for each in verdicts if not each.agrees] == []
        mirror = self.table.view(INDEXES[0])
        held = self.table.query(f"SELECT tenant, count() FROM {mirror} GROUP BY tenant")
        assert dict(held) == self.sizes

    def told(self) -> str:
        jobs = "\n".join(f"{job.key} {job.state} {job.watermark}" for job in self.table.jobs())
        return f"{jobs}\n{self.stack.home.joinpath('logs', 'dagster.log').read_text()[-6_000:]}"

    def process_of(self, run: str) -> int:
        """The run's own process, as Dagster logged it."""
        query = (
            "query($id: ID!) { logsForRun(runId: $id) { ... on EventConnection { events {"
            " __typename ... on EngineEvent { metadataEntries { label"
            " ... on TextMetadataEntry { text } ... on IntMetadataEntry { intRepr } } } } } } }"
        )
        events = self.dagster._query(query, {"id": run})["logsForRun"]["events"]
        entries = [entry for event in events for entry in event.get("metadataEntries", ())]
        return next(
            int(entry.get("text") or entry.get("intRepr"))
            for entry in entries
            if entry["label"] == "pid"
        )

    def materialize(self, tenant: str) -> str:
        asset = ["faults", "rows_mirror"]
        return self.dagster.materialize(asset, (tenant, tenant), {})

    def status(self, run: str) -> str:
        query = "query($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"
        return str(self.dagster._query(query, {"id": run})["runOrError"]["status"])


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    project = copied_project(tmp_path_factory.mktemp("faults") / "project")
    (project / "assets" / "docs.py").unlink()
    (project / "assets" / "rows.py").write_text(DECLARED)
    extra = {"PYTHONPATH": str(project), "ISCP_SCAN_SECONDS": "1"}
    with running_stack(project / ".iscp", SERVICES, extra=extra) as stack:
        engine = engine_of(stack.environment | {"ISCP_LAKE": str(stack.home / "lake")})
        source = SourceTable("faults.rows", key="id", tenant="tenant", indexes=INDEXES)
        table = Table(engine, source)
        table.create("tenant STRING, id BIGINT, words STRING, v ARRAY<FLOAT>", FEED)
        with httpx.Client(timeout=60) as client:
            dagster = DagsterApi(stack.dagster_url, client)
            yield World(stack=stack, table=table, dagster=dagster)


def killed_run(world: World) -> None:
    os.kill(world.process_of(world.caught()), signal.SIGKILL)


def killed_spark(world: World) -> None:
    world.caught()
    restarts = world.stack.service(SPARK).restarts
    os.kill(world.stack.pid(SPARK), signal.SIGKILL)
    world.stack.await_restart(SPARK, restarts + 1)


def killed_clickhouse(world: World) -> None:
    world.caught()
    restarts = world.stack.service(CLICKHOUSE).restarts
    os.kill(world.stack.pid(CLICKHOUSE), signal.SIGKILL)
    world.stack.await_restart(CLICKHOUSE, restarts + 1)


KILLS = {"run": killed_run, "clickhouse": killed_clickhouse, "spark": killed_spark}


@pytest.mark.parametrize("what", KILLS)
def test_killed_in_the_middle_of_a_snapshot_and_of_a_tail(world, what):
    world.put(what, "first")
    KILLS[what](world)
    world.heal(what)
    world.change(what, "second")
    KILLS[what](world)
    world.heal(what)


def test_two_people_who_materialize_at_once(world):
    world.put("two", "first", FEW)
    world.heal("two")
    world.change("two", "second")
    runs: list[str] = []
    people = [Thread(target=lambda: runs.append(world.materialize("two"))) for _ in range(2)]
    for person in people:
        person.start()
    for person in people:
        person.join()
    assert len(runs) == 2
    wait_for(lambda: {world.status(run) for run in runs} <= FINISHED, HEALED_SECONDS, world.told)
    assert "SUCCESS" in {world.status(run) for run in runs}
    world.heal("two")


def iscp(world: World, *arguments: str) -> subprocess.CompletedProcess[str]:
    here = {"PYTHONPATH": str(world.stack.home.parent)}
    return subprocess.run(
        [sys.executable, "-m", "iscp_dagster.cli", *arguments],
        env=world.stack.environment | here,
        cwd=world.stack.home.parent,
        capture_output=True,
        text=True,
        check=False,
    )


def test_verify_says_which_index_of_which_tenant_differs(world):
    for tenant in ("here", "there"):
        world.put(tenant, "first", FEW)
    world.heal("there")
    chosen = ("verify", "--tenant", "here", "--index", "mirror")
    found = iscp(world, *chosen, "--json")
    assert found.returncode == 0, found.stderr
    (row,) = json.loads(found.stdout)
    assert (row["index"], row["tenant"], row["rows"], row["agrees"]) == (
        "mirror",
        "here",
        FEW,
        True,
    )
    rows = "faults.rows_mirror__rows"
    world.table.query(
        f"INSERT INTO {rows} SELECT * REPLACE ('tampered' AS words) FROM {rows} FINAL "
        "WHERE tenant = 'here' AND id = 7"
    )
    found = iscp(world, *chosen)
    assert found.returncode == 1, found.stderr
    assert "rows/mirror here" in found.stdout
    assert "no" in found.stdout.splitlines()[1].split()
    assert "look at here, 7" in found.stdout
    assert iscp(world, "verify", "--tenant", "there").returncode == 0
