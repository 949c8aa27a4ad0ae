"""Faults in the middle of an iteration on a whole stack; then all is in step, nothing lost.

Rows of `rows` have a key. Those of `events` have none: a row written twice is stored twice.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp_dagster import Mirror
from iscp_dagster.batchstates.sql import SqlStates
from iscp_dagster.local.services.settings import CLICKHOUSE, RUNS
from iscp_dagster.location.names import TABLE_TAG, TENANT_COUNT_TAG
from iscp_dagster.model.errors import UnavailableError
from iscp_dagster.model.states import JobState
from iscp_dagster.upkeep.position import read_positions
from iscp_dagster.upkeep.verify_indexes import compare_or_raise
from support.errors import raises_naming
from support.jobs.deployment import Deployed
from support.lake.delta_tables import Table, deployment_at, one_by_one, publish_one
from support.services import postgres
from support.services.fault_proxy import FaultyClickHouse
from support.services.small_disk import full, small_disk
from support.services.stack import Stack, wait_for
from support.spark.fake_spark import NearSpark

pytestmark = pytest.mark.timeout(900)

FEW = 500
REMOVED = 50
BUILT = "built"
CAUGHT_SECONDS = 120.0
HEALED_SECONDS = 240.0
MANY, FEW_TENANTS = 300, 3
MANYS_LOOK_SECONDS = 2.0
"""The pause between two looks at many tenants' jobs, since each look takes processor time."""
THE_RUNS_LINES = 30
FINISHED = {"SUCCESS", "FAILURE", "CANCELED"}


@dataclass
class Followed:
    """One declared table of the stack, and how many rows each of its tenants has."""

    table: Table
    sizes: dict[str, int] = field(default_factory=dict)
    changes: int = 0

    def put(self, tenant: str) -> None:
        """Commit new rows of the tenant; without a key, many are equal."""
        ids = [n if self.table.source.keys else n % 125 for n in range(FEW)]
        self._append(
            {"tenant": tenant, "id": n, "words": f"some {n * 7919:x}", "v": make_vector(n)}
            for n in ids
        )
        self.sizes[tenant] = self.sizes.get(tenant, 0) + FEW

    def put_all(self, tenants: Collection[str], rows: int) -> None:
        """Commit `rows` new rows of each tenant at once."""
        first = self.sizes.get(next(iter(tenants)), 0)
        self._append(
            {"tenant": tenant, "id": n, "words": f"some {n * 7919:x}", "v": make_vector(n)}
            for tenant in tenants
            for n in range(first, first + rows)
        )
        for tenant in tenants:
            self.sizes[tenant] = first + rows

    def _append(self, rows: Iterable[dict[str, Any]]) -> None:
        delta_table = DeltaTable(self.table.path)
        schema = pa.schema(delta_table.schema().to_arrow())
        write_deltalake(delta_table, pa.Table.from_pylist(list(rows), schema), mode="append")

    def change(self, tenant: str) -> None:
        """Change most rows and delete some; the indexes follow by the change feed."""
        self.changes += 1
        merged = DeltaTable(self.table.path).merge(
            pa.table({"now": list(range(FEW))}),
            f"held.id = new.now AND held.tenant = '{tenant}'",
            source_alias="new",
            target_alias="held",
        )
        merged = merged.when_matched_delete(f"new.now % {REMOVED} = {self.changes}")
        merged.when_matched_update({"words": "concat('more ', held.words)"}).execute()
        self.sizes[tenant] -= FEW // REMOVED

    def in_step(self) -> bool:
        positions = read_positions(self.table.deployment, self.table.source)
        jobs = len(self.sizes) * len(self.table.source.indexes)
        return len(positions) == jobs and all(each.in_step for each in positions)

    def check(self, tenants: Collection[str]) -> None:
        """Check that these tenants' rows equal the source's, and that the others' counts do."""
        indexes = self.table.source.indexes
        known = set(tenants) & set(self.sizes)
        verdicts = compare_or_raise(self.table.deployment, self.table.source, tenants=known)
        assert {(each.tenant, each.index) for each in verdicts} == {
            (tenant, index.name) for tenant in known for index in indexes
        }
        assert [each for each in verdicts if not each.agrees] == []
        for index in indexes:
            view = self.table.view(index)
            counts = self.table.query(f"SELECT tenant, count() FROM {view} GROUP BY tenant")
            assert dict(counts) == self.sizes

    def runs(self) -> set[str]:
        """Return the runs that have begun an iteration."""
        return {job.run_id for job in self.table.jobs() if job.state is JobState.RUNNING}


def make_vector(number: int) -> list[float]:
    return [float((number * 31 + n * 7) % 97) for n in range(8)]


@dataclass(kw_only=True)
class Faulty(Deployed):
    """The stack over two tables, and what makes it fail."""

    clickhouse: Stack
    proxy: FaultyClickHouse
    postgres: Any
    rows: Followed
    events: Followed

    def heal(self, *tenants: str) -> None:
        """Wait until every index is in step, and check that it has exactly the source's rows."""
        both = (self.rows, self.events)
        wait_for(lambda: all(each.in_step() for each in both), HEALED_SECONDS, self.told)
        for followed in both:
            followed.check(tenants)

    def await_runs(self, number: int, ended: Collection[str] = ()) -> set[str]:
        """Wait for `number` other runs in iterations and one applied insert; return the runs.

        One insert is enough: Spark runs only as many tasks at once as there are processors.
        """

        def find_runs() -> set[str]:
            return (self.rows.runs() | self.events.runs()).difference(ended)

        def are_in_the_middle() -> bool:
            return bool(self.proxy.held) and len(find_runs()) >= number

        wait_for(are_in_the_middle, CAUGHT_SECONDS, self.told)
        return find_runs()

    def find_process(self, run: str) -> int:
        """Return the run's own process, as Dagster logged it."""
        entries = [
            each for event in self.read_log(run) for each in event.get("metadataEntries", ())
        ]
        return next(
            int(each.get("text") or each.get("intRepr"))
            for each in entries
            if each["label"] == "pid"
        )

    def read_log(self, run: str) -> list[dict[str, Any]]:
        query = (
            "query($id: ID!) { logsForRun(runId: $id) { ... on EventConnection { events {"
            " ... on EngineEvent { metadataEntries { label"
            " ... on TextMetadataEntry { text } ... on IntMetadataEntry { intRepr } } }"
            " ... on ExecutionStepFailureEvent { error { message causes { message } } } } } } }"
        )
        return list(self.dagster.query(query, {"id": run})["logsForRun"]["events"])

    def status(self, run: str) -> str:
        query = "query($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"
        return str(self.dagster.query(query, {"id": run})["runOrError"]["status"])

    def await_end(self, run: str) -> str:
        """Wait for the run's end; return its status."""
        wait_for(lambda: self.status(run) in FINISHED, HEALED_SECONDS, self.told)
        return self.status(run)


def make_followed_tables(ground: Any) -> Iterator[Followed]:
    """Give the two tables, each with one tenant that is not yet in step."""
    for name in ("keyed", "keyless"):
        table = Followed(Table(ground.deployment, ground.declared[name]))
        table.put(BUILT)
        yield table


@pytest.fixture(scope="module")
def world(ground, compared_near):
    rows, events = make_followed_tables(ground)
    world = Faulty(
        stack=ground.stack,
        clickhouse=ground.clickhouse,
        proxy=ground.proxy,
        postgres=ground.postgres,
        environment=ground.environment,
        rows=rows,
        events=events,
        dagster=ground.dagster,
        tables=(rows.table, events.table),
    )
    world.heal(BUILT)
    return world


@pytest.fixture
def injected(world, record_property):
    """Collect the name of each fault, except those that the proxy counts."""
    faults: list[str] = []
    before = len(world.proxy.injected)
    yield faults
    world.proxy.coming_to.clear()
    world.proxy.release()
    faults += world.proxy.injected[before:]
    record_property("faults injected", dict(Counter(faults)))
    assert faults


def kill_runs(world: Faulty, runs: set[str]) -> None:
    for run in runs:
        os.kill(world.find_process(run), signal.SIGKILL)
    world.proxy.release()


def kill_service(world: Faulty, stack: Stack, name: str) -> None:
    restarts = stack.service(name).restarts
    os.kill(stack.pid(name), signal.SIGKILL)
    world.proxy.release()
    stack.await_restart(name, restarts + 1)


def kill_servers(world: Faulty, _: object) -> None:
    kill_service(world, world.stack, RUNS)
    kill_service(world, world.clickhouse, CLICKHOUSE)


@pytest.mark.soak
def test_the_log_then_the_run_server_and_clickhouse_are_killed_in_snapshots_and_tails(
    world, injected
):
    """A run alone is killed in test_events."""
    many = name_tenants(FEW_TENANTS)
    world.proxy.hold()
    world.rows.put_all(many, 3)
    world.rows.change(BUILT)
    world.events.put(BUILT)
    runs = world.await_runs(3)
    postgres.kill(world.postgres)
    world.proxy.release()
    assert {world.await_end(run) for run in runs} == {"FAILURE"}
    world.proxy.hold()
    world.postgres.ensure_postgres_running()
    world.await_runs(2, ended=runs)
    kill_servers(world, runs)
    injected += ["killed log", "killed servers"]
    world.heal(*many, BUILT)


def test_a_full_disk_under_the_state_store(clickhouse_url, compared_near, tmp_path):
    """AFTER cannot be written, and the next iteration cannot read the states."""
    with small_disk() as disk:
        if not disk.is_mount():
            pytest.skip("only who may mount a file system can fill one")
        states = SqlStates(f"sqlite:///{disk / 'states.sqlite'}")
        states.ensure()
        near = NearSpark()
        deployment = deployment_at(clickhouse_url, near, tmp_path, open_state_store=lambda: states)
        table = Table.make(deployment, Mirror(append=True), key=())
        table.insert(1)
        (due,) = table.look().dispatches
        named = {"run_id": "fails", "queued_as": due.name}
        with closing(one_by_one(deployment, table.source, due.iteration, **named)) as found:
            delivery = next(found)
            with full(disk), raises_naming(UnavailableError, "states.sqlite"):
                publish_one(deployment, delivery)
        with full(disk), raises_naming(UnavailableError, "states.sqlite"):
            table.materialize()
        table.materialize()
        assert table.agreed() == {"mirror": 1}


def name_tenants(many: int) -> list[str]:
    return [f"of {many}, {number:03}" for number in range(many)]


@pytest.mark.soak
def test_a_commit_of_many_tenants_outlives_a_run_the_run_server_and_clickhouse(world, injected):
    tenants = name_tenants(MANY)
    both = (world.rows, world.events)
    for kill in (kill_runs, kill_servers):
        world.proxy.hold()
        for followed in both:
            followed.put_all(tenants, 3)
        runs = world.await_runs(1)
        kill(world, runs)
        injected.append(f"killed {len(runs)} runs of many")
        wait_for(
            lambda: all(each.in_step() for each in both),
            HEALED_SECONDS,
            world.told,
            every=MANYS_LOOK_SECONDS,
        )
    for followed in both:
        followed.check(tenants)
    assert 2 <= len(world.runs({TENANT_COUNT_TAG: str(MANY)})) < MANY / 2


@pytest.fixture
def run_of_many(world):
    """Return the latest successful run of many tenants, and their number.

    The test before leaves one; there is none yet if the test runs alone.
    """
    if name_tenants(MANY)[0] not in world.rows.sizes:
        world.rows.put_all(name_tenants(MANY), 3)
    found: list[dict[str, Any]] = []

    def ended() -> bool:
        runs = world.runs({TABLE_TAG: world.rows.table.source.name})
        of_many = [each for each in runs if TENANT_COUNT_TAG in each["tags"]]
        found[:] = [each for each in of_many if each["status"] == "SUCCESS"]
        return bool(found)

    wait_for(ended, HEALED_SECONDS, world.told)
    return found[0]["runId"], int(found[0]["tags"][TENANT_COUNT_TAG])


@pytest.mark.soak
def test_dagster_s_pages_show_a_commit_of_many_tenants(world, browser, run_of_many):
    """The partitions of an index, the lineage, and the run, as a person sees them."""
    (run, served), url = run_of_many, world.stack.dagster_url
    names = [index.name for index in world.rows.table.source.indexes]
    each_once = {f"rows_{name}": 1 for name in names}

    counts = f"Failed (0)\nMaterialized ({len(world.rows.sizes)})\nMaterializing (0)\nMissing (0)"
    browser.read(f"{url}/assets/faults/rows_mirror?view=partitions", lambda text: counts in text)

    def filled(text: str) -> bool:
        shown = Counter(text.splitlines())
        return each_once.items() <= shown.items() and shown["100% filled"] == len(names)

    browser.read(f"{url}/assets/faults/rows?view=lineage", filled)

    shown = browser.read(f"{url}/runs/{run}", lambda text: "RUN_SUCCESS" in text)
    assert "Errored (0)" in shown
    assert "Succeeded (1)" in shown
    assert [shown.count(f'Handled output "{name}"') for name in names] == [1] * len(names), shown
    assert shown.count(f"\ntenants\n{served}\n") == len(names), shown
    # A line for each tenant's version, one for each of its indexes, and the run's own.
    assert len(world.read_log(run)) < served * (1 + len(names)) + THE_RUNS_LINES
    assert browser.errors == []
