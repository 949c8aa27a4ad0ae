"""An iteration of many tenants: one scan, few statements, and each tenant's fault its own."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager, nullcontext
from typing import ClassVar

import pytest
import sqlalchemy as sa
from tables import Table, one_by_one, publish_one

from iscp_dagster import FullText, Mirror, Vector
from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.clickhouse.connect.failures import ClickHouseError
from iscp_dagster.delta.feed import ReadKind
from iscp_dagster.joblog.iterations import Failed
from iscp_dagster.model.errors import FenceError, KeyColumnError, ReadError, SchemaError
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.specs import ConsumerInfo, IterationDetail, JobSpec
from iscp_dagster.model.states import JobState
from iscp_dagster.sync import scan
from iscp_dagster.sync.iterate import iterate
from iscp_dagster.sync.publish import Delivery
from iscp_dagster.sync.reader import Reader

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MANY = [f"t{number:03d}" for number in range(130)]
BAD = "t4"
SOME = [f"t{number}" for number in range(9)]


def fill(table, tenants, *ids, values="'some words', array(1.0, 2.0)"):
    rows = ", ".join(f"('{tenant}', {id_}, {values})" for tenant in tenants for id_ in ids)
    table.sql(f"INSERT INTO {{t}} VALUES {rows}")


@contextmanager
def counted(deployment, monkeypatch):
    """Count the statements sent to the ISCP log and to ClickHouse."""
    found = Counter()
    client = Endpoint.client

    class Counting:
        def __init__(self, held):
            self._held = held

        def __getattr__(self, name):
            if name in {"query", "command", "raw_insert", "insert_arrow", "query_arrow"}:
                found["clickhouse"] += 1
            return getattr(self._held, name)

    def executed(*_):
        found["log"] += 1

    with monkeypatch.context() as patched:
        patched.setattr(Endpoint, "client", lambda endpoint: Counting(client(endpoint)))
        sa.event.listen(deployment.log.engine, "before_cursor_execute", executed)
        try:
            yield found
        finally:
            sa.event.remove(deployment.log.engine, "before_cursor_execute", executed)


def asked(deployment, monkeypatch, tenants):
    """Return the number of statements of a first iteration, and of one that changes all tenants."""
    table = Table.make(deployment, Mirror(), FullText("name"))
    counts = []
    for version in (1, 2):
        fill(table, tenants, version)
        iteration = table.iteration(*tenants)
        with counted(deployment, monkeypatch) as found:
            outcomes = list(iterate(deployment, table.source, iteration, run_id="run"))
        assert len(outcomes) == 2 * len(tenants)
        assert not [each for each in outcomes if isinstance(each, Failed)]
        counts.append(dict(found))
    table.check()
    return counts


def test_the_number_of_statements_depends_on_indexes_and_not_on_tenants(deployment, monkeypatch):
    # Off: the guard of a scan asks every two seconds, so its number depends on the time taken.
    monkeypatch.setattr(scan, "interruptible", lambda *_: nullcontext())
    asked(deployment, monkeypatch, MANY[:1])
    few = asked(deployment, monkeypatch, MANY[:3])
    # A request takes a hundred names.
    many = asked(deployment, monkeypatch, MANY[:90])
    assert few == many


def ended(table, outcomes):
    """Return the failures by tenant and index; all others must be delivered and in step."""
    wrong = {
        (each.claim.key.tenant, each.claim.key.job_name): each.code
        for each in outcomes
        if isinstance(each, Failed)
    }
    behind = {
        (job.key.tenant, job.key.job_name)
        for job in table.jobs()
        if job.watermark.version < table.version or job.state is not JobState.COMPLETED
    }
    assert behind == set(wrong)
    assert len(outcomes) == len(table.jobs())
    return wrong


FAULTS = {
    "a vector of the wrong length": (
        Vector("v", dimension=2),
        "'x', array(1.0)",
        SchemaError.code,
    ),
    "a vector that leads nowhere": (
        Vector("v", dimension=2),
        "'x', array('NaN', 1.0)",
        SchemaError.code,
    ),
    "a null key": (Mirror(), None, KeyColumnError.code),
}


@pytest.mark.parametrize("read", ["snapshot", "tail"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_row_that_is_refused_stops_its_tenant_alone(deployment, fault, read):
    index, values, code = FAULTS[fault]
    table = Table.make(deployment, index, FullText("name"), key=("id", "name"))
    if read == "tail":
        fill(table, SOME, 1)
        table.run(table.iteration(*SOME))
    fill(table, [tenant for tenant in SOME if tenant != BAD], 2)
    if values is None:
        fill(table, [BAD], 2, values="NULL, array(1.0, 2.0)")
    else:
        fill(table, [BAD], 2, values=values)
    outcomes = table.run(table.iteration(*SOME))
    wrong = ended(table, outcomes)
    names = {index.name} if values else {index.name, "text"}
    assert wrong == {(BAD, name): code for name in names}
    message = next(each.message for each in outcomes if isinstance(each, Failed))
    assert table.source.name in message
    # Each is charged its own rows.
    held = {job.key.tenant: job.status.counts for job in table.jobs() if job.key.tenant != BAD}
    assert {counts["inserted"] for counts in held.values()} == {1}
    assert len({counts["bytes"] for counts in held.values()}) == 1
    table.sql("DELETE FROM {t} WHERE tenant = 't4' AND id = 2")
    assert not [each for each in table.materialize(BAD) if isinstance(each, Failed)]
    table.follow()
    table.check()


def test_what_clickhouse_refuses_without_saying_whose_it_is_stops_that_tenant_alone(deployment):
    """The error code is not among those known to concern a row."""
    table = Table.make(deployment, Mirror(), FullText("name"))
    fill(table, SOME, 1)
    table.run(table.iteration(*SOME))
    rows = table.view(table.source.indexes[0], "__rows")
    deployment.endpoint.client().command(
        f"ALTER TABLE {rows} ADD CONSTRAINT odd CHECK "
        f"throwIf(tenant = '{BAD}' AND id = 2, 'not this one') = 0"
    )
    fill(table, SOME, 2)
    outcomes = table.run(table.iteration(*SOME))
    assert ended(table, outcomes) == {(BAD, "mirror"): ClickHouseError.code}


def test_a_twin_makes_its_tenant_alone_be_read_whole(deployment):
    table = Table.make(deployment, Mirror(), FullText("name"))
    fill(table, SOME, 1)
    table.run(table.iteration(*SOME))
    fill(table, SOME, 2)
    fill(table, [BAD], 1)
    outcomes = table.run(table.iteration(*SOME))
    whole = {
        each.tenant
        for each in outcomes
        if isinstance(each, Delivery) and each.plan.kind is ReadKind.SNAPSHOT
    }
    # The tenant then has one key twice.
    assert whole == set()
    assert ended(table, outcomes) == {
        (BAD, "mirror"): KeyColumnError.code,
        (BAD, "text"): KeyColumnError.code,
    }
    table.sql("DELETE FROM {t} WHERE tenant = 't4' AND id = 1")
    fill(table, [BAD], 1)
    deployment.log.repair([job.key for job in table.jobs()])
    found = table.run(table.iteration(BAD))
    assert {each.plan.kind for each in found} == {ReadKind.SNAPSHOT}
    table.check()


def test_a_job_that_is_taken_meanwhile_is_not_served_and_the_others_are(deployment):
    table = Table.make(deployment, Mirror(), FullText("name"))
    fill(table, SOME, 1)
    with_mirror = {}
    for each in one_by_one(deployment, table.source, table.iteration(*SOME), run_id="slow"):
        if not with_mirror:
            taken = [job.key for job in table.jobs() if job.key.tenant == BAD]
            deployment.log.cancel(taken)
        with_mirror[each.claim.key] = each
        if each.claim.key.tenant == BAD:
            with pytest.raises(FenceError):
                publish_one(deployment, each)
        else:
            publish_one(deployment, each)
    assert {job.key.tenant for job in table.jobs() if job.state is JobState.CANCELED} == {BAD}
    assert table.query("SELECT uniqExact(tenant) FROM {mirror}") == [(len(SOME) - 1,)]
    table.follow()
    table.check()


def test_rows_of_a_tenant_that_one_index_has_not_claimed_go_to_the_other_alone(deployment):
    table = Table.make(deployment, Mirror(), FullText("name"))
    fill(table, SOME, 1)
    table.run(table.iteration(*SOME))
    fill(table, SOME, 2)
    iteration = table.iteration(*SOME)
    left_out = next(key for key in iteration.jobs if (key.tenant, key.job_name) == (BAD, "text"))
    keys = tuple(key for key in iteration.jobs if key != left_out)
    outcomes = table.run(
        type(iteration).of([j for j in table.jobs() if j.key in keys], iteration.to)
    )
    assert len(outcomes) == 2 * len(SOME) - 1
    assert table.query("SELECT count() FROM {mirror}") == [(2 * len(SOME),)]
    assert table.query("SELECT count() FROM {text}") == [(2 * len(SOME) - 1,)]
    table.follow()
    table.check()


@pytest.mark.parametrize("broken", [{BAD}, set(MANY)], ids=["one", "all"])
def test_a_tenant_that_cannot_be_read_stops_alone(deployment, monkeypatch, broken):
    tenants = SOME if BAD in broken else MANY[:60]
    table = Table.make(deployment, Mirror(), FullText("name"))
    fill(table, tenants, 1)
    read, scans = Reader.rows, []

    def rows(reader, *args, **named):
        scans.append(reader.tenants)
        if reader.tenants & broken:
            raise ReadError("a file is broken")
        return read(reader, *args, **named)

    monkeypatch.setattr(Reader, "rows", rows)
    outcomes = list(iterate(deployment, table.source, table.iteration(*tenants), run_id="run"))
    wrong = ended(table, outcomes)
    assert set(wrong.values()) == {ReadError.code}
    assert {tenant for tenant, _ in wrong} == broken & set(tenants)
    assert len(scans) < 30


class Particular:
    """Counts the rows of each tenant; refuses one tenant, or all."""

    dislikes = BAD
    says = False
    calls = 0
    held: ClassVar[Counter[str]] = Counter()

    def __init__(self, source, info):
        self.source = source

    def consume(self, retriever):
        type(self).calls += 1
        found, done = Counter(), False
        while not done:
            upserts, _, done = retriever.next()
            for tenant, rows in retriever.by_tenant(upserts).items():
                if self.dislikes in {tenant, "*"}:
                    error = ValueError(f"no rows of {tenant}, please")
                    if not self.says:
                        raise error
                    retriever.refuse(tenant, SchemaError(str(error)))
                found[tenant] += rows.num_rows
        self.held.update({tenant: n for tenant, n in found.items() if tenant in retriever.tenants})


@pytest.fixture
def particular(deployment, monkeypatch):
    """Give a function that makes a table with a mirror and a user's consumer for each tenant."""

    def make(tenants, **likes):
        for name, value in likes.items():
            monkeypatch.setattr(Particular, name, value)
        monkeypatch.setattr(Particular, "calls", 0)
        monkeypatch.setattr(Particular, "held", Counter())
        table = Table.make(deployment, Mirror())
        fill(table, tenants, 1, 2)
        source = table.source
        info = ConsumerInfo(
            type=f"{__name__}:Particular", db=source.database, table=source.table, job="own"
        )
        spec = JobSpec(detail=IterationDetail(consumer=info))
        name = JobID(db=source.database, table=source.table, job="own")
        table_id = deployment.delta_log(source).table_id()
        for tenant in tenants:
            deployment.log.register(tenant, name, table_id, spec)
        return table

    return make


@pytest.mark.parametrize("says", [False, True], ids=["raises", "says whose it is"])
def test_a_consumer_of_the_user_s_that_refuses_a_tenant_serves_the_others(particular, says):
    table = particular(SOME, says=says)
    outcomes = list(iterate(table.deployment, table.source, table.iteration(*SOME), run_id="run"))
    (failed,) = [each for each in outcomes if isinstance(each, Failed)]
    assert (failed.claim.key.tenant, failed.claim.key.job_name) == (BAD, "own")
    assert "no rows of t4, please" in failed.message
    assert {tenant for tenant, rows in Particular.held.items() if rows == 2} >= set(SOME) - {BAD}
    assert (Particular.calls == 1) is says
    behind = {job.key.tenant for job in table.jobs() if job.state is not JobState.COMPLETED}
    assert behind == {BAD}


def test_a_consumer_that_fails_for_each_of_some_tenants_is_not_tried_with_all(particular):
    tenants = MANY[:60]
    table = particular(tenants, dislikes="*")
    iteration = table.iteration(*tenants)
    outcomes = list(iterate(table.deployment, table.source, iteration, run_id="run"))
    failed = [each for each in outcomes if isinstance(each, Failed)]
    assert {each.claim.key.tenant for each in failed} == set(tenants)
    assert {each.claim.key.job_name for each in failed} == {"own"}
    assert Particular.calls < len(tenants) / 2
    assert table.query("SELECT count() FROM {mirror}") == [(2 * len(tenants),)]
