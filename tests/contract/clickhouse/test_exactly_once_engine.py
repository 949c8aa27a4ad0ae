"""Batches with crashes at every point, writes by zombies, and inserts held by the network."""

from __future__ import annotations

import itertools
import secrets
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from iscp_dagster import Mirror, SourceTable
from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.clickhouse.connect.failures import OvertakenError
from iscp_dagster.clickhouse.tables.indexes import IndexStore
from iscp_dagster.clickhouse.tables.staging import make_attempt_id
from iscp_dagster.clickhouse.write.consumer import IndexConsumer
from iscp_dagster.clickhouse.write.inserts import ATTEMPTS
from iscp_dagster.joblog.iterations import Iteration
from iscp_dagster.model.batch import BatchAction
from iscp_dagster.model.consumers.protocol import DataType
from iscp_dagster.model.declared.schema import SYSTEM_COLUMNS, DeltaField, Primitive
from iscp_dagster.model.errors import UnavailableError
from iscp_dagster.model.jobs import JobID, JobKey
from iscp_dagster.model.moment import START, Moment
from iscp_dagster.model.specs import ConsumerInfo, IterationDetail, JobSpec
from iscp_dagster.sync.executors.retriever import ConsumerScan
from iscp_dagster.sync.executors.writer import TaskWriter
from iscp_dagster.sync.writing.index_claims import ConsumerClaims
from support.jobs.log_rows import advance, complete, log_in_memory
from support.lake.row_writer import built, check_staged, put_in_place
from support.services.fault_proxy import LATE, FaultyClickHouse

pytestmark = pytest.mark.slow

POINTS = (
    "before BEFORE",
    "after BEFORE",
    "mid-chunk",
    "after write",
    "before AFTER",
    "after AFTER",
)
ROWS = 5
"""Rows a version."""
KEY = JobKey(tenant="a", table_id="t", job_name="mirror")
FIELDS = (
    DeltaField(name="tenant", type=Primitive("string")),
    DeltaField(name="n", type=Primitive("long")),
    DeltaField(name="v", type=Primitive("string")),
)
NUMBERS = itertools.count()


class CrashError(Exception):
    """The run is killed here."""


class OneJob:
    """One index of one tenant, its job, and a source of `ROWS` rows per version.

    Runs go through `proxy`.
    """

    def __init__(
        self, endpoint: Endpoint, *, append: bool, proxy: FaultyClickHouse | None = None
    ) -> None:
        self.proxy, self.gone = proxy, set[int]()
        key = () if append else "n"
        name = JobID(db="once", table=f"t{next(NUMBERS)}", job="mirror")
        index = Mirror(append=append)
        source = SourceTable(f"once.{name.table}", key=key, tenant="tenant", indexes=[index])
        self.store = built(endpoint, source, index, FIELDS)
        self.log, self.written, self.runs = log_in_memory(), 0, itertools.count()
        info = ConsumerInfo(type="mirror", db=name.db, table=name.table, job=name.job)
        spec = JobSpec(detail=IterationDetail(consumer=info))
        self.log.register(KEY.tenant, name, KEY.table_id, spec)
        (claim,) = self.log.begin(self.iteration(START, 0), "first", {})
        complete(self.log, claim, Moment(0), {})
        self.entered = self.store
        self.attempts: list[tuple] = []
        self.crashes: list[str | None] = []

    def iteration(self, from_: Moment, to: int) -> Iteration:
        tenant = frozenset({KEY.tenant})
        return Iteration(table_id="t", tenants=tenant, jobs=(KEY,), from_=from_, to=Moment(to))

    def deliver(self, to: int, point: str | None, cut: int) -> None:
        """Run once, up to `point`."""
        run, held = f"run-{next(self.runs)}", self.log.find_job(KEY)
        if held.watermark.version >= to:
            return
        if held.watermark == START:
            self.build(deletes=0, dies=False)
            return

        def at(here: str) -> None:
            if here == point:
                raise CrashError

        try:
            at("before BEFORE")
            layout = {"rows_per_chunk": 1 + cut % 4, "build": secrets.token_hex(4)}
            (claim,) = self.log.begin(self.iteration(held.watermark, to), run, layout)
            at("after BEFORE")
            sink = ConsumerClaims(log=self.log, claims=[claim])
            if before := sink.left_unconfirmed:
                self.entered = self.store.take_over(before, sink.list_live_runs)
            else:
                self.entered = self.store.enter()
            while True:
                step = claim.step
                if step.action is not BatchAction.SKIP:
                    self.attempts.append((step.range, step.layout, self.entered))
                    self.write(*self.attempts[-1], cut if point == "mid-chunk" else None)
                at("after write")
                at("before AFTER")
                if claim.last:
                    break
                claim = advance(self.log, claim, {})
            complete(self.log, claim, claim.range.to, {})
            at("after AFTER")
        except CrashError:
            self.crashes.append(point)
            self.log.recover({run})

    def build(self, *, deletes: int, dies: bool) -> None:
        """Run once from a snapshot, after the source has lost some rows."""
        self.gone |= set(range(ROWS, ROWS + deletes))
        self.log.rebuild([KEY])
        run = f"run-{next(self.runs)}"
        (claim,) = self.log.begin(self.iteration(START, self.written), run, {})
        sink = ConsumerClaims(log=self.log, claims=[claim])
        store = replace(self.store, attempt=make_attempt_id(run))
        store = store.take_over(sink.list_written_tenants(), sink.list_live_runs)
        store.stage()
        count = self.written * ROWS - len(self.gone)
        try:
            self.write(claim.range, {"build": run}, store, staged=True)
            check_staged(store, "a", version=self.written, rows=count)
        except CrashError:
            dies = True
        if dies:
            self.log.recover({run})
            return
        put_in_place(store, "a", rows=count, version=self.written, registration=claim.registration)
        complete(self.log, claim, Moment(self.written), {})
        store.drop_staging_table()

    def write(
        self, range_, layout, store: IndexStore, cut: int | None = None, *, staged: bool = False
    ) -> None:
        """Write as a Spark task does, but only the first `cut` batches if given."""
        target = store.target(staged=staged)
        endpoint = Endpoint.parse(self.proxy.url) if self.proxy else self.store.endpoint
        share = ConsumerScan(
            job=target.job,
            registrations={KEY.tenant: self.log.find_job(KEY).registration},
            range=range_,
            data_type=DataType.SNAPSHOT if staged else DataType.TAIL,
            columns=target.columns,
            identity=target.columns,
            tenant_column="tenant",
            build=layout["build"],
            consumer=IndexConsumer(endpoint=endpoint, target=target, sleep=lambda _: None),
        )
        writer = TaskWriter(
            shares=[share],
            keys=target.keys,
            rows_per_chunk=layout.get("rows_per_chunk"),
            stamp=(range_.to.version, 0) if staged else None,
            sleep=lambda _: None,
        )
        there = rows(range_)
        if staged:
            gone = pa.array(sorted(self.gone | set(range(ROWS))), pa.int64())
            there = there.filter(pc.invert(pc.is_in(there["n"], value_set=gone))).drop_columns(
                [*SYSTEM_COLUMNS]
            )

        def batches():
            for number, batch in enumerate(there.to_batches(max_chunksize=3)):
                if number == cut:
                    raise CrashError
                yield batch

        codes = {each.code for each in writer(0, batches())}
        if self.proxy and codes - {0}:
            assert codes == {UnavailableError.code}
            raise CrashError
        assert codes <= self.allowed

    allowed = frozenset({0})

    def zombie(self, which: int) -> None:
        """Let an earlier attempt go on where it stopped; if it was taken over, it is refused."""
        if self.attempts:
            self.allowed = frozenset({0, OvertakenError.code})
            self.write(*self.attempts[which % len(self.attempts)])
            self.allowed = frozenset({0})

    def check(self) -> None:
        """Check that every row of the source is stored exactly once, with its value."""
        self.deliver(self.written, None, 0)
        there = set(range(ROWS, (self.written + 1) * ROWS)) - self.gone
        expected = Counter((n, f"value {n}") for n in there)
        final = "" if self.store.shape.index.append else "FINAL"
        name = self.store.shape.qualify_name(self.store.shape.rows)
        client = self.store.endpoint.get_client()
        found = client.query(f"SELECT n, v FROM {name} {final}").result_rows
        assert Counter(map(tuple, found)) == expected
        counted = client.query(f"SELECT count(), uniqExact(n) FROM {name} {final}").result_rows
        assert counted == [(len(expected), len(expected))]
        client.command(f"DROP TABLE {name} SYNC")


def rows(range_) -> pa.Table:
    versions = range(range_.from_.version + 1, range_.to.version + 1)
    numbers = [version * ROWS + each for version in versions for each in range(ROWS)]
    count = len(numbers)
    return pa.table(
        {
            "tenant": pa.array(["a"] * count, pa.string()),
            "n": pa.array(numbers, pa.int64()),
            "v": pa.array([f"value {n}" for n in numbers], pa.string()),
            "_version": pa.array([n // ROWS for n in numbers], pa.int64()),
            "_timestamp": pa.array([0] * count, pa.int64()),
            "_deleted": pa.array([False] * count, pa.bool_()),
        }
    )


@pytest.fixture(scope="module")
def endpoint(clickhouse_url):
    return Endpoint.parse(clickhouse_url)


STEPS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.none() | st.sampled_from(POINTS),
        st.integers(0, 6),
        st.none() | st.integers(0, 9),
    ),
    max_size=8,
)


@pytest.mark.parametrize("append", [True, False], ids=["append-only", "keyed"])
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS)
def test_whatever_dies_where_and_whoever_writes_again_each_row_is_there_once(
    endpoint, append, steps
):
    world = OneJob(endpoint, append=append)
    for more, point, cut, zombie in steps:
        world.written += more
        world.deliver(world.written, point, cut)
        if zombie is not None:
            world.zombie(zombie)
    for point in world.crashes:
        event(str(point))
    world.check()


HELD_STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["writes", "is held", "builds", "dies building"]),
        st.integers(0, 3),
        st.booleans(),
    ),
    max_size=8,
)


@pytest.mark.parametrize("append", [True, False], ids=["append-only", "keyed"])
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=HELD_STEPS)
def test_whenever_a_held_insert_lands_each_row_is_there_once(endpoint, proxy, append, steps):
    """It lands at any later moment: before its heir's, after it, or after tenants are rebuilt."""
    world = OneJob(endpoint, append=append, proxy=proxy)
    proxy.land()
    for more, what, number, lands in steps:
        world.written += more
        if what in {"builds", "dies building"} and world.written:
            world.build(deletes=number, dies=what == "dies building")
        if what == "is held":
            proxy.coming[:] = [LATE] * (ATTEMPTS * 10)
        world.deliver(world.written, None, number)
        proxy.coming.clear()
        if lands:
            event(f"{min(len(proxy.land()), 3)} land")
    world.deliver(world.written, None, 0)
    proxy.land()
    world.check()


@pytest.mark.parametrize("append", [True, False], ids=["append-only", "keyed"])
@pytest.mark.parametrize("point", POINTS)
def test_a_run_that_dies_is_followed_by_its_heir_and_its_zombie(endpoint, append, point):
    world = OneJob(endpoint, append=append)
    for cut in (1, 2, 3):
        world.written += 2
        world.deliver(world.written, point, cut)
        world.zombie(cut)
    assert world.crashes == [point] * 3
    world.check()
