"""Batches with crashes at every point, writes by zombies, and inserts held by the network."""

from __future__ import annotations

import itertools
import secrets
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iscp_dagster import Mirror
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.connect.failures import OvertakenError
from iscp_dagster.clickhouse.tables.index_store import IndexStore
from iscp_dagster.clickhouse.tables.staging import make_attempt_id
from iscp_dagster.clickhouse.write import inserts
from iscp_dagster.clickhouse.write.consumer import IndexConsumer
from iscp_dagster.joblog.iterations import Iteration
from iscp_dagster.model.batch import BatchAction
from iscp_dagster.model.consumers.protocol import DataType
from iscp_dagster.model.declared.schema import SYSTEM_COLUMNS
from iscp_dagster.model.errors import UnavailableError
from iscp_dagster.model.jobs import JobID, JobKey
from iscp_dagster.model.moment import START, Moment
from iscp_dagster.model.specs import ConsumerInfo, IterationDetail, JobSpec
from iscp_dagster.sync.executors.retriever import ConsumerScan
from iscp_dagster.sync.executors.writer import TaskWriter
from iscp_dagster.sync.writing.consumer_claims import ConsumerClaims
from support.jobs.log_rows import advance, complete, log_in_memory
from support.lake.row_writer import (
    add_system_columns,
    build_store,
    check_staged,
    make_fields,
    make_source,
    put_in_place,
    query,
)
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
ROWS = 3
"""Rows a version; a batch has two."""
KEY = JobKey(tenant="a", table_id="t", job_name="mirror")
FIELDS = make_fields(tenant="string", n="long", v="string")


class CrashError(Exception):
    """The run is killed here."""


class OneJob:
    """One index of one tenant, its job, and a source of `ROWS` rows per version.

    Runs go through `proxy`.
    """

    def __init__(
        self,
        endpoint: ClickHouseEndpoint,
        *,
        append: bool,
        buckets: int | None = None,
        proxy: FaultyClickHouse | None = None,
    ) -> None:
        self.proxy, self.deleted = proxy, set[int]()
        index = Mirror(append=append)
        key = () if append else "n"
        source = make_source("once", key=key, buckets=buckets, indexes=[index])
        name = JobID(db=source.database, table=source.table, job="mirror")
        self.store = build_store(endpoint, source, index, FIELDS)
        self.log, self.version, self.runs = log_in_memory(), 0, itertools.count()
        info = ConsumerInfo(type="mirror", db=name.db, table=name.table, job=name.job)
        spec = JobSpec(detail=IterationDetail(consumer=info))
        self.log.register(KEY.tenant, name, KEY.table_id, spec)
        (claim,) = self.log.claim_jobs(self.iteration(START, 0), "first", {})
        complete(self.log, claim, Moment(0), {})
        self.entered = self.store
        self.attempts: list[tuple] = []
        self.crashes: list[str | None] = []

    def iteration(self, from_: Moment, to: int) -> Iteration:
        tenant = frozenset({KEY.tenant})
        return Iteration(table_id="t", tenants=tenant, jobs=(KEY,), from_=from_, to=Moment(to))

    def deliver(self, point: str | None, cut: int) -> None:
        """Run once up to the source's version, or up to `point`."""
        run, job = f"run-{next(self.runs)}", self.log.find_job(KEY)
        if job.watermark.version >= self.version:
            return
        if job.watermark == START:
            self.build(deletes=0, dies=False)
            return

        def crash_at(place: str) -> None:
            if place == point:
                raise CrashError

        try:
            crash_at("before BEFORE")
            layout = {"rows_per_chunk": 1 + cut % 4, "build": secrets.token_hex(4)}
            (claim,) = self.log.claim_jobs(self.iteration(job.watermark, self.version), run, layout)
            crash_at("after BEFORE")
            claims = ConsumerClaims(log=self.log, claims=[claim])
            if before := claims.left_unconfirmed:
                self.entered = self.store.take_over(before, claims.list_live_runs)
            else:
                self.entered = self.store.refresh_epochs()
            while True:
                step = claim.step
                if step.action is not BatchAction.SKIP:
                    self.attempts.append((step.range, step.layout, self.entered))
                    self.write(*self.attempts[-1], cut if point == "mid-chunk" else None)
                crash_at("after write")
                crash_at("before AFTER")
                if claim.last:
                    break
                claim = advance(self.log, claim, {})
            complete(self.log, claim, claim.range.to, {})
            crash_at("after AFTER")
        except CrashError:
            self.crashes.append(point)
            self.log.recover_run_jobs({run})

    def build(self, *, deletes: int, dies: bool) -> None:
        """Run once from a snapshot, after the source has lost some rows."""
        self.deleted |= set(range(ROWS, ROWS + deletes))
        self.log.rebuild([KEY])
        run = f"run-{next(self.runs)}"
        (claim,) = self.log.claim_jobs(self.iteration(START, self.version), run, {})
        claims = ConsumerClaims(log=self.log, claims=[claim])
        store = replace(self.store, attempt=make_attempt_id(run))
        store = store.take_over(claims.list_maybe_written_tenants(), claims.list_live_runs)
        store.create_staging_table()
        count = len(self.list_numbers())
        try:
            self.write(claim.range, {"build": run}, store, staged=True)
            check_staged(store, "a", version=self.version, rows=count)
        except CrashError:
            dies = True
        if dies:
            self.log.recover_run_jobs({run})
            return
        put_in_place(store, "a", rows=count, version=self.version, registration=claim.registration)
        complete(self.log, claim, Moment(self.version), {})
        store.drop_staging_table()

    def write(
        self, range_, layout, store: IndexStore, cut: int | None = None, *, staged: bool = False
    ) -> None:
        """Write as a Spark task does, but only the first `cut` batches if given."""
        target = store.make_target(staged=staged)
        endpoint = ClickHouseEndpoint.parse(self.proxy.url) if self.proxy else self.store.endpoint
        scan = ConsumerScan(
            job=target.job,
            registrations={KEY.tenant: self.log.find_job(KEY).registration},
            range=range_,
            data_type=DataType.SNAPSHOT if staged else DataType.TAIL,
            columns=target.columns,
            delete_columns=target.columns,
            tenant_column="tenant",
            batch_name=layout["build"],
            consumer=IndexConsumer(endpoint=endpoint, target=target, sleep=lambda _: None),
        )
        writer = TaskWriter(
            scans=[scan],
            keys=target.keys,
            rows_per_chunk=layout.get("rows_per_chunk"),
            stamp=(range_.to.version, 0) if staged else None,
            sleep=lambda _: None,
        )
        table = rows(range_)
        if staged:
            live = pa.array(sorted(self.list_numbers()), pa.int64())
            table = table.filter(pc.is_in(table["n"], value_set=live))
            table = table.drop_columns([*SYSTEM_COLUMNS])

        def batches():
            for number, batch in enumerate(table.to_batches(max_chunksize=2)):
                if number == cut:
                    raise CrashError
                yield batch

        codes = {receipt.code for receipt in writer(0, batches())}
        if self.proxy and codes - {0}:
            assert codes == {UnavailableError.code}
            raise CrashError
        assert codes <= self.allowed

    allowed = frozenset({0})

    def wake_zombie(self, which: int) -> None:
        """Let an earlier attempt go on where it stopped; if it was taken over, it is refused."""
        if self.attempts:
            self.allowed = frozenset({0, OvertakenError.code})
            self.write(*self.attempts[which % len(self.attempts)])
            self.allowed = frozenset({0})

    def list_numbers(self) -> set[int]:
        """Return the `n` of every row of the source."""
        return set(range(ROWS, (self.version + 1) * ROWS)) - self.deleted

    def check(self) -> None:
        """Check that every row of the source is stored exactly once, with its value."""
        self.deliver(None, 0)
        final = "" if self.store.shape.index.append else "FINAL"
        stored = query(self.store, f"SELECT n, v FROM {{rows}} {final}")
        assert Counter(stored) == Counter((n, f"value {n}") for n in self.list_numbers())
        name = self.store.shape.qualify_name(self.store.shape.rows)
        self.store.endpoint.get_client().command(f"DROP TABLE {name} SYNC")


def rows(range_) -> pa.Table:
    numbers = range((range_.from_.version + 1) * ROWS, (range_.to.version + 1) * ROWS)
    table = {
        "tenant": pa.array(["a"] * len(numbers), pa.string()),
        "n": pa.array(numbers, pa.int64()),
        "v": pa.array([f"value {n}" for n in numbers], pa.string()),
    }
    return add_system_columns(table, version=[n // ROWS for n in numbers], micros=0)


PLACED = [{"append": True}, {"append": False}, {"append": False, "buckets": 2}]
PLACED_NAMES = ["append-only", "keyed", "in buckets"]

STEPS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.none() | st.sampled_from(POINTS),
        st.integers(0, 6),
        st.none() | st.integers(0, 9),
    ),
    min_size=3,
    max_size=8,
)


@pytest.mark.soak
@settings(max_examples=12)
@given(placed=st.sampled_from(PLACED), steps=STEPS)
def test_whatever_dies_where_and_whoever_writes_again_each_row_is_there_once(
    endpoint, placed, steps
):
    world = OneJob(endpoint, **placed)
    for more, point, cut, zombie in steps:
        world.version += more
        world.deliver(point, cut)
        if zombie is not None:
            world.wake_zombie(zombie)
    world.check()


HELD_STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["writes", "is held", "builds", "dies building"]),
        st.integers(0, 3),
        st.booleans(),
    ),
    min_size=3,
    max_size=8,
)
LATER_THAN_ALL = [
    (2, "writes", 0, False),
    (1, "is held", 1, False),
    (1, "writes", 0, True),
    (1, "is held", 1, False),
    (0, "builds", 2, True),
    (1, "is held", 1, False),
    (0, "dies building", 1, False),
    (0, "builds", 0, True),
]
"""Held inserts land after their heirs', after a build, and after a build whose run has died."""


@pytest.mark.soak
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(placed=st.sampled_from(PLACED), steps=HELD_STEPS)
def test_whenever_a_held_insert_lands_each_row_is_there_once(
    endpoint, proxy, monkeypatch, placed, steps
):
    """It lands at any later moment: before its heir's, after it, or after tenants are rebuilt."""
    go_through(endpoint, proxy, monkeypatch, placed, steps)


@pytest.mark.parametrize("placed", [PLACED[0], PLACED[2]], ids=[PLACED_NAMES[0], PLACED_NAMES[2]])
def test_held_inserts_that_land_later_than_all_others_add_no_row(
    endpoint, proxy, monkeypatch, placed
):
    go_through(endpoint, proxy, monkeypatch, placed, LATER_THAN_ALL)


def go_through(endpoint, proxy, monkeypatch, placed, steps):
    """Write, hold, build and die as the steps say; check that each row is there once."""
    monkeypatch.setattr(inserts, "ATTEMPTS", 2)
    world = OneJob(endpoint, **placed, proxy=proxy)
    proxy.land()
    for more, what, number, lands in steps:
        world.version += more
        if what in {"builds", "dies building"} and world.version:
            world.build(deletes=number, dies=what == "dies building")
        if what == "is held":
            proxy.coming[:] = [LATE] * 20
        world.deliver(None, number)
        proxy.coming.clear()
        if lands:
            proxy.land()
    world.deliver(None, 0)
    proxy.land()
    world.check()


CRASHES = [(point, 1 + number % 3) for number, point in enumerate(POINTS)]
CRASHES += [("mid-chunk", cut) for cut in (1, 2)]


@pytest.mark.parametrize("placed", PLACED, ids=PLACED_NAMES)
def test_a_run_that_dies_is_followed_by_its_heir_and_its_zombie(endpoint, placed):
    """It dies at every point, and in mid-chunk after one, two and three batches."""
    world = OneJob(endpoint, **placed)
    for point, cut in CRASHES:
        world.version += 3
        world.deliver(point, cut)
        world.wake_zombie(cut)
    assert world.crashes == [point for point, _ in CRASHES]
    world.check()
