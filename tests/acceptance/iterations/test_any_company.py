"""Each tenant ends as it would alone, whichever tenants share its iteration or fail."""

from contextlib import closing, suppress
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import Phase as Part
from hypothesis import strategies as st

from iscp_dagster import FullText, Mirror
from iscp_dagster.joblog.iterations import FailedStep
from iscp_dagster.model.batch import Phase
from iscp_dagster.model.errors import KeyColumnError, SchemaError
from iscp_dagster.model.states import JobState
from iscp_dagster.sync.interpreter import iterate
from support.lake.delta_tables import Table
from support.workers.killable import Crash, CrashingProxy, CrashPoint

EVERYONE = "abcde"
COLUMNS = "tenant STRING, id BIGINT, name STRING, n INT"
SPOILT = 999
FAULTS = {"odd": SchemaError.code, "twin": KeyColumnError.code, "null": KeyColumnError.code}
DEATHS = [
    (when, method, number)
    for method, most in {"claim_jobs": 1, "read_fences": 4, "fail": 1, "complete": 2}.items()
    for when in ("before", "after")
    for number in range(1, most + 1)
]
ANY = st.sets(st.sampled_from(EVERYONE), min_size=1)
ONE = st.sampled_from(EVERYONE).map(lambda tenant: {tenant})
STEPS = st.one_of(
    st.tuples(st.just("put"), ANY),
    st.tuples(st.just("change"), ANY),
    st.tuples(st.just("take"), ANY),
    st.tuples(st.just("spoil"), ONE, st.sampled_from(sorted(FAULTS))),
    st.tuples(st.just("mend"), ONE),
    st.tuples(st.just("iterate"), ANY),
    st.tuples(st.just("crash"), ANY, st.sampled_from(DEATHS)),
    st.tuples(st.just("overtake"), ANY, ANY),
    st.tuples(st.just("pause"), ONE),
)


class World:
    """A table of five tenants, and the fault of those that have a bad row."""

    def __init__(self, deployment, buckets):
        indexes = (Mirror(types={"n": "UInt8"}), FullText("name"))
        self.table = Table.make(deployment, *indexes, columns=COLUMNS, buckets=buckets)
        self.spoilt = {}
        self.runs = 0
        self.ids = 0
        self.put(EVERYONE)
        self.table.follow()

    @property
    def run_id(self):
        self.runs += 1
        return f"run {self.runs}"

    def put(self, tenants):
        self.ids += 1
        self.insert(*((each, self.ids, 1) for each in sorted(tenants)))

    def insert(self, *rows):
        told = ", ".join(f"('{tenant}', {id_}, 'some words', {n})" for tenant, id_, n in rows)
        self.table.sql(f"INSERT INTO {{t}} VALUES {told}")

    def change(self, tenants):
        for each in sorted(tenants):
            self.table.sql(
                f"UPDATE {{t}} SET name = 'other {self.runs}' WHERE tenant = '{each}' AND id = 1"
            )

    def take(self, tenants):
        for each in sorted(tenants):
            self.delete(each, f"id = {self.ids} AND id > 1")

    def delete(self, tenant, which):
        self.table.sql(f"DELETE FROM {{t}} WHERE tenant = '{tenant}' AND {which}")

    def spoil(self, tenants, fault):
        """Insert a row that the mirror cannot hold, or no index can."""
        (tenant,) = tenants
        if tenant not in self.spoilt:
            bad = {"odd": (SPOILT, 300), "twin": (1, 1), "null": ("NULL", 1)}
            self.insert((tenant, *bad[fault]))
            self.spoilt[tenant] = fault

    def mend(self, tenants):
        (tenant,) = tenants
        fault = self.spoilt.pop(tenant, None)
        if fault is not None:
            which = {"odd": f"id = {SPOILT}", "twin": "id = 1", "null": "id IS NULL"}
            self.delete(tenant, which[fault])
        if fault == "twin":
            self.insert((tenant, 1, 1))
        if fault is not None and self.is_begun(tenant):
            # What a dead run began is replayed as it was, with the row; a repair reads it whole.
            outcomes = self.table.materialize(tenant, run_id=self.run_id)
            assert {e.code for e in outcomes if isinstance(e, FailedStep)} <= {FAULTS[fault]}

    def is_begun(self, tenant):
        """Whether the log has a batch of the tenant that is not confirmed."""
        batches = [job.batch for job in self.table.jobs() if job.key.tenant == tenant]
        return any(batch is not None and batch.phase is Phase.BEFORE for batch in batches)

    def iterate(self, tenants):
        """Materialize by hand; then all tenants without a bad row are in step."""
        outcomes = self.table.materialize(*sorted(tenants), run_id=self.run_id)
        failed = {e.claim.key.tenant: e.code for e in outcomes if isinstance(e, FailedStep)}
        wrong = {tenant: self.spoilt[tenant] for tenant in tenants & self.spoilt.keys()}
        assert failed == {tenant: FAULTS[fault] for tenant, fault in wrong.items()}
        for job in self.table.jobs():
            if job.key.tenant in tenants - wrong.keys():
                assert job.watermark.version == self.table.version, job
        self.agree(tenants - wrong.keys())

    def due(self, tenants):
        """Return an iteration of tenants that wait for the same commits; None if none waits."""
        stand = {tenant: set() for tenant in tenants}
        for job in self.table.jobs():
            if job.state is JobState.COMPLETED or job.state is JobState.CANCELED:
                stand.get(job.key.tenant, set()).add(job.watermark.version)
            else:
                stand.pop(job.key.tenant, None)
        places = {each for found in stand.values() for each in found}
        lowest = min(places, default=self.table.version)
        alike = sorted(tenant for tenant, found in stand.items() if found == {lowest})
        due = alike and lowest < self.table.version
        return self.table.iteration(*alike) if due else None

    def crash(self, tenants, death):
        """Let a run die at one of its calls to the log, and free what it held."""
        due, deployment = self.due(tenants), self.table.deployment
        if due is None:
            return
        mortal = replace(deployment, log=CrashingProxy(deployment.log, CrashPoint(*death)))
        run_id = self.run_id
        with suppress(Crash):
            [*iterate(mortal, self.table.source, due, run_id=run_id)]
        deployment.log.recover_run_jobs({run_id})

    def overtake(self, tenants, others):
        """Let another run take some jobs of a writing run, and end before that run does."""
        due, log = self.due(tenants), self.table.deployment.log
        if due is None:
            return
        slow = iterate(self.table.deployment, self.table.source, due, run_id=self.run_id)
        with closing(slow):
            next(slow)
            running = [job.key for job in self.table.jobs() if job.state is JobState.RUNNING]
            taken = log.cancel(key for key in running if key.tenant in others)
            gone = {key.tenant for key in taken}
            if gone:
                self.iterate(gone)
            for each in slow:
                assert isinstance(each, FailedStep) or each.claim.key not in taken
        self.agree(gone - self.spoilt.keys())

    def pause(self, tenants):
        """Pause and resume, so that the fence moves."""
        for job in self.table.jobs():
            if job.key.tenant in tenants:
                self.table.deployment.log.pause(job.key.tenant, job.name)
                self.table.deployment.log.resume(job.key.tenant, job.name)

    def agree(self, tenants):
        for each in self.table.verdicts():
            assert each.agrees or each.tenant not in tenants, each


def live_through(deployment, buckets, steps):
    """Do the steps; then mend every tenant, and find all of them in step."""
    world = World(deployment, buckets)
    for name, *what in steps:
        getattr(world, name)(*what)
    for tenant in sorted(world.spoilt):
        world.mend({tenant})
    world.iterate(set(EVERYONE))
    world.table.check()


@pytest.mark.parametrize("buckets", [None, 2], ids=["partitions", "buckets"])
def test_each_tenant_ends_as_it_would_alone(deployment, buckets):
    steps = [
        ("take", set(EVERYONE)),
        ("spoil", {"b"}, "null"),
        ("crash", set(EVERYONE), ("before", "complete", 1)),
        ("pause", {"c"}),
        ("put", {"a", "c", "d"}),
        ("spoil", {"a"}, "odd"),
        ("overtake", set("acd"), {"a", "c"}),
        ("mend", {"b"}),
        ("change", {"a", "b", "e"}),
        ("spoil", {"e"}, "twin"),
        ("crash", set("bcde"), ("after", "complete", 1)),
        ("iterate", set(EVERYONE)),
    ]
    live_through(deployment, buckets, steps)


@pytest.mark.soak
@settings(
    max_examples=12,
    deadline=None,
    # No shrinking: it takes minutes.
    phases=[Part.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(buckets=st.sampled_from([None, 2]), steps=st.lists(STEPS, min_size=4, max_size=10))
def test_each_tenant_ends_as_it_would_alone_whatever_happens(deployment, buckets, steps):
    live_through(deployment, buckets, steps)
