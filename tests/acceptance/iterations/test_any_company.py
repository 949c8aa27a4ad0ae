"""Each tenant ends as it would alone, whichever are iterated together and whichever fail."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tables import Table, one_by_one, publish_one

from iscp_dagster import FullText, Mirror
from iscp_dagster.joblog.iterations import Failed
from iscp_dagster.model.errors import FenceError, SchemaError
from iscp_dagster.model.states import JobState
from iscp_dagster.sync.publish import Delivery

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EVERYONE = "abcde"
COLUMNS = "tenant STRING, id BIGINT, name STRING, n INT"
SPOILT = 999
ANY = st.sets(st.sampled_from(EVERYONE), min_size=1)
ONE = st.sampled_from(EVERYONE).map(lambda tenant: {tenant})
STEPS = st.one_of(
    st.tuples(st.just("put"), ANY),
    st.tuples(st.just("change"), ANY),
    st.tuples(st.just("take"), ANY),
    st.tuples(st.just("spoil"), ONE),
    st.tuples(st.just("mend"), ONE),
    st.tuples(st.just("iterate"), ANY),
    st.tuples(st.just("die after"), ANY, st.integers(0, 4)),
    st.tuples(st.just("overtake"), ANY, ANY),
    st.tuples(st.just("pause"), ONE),
)


class World:
    """A table of five tenants, and which of them have a bad row."""

    def __init__(self, deployment):
        mirror = Mirror(types={"n": "UInt8"})
        self.table = Table.make(deployment, mirror, FullText("name"), columns=COLUMNS)
        self.spoilt = set()
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
        rows = ", ".join(f"('{each}', {self.ids}, 'some words', 1)" for each in sorted(tenants))
        self.table.sql(f"INSERT INTO {{t}} VALUES {rows}")

    def change(self, tenants):
        for each in sorted(tenants):
            self.table.sql(
                f"UPDATE {{t}} SET name = 'other {self.runs}' WHERE tenant = '{each}' AND id = 1"
            )

    def take(self, tenants):
        for each in sorted(tenants):
            self.table.sql(f"DELETE FROM {{t}} WHERE tenant = '{each}' AND id = {self.ids}")

    def spoil(self, tenants):
        """Insert a row that the mirror cannot hold."""
        (tenant,) = tenants
        if tenant not in self.spoilt:
            self.table.sql(f"INSERT INTO {{t}} VALUES ('{tenant}', {SPOILT}, 'odd', 300)")
            self.spoilt.add(tenant)

    def mend(self, tenants):
        (tenant,) = tenants
        self.table.sql(f"DELETE FROM {{t}} WHERE tenant = '{tenant}' AND id = {SPOILT}")
        self.spoilt -= tenants

    def iterate(self, tenants):
        """Materialize by hand: then all but the spoilt tenants are in step."""
        outcomes = self.table.materialize(*sorted(tenants), run_id=self.run_id)
        failed = {e.claim.key.tenant: e.code for e in outcomes if isinstance(e, Failed)}
        assert failed == dict.fromkeys(tenants & self.spoilt, SchemaError.code)
        for job in self.table.jobs():
            if job.key.tenant in tenants - self.spoilt:
                assert job.watermark.version == self.table.version, job
        self.agree(tenants - self.spoilt)

    def begun(self, tenants):
        """Begin an iteration of those that wait for the same commits; return its outcomes."""
        stand = {tenant: set() for tenant in tenants}
        for job in self.table.jobs():
            if job.state is JobState.COMPLETED or job.state is JobState.CANCELED:
                stand.get(job.key.tenant, set()).add(job.watermark.version)
            else:
                stand.pop(job.key.tenant, None)
        places = {each for found in stand.values() for each in found}
        lowest = min(places, default=self.table.version)
        alike = sorted(tenant for tenant, found in stand.items() if found == {lowest})
        if not alike or lowest >= self.table.version:
            return iter(())
        iteration = self.table.iteration(*alike)
        table = self.table
        return one_by_one(table.deployment, table.source, iteration, run_id=self.run_id)

    def die_after(self, tenants, outcomes):
        """Let a run die after `outcomes` outcomes, in the middle of serving."""
        found = self.begun(tenants)
        for each in islice(found, outcomes):
            if isinstance(each, Delivery):
                publish_one(self.table.deployment, each)
        getattr(found, "close", list)()
        self.table.deployment.log.recover({f"run {self.runs}"})

    def overtake(self, tenants, others):
        """Let a run lose some of its jobs while it writes; the others are served."""
        found = self.begun(tenants)
        lost = {job.key for job in self.table.jobs() if job.key.tenant in others}
        taken = False
        for each in found:
            if not taken:
                running = [j.key for j in self.table.jobs() if j.state is JobState.RUNNING]
                self.table.deployment.log.cancel([key for key in running if key in lost])
                taken = True
            if isinstance(each, Delivery):
                try:
                    publish_one(self.table.deployment, each)
                except FenceError:
                    assert each.claim.key in lost

    def pause(self, tenants):
        """Pause and resume, so that the fence moves."""
        for job in self.table.jobs():
            if job.key.tenant in tenants:
                self.table.deployment.log.pause(job.key.tenant, job.name)
                self.table.deployment.log.resume(job.key.tenant, job.name)

    def agree(self, tenants):
        for each in self.table.verdicts():
            assert each.agrees or each.tenant not in tenants, each


@settings(
    max_examples=6,
    deadline=None,
    # No shrinking: it takes minutes.
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(STEPS, min_size=4, max_size=10))
def test_each_tenant_ends_as_it_would_alone(deployment, steps):
    world = World(deployment)
    for name, *what in steps:
        getattr(world, name.replace(" ", "_"))(*what)
    for tenant in sorted(world.spoilt):
        world.mend({tenant})
    world.iterate(set(EVERYONE))
    world.table.check()
