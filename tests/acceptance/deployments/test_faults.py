"""Faults in the middle of an iteration on a whole stack; then all is in step, nothing lost.

Rows of `rows` have a key. Those of `events` have none: a row written twice is stored twice.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp_dagster.clickhouse.write.inserts import ATTEMPTS
from iscp_dagster.joblog.history import ENDS, HistoryEntry
from iscp_dagster.joblog.iterations import Iteration
from iscp_dagster.local.services.settings import CLICKHOUSE, RUNS, SPARK
from iscp_dagster.location.names import TABLE_TAG, TENANT_TAG, TENANTS_TAG, get_sync_job_name
from iscp_dagster.model.clock import get_utc_now
from iscp_dagster.model.states import Event, JobState
from iscp_dagster.runs.known_runs import DISPATCH_TAG
from iscp_dagster.upkeep.position import read_positions
from iscp_dagster.upkeep.verify import compare_or_raise
from support.jobs.deployment import Deployed
from support.lake.delta_tables import Table
from support.services import postgres
from support.services.fault_proxy import FaultyClickHouse
from support.services.small_disk import full
from support.services.stack import Stack, wait_for
from support.services.stack_processes import living, of_kind

pytestmark = pytest.mark.timeout(900)

FEW = 500
REMOVED = 50
BUILT = "built"
CAUGHT_SECONDS = 120.0
HEALED_SECONDS = 240.0
MANY = 20
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

    def list_ends(self, tenant: str, since: datetime) -> list[HistoryEntry]:
        """Return the ends of the tenant's iterations that ended by themselves."""
        entries = self.table.deployment.log.read_history(tenant=tenant, since=since)
        of_table = [each for each in entries if each.name.table == self.table.source.table]
        return [each for each in of_table if each.event in ENDS]

    def list_failures(self, tenant: str, since: datetime) -> list[HistoryEntry]:
        return [each for each in self.list_ends(tenant, since) if each.event is not Event.COMPLETE]


def make_vector(number: int) -> list[float]:
    return [float((number * 31 + n * 7) % 97) for n in range(8)]


@dataclass(kw_only=True)
class Faulty(Deployed):
    """The stack over two tables, and what makes it fail."""

    clickhouse: Stack
    proxy: FaultyClickHouse
    postgres: Any
    disk: Path
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

    def read_reasons(self, run: str) -> str:
        """Return why the run's step failed."""
        errors = [event["error"] for event in self.read_log(run) if event.get("error")]
        chain = (each for error in errors for each in (error, *error["causes"]))
        return "\n".join(each["message"] for each in chain)

    def read_log(self, run: str) -> list[dict[str, Any]]:
        query = (
            "query($id: ID!) { logsForRun(runId: $id) { ... on EventConnection { events {"
            " ... on EngineEvent { metadataEntries { label"
            " ... on TextMetadataEntry { text } ... on IntMetadataEntry { intRepr } } }"
            " ... on ExecutionStepFailureEvent { error { message causes { message } } } } } } }"
        )
        return list(self.dagster.query(query, {"id": run})["logsForRun"]["events"])

    def await_run_after(self, run: str, tenant: str) -> str:
        """Wait for the tenant's next run after that one."""
        wait_for(lambda: self.find_newest(tenant) != [run], CAUGHT_SECONDS, self.told)
        return self.find_newest(tenant)[0]

    def find_newest(self, tenant: str) -> list[str]:
        return [each["runId"] for each in self.runs({TENANT_TAG: tenant}, 1)]

    def materialize(self, tenant: str) -> str:
        """Materialize as a person does."""
        return self.dagster.materialize(["faults", "rows_mirror"], (tenant, tenant), {})

    def launch(self, followed: Followed, iteration: Iteration, dispatch: str) -> str:
        """Launch as the runner's sensor does."""
        (tenant,) = iteration.tenants
        tags = {DISPATCH_TAG: dispatch, TENANT_TAG: tenant, "dagster/partition": tenant}
        return self.dagster.launch(get_sync_job_name(followed.table.source), tags)

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
        disk=ground.disk,
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


def kill_spark(world: Faulty) -> None:
    """Kill Spark; its Python workers go with it."""
    stacks = [world.stack]
    workers = of_kind(stacks, "python daemon") + of_kind(stacks, "python worker")
    kill_service(world, world.stack, SPARK)
    assert workers
    assert not {each.pid for each in living(stacks)} & set(workers)


def test_log_and_spark_are_killed_in_the_middle_of_a_snapshot_and_of_two_tails(world, injected):
    world.proxy.hold()
    world.rows.put("killed")
    world.rows.change(BUILT)
    world.events.put(BUILT)
    runs = world.await_runs(3)
    postgres.kill(world.postgres)
    world.proxy.release()
    assert {world.await_end(run) for run in runs} == {"FAILURE"}
    world.proxy.hold()
    postgres.start_again(world.postgres)
    world.await_runs(2, ended=runs)
    kill_spark(world)
    injected += ["killed log", "killed Spark"]
    world.heal("killed", BUILT)


INSERTS = {
    "rows_mirror__": "error before",
    "rows_text__": "error after",
    "rows_vector__": "silent",
    "events_mirror__": "closed after",
}


def test_inserts_that_fail_until_the_next_iteration_and_once_in_that(world, injected):
    """Those of a snapshot by key, and of a tail without one."""
    since = get_utc_now()
    faults_by_table = {table: [fault] * (ATTEMPTS + 1) for table, fault in INSERTS.items()}
    world.proxy.coming_to |= faults_by_table
    world.events.put(BUILT)
    world.rows.put("fails")
    world.heal("fails", BUILT)
    assert [faults for faults in faults_by_table.values() if faults] == []
    failed = [*world.rows.list_failures("fails", since), *world.events.list_failures(BUILT, since)]
    assert {each.event for each in failed} == {Event.FAIL_TEMPORARY}
    assert len(failed) >= len(INSERTS)


def run_at_once(*works) -> set[str]:
    runs: list[str] = []
    people = [Thread(target=lambda work=work: runs.append(work())) for work in works]
    for person in people:
        person.start()
    for person in people:
        person.join()
    return set(runs)


def await_end_of_one(world: Faulty, runs: set[str], since: datetime) -> tuple[str, str]:
    """Wait until one of two runs ends while the other is in the middle of the iteration.

    Returns the run that ended, and its status.
    """
    assert len(runs) == 2
    (inside,) = world.await_runs(1)
    assert inside in runs
    (other,) = runs - {inside}
    ended = world.await_end(other)
    assert world.status(inside) not in FINISHED
    world.proxy.release()
    assert world.await_end(inside) == "SUCCESS"
    assert {each.actor for each in world.rows.list_ends(BUILT, since)} == {inside}
    return other, ended


@contextmanager
def paused(world: Faulty) -> Iterator[None]:
    """Keep the runner from planning anything."""
    log, jobs = world.rows.table.deployment.log, world.rows.table.jobs()
    for job in jobs:
        log.pause(job.key.tenant, job.name)
    yield
    for job in jobs:
        log.resume(job.key.tenant, job.name)


def test_two_runs_of_one_iteration_then_two_people_who_materialize_at_once(world, injected):
    rows, since = world.rows, get_utc_now()
    with paused(world):
        rows.change(BUILT)
        iteration = rows.table.iteration(BUILT)
        rows.table.deployment.log.enqueue(iteration, "both")
        world.proxy.hold()
        runs = run_at_once(*[lambda: world.launch(rows, iteration, "both")] * 2)
        (copy,) = world.find_newest(BUILT)
        other, ended = await_end_of_one(world, runs, since)
        # The later one is by hand, and fails with the job's owner; the first finds nothing to do.
        assert ended == ("FAILURE" if other == copy else "SUCCESS")

        since = get_utc_now()
        rows.change(BUILT)
        world.proxy.hold()
        runs = run_at_once(*[lambda: world.materialize(BUILT)] * 2)
        _, ended = await_end_of_one(world, runs, since)
        assert ended == "FAILURE"
        injected += ["second run"] * 2
    world.heal(BUILT)


@pytest.fixture
def disk(world):
    if not world.disk.is_mount():
        pytest.skip("only who may mount a file system can fill one")
    return world.disk


def test_a_full_disk_under_the_state_store(world, disk, injected):
    """AFTER cannot be written, and the next iteration cannot read the states."""
    world.proxy.hold()
    world.events.put(BUILT)
    (run,) = world.await_runs(1)
    with full(disk):
        world.proxy.release()
        following = run, world.await_run_after(run, BUILT)
        for each in following:
            assert world.await_end(each) == "FAILURE"
            assert "states.sqlite" in world.read_reasons(each)
            injected.append("full disk")
    world.heal(BUILT)


def name_tenants(many: int) -> list[str]:
    return [f"of {many}, {number:03}" for number in range(many)]


@pytest.mark.parametrize("many", [MANY, pytest.param(300, marks=pytest.mark.soak)])
def test_a_commit_of_many_tenants_outlives_a_run_the_run_server_and_clickhouse(
    world, injected, many
):
    tenants = name_tenants(many)

    def kill_servers(world, _):
        kill_service(world, world.stack, RUNS)
        kill_service(world, world.clickhouse, CLICKHOUSE)

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
    assert 2 <= len(world.runs({TENANTS_TAG: str(many)})) < many / 2


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
        of_many = [each for each in runs if TENANTS_TAG in each["tags"]]
        found[:] = [each for each in of_many if each["status"] == "SUCCESS"]
        return bool(found)

    wait_for(ended, HEALED_SECONDS, world.told)
    return found[0]["runId"], int(found[0]["tags"][TENANTS_TAG])


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
