"""Statements of a dead run that the network held land after its heir has published."""

import shutil
from contextlib import closing
from dataclasses import replace

import pytest

from iscp_dagster import FullText, Mirror
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.tables.index_store import IndexStore
from iscp_dagster.clickhouse.write.inserts import ATTEMPTS
from iscp_dagster.delta.read_plans import ReadKind
from iscp_dagster.joblog.iterations import FailedStep
from iscp_dagster.model.errors import FenceError, UnavailableError
from iscp_dagster.model.states import JobState
from iscp_dagster.sync.iteration.outcomes import RowDelivery
from iscp_dagster.upkeep.maintenance import clear_staging
from support.lake.delta_tables import Table, one_by_one, publish_one
from support.services.fault_proxy import LATE

COLUMNS = "tenant STRING, id BIGINT, name STRING"
KINDS = {
    "keyed": {"key": "id"},
    "in buckets": {"key": "id", "buckets": 2},
    "append-only": {"key": ()},
}
PLACED_BY = {"in buckets": "ATTACH PARTITION"}
"""The statement that puts a snapshot in place, unless it is `REPLACE PARTITION`."""


def make_table(deployment, kind):
    """Return a table of this kind with two rows."""
    index = Mirror(append=kind == "append-only")
    table = Table.make(deployment, index, columns=COLUMNS, **KINDS[kind])
    add(table, 1, 2)
    return table


@pytest.fixture
def table(deployment):
    """Return a table without a key, where a row that is written twice is there twice."""
    return make_table(deployment, "append-only")


def add(table, *ids, tenant="a"):
    rows = ", ".join(f"('{tenant}', {id_}, 'row {id_}')" for id_ in ids)
    table.sql(f"INSERT INTO {{t}} VALUES {rows}")


def behind(proxy, table):
    """Return the table, with runs that go through the proxy."""
    return replace(
        table, deployment=replace(table.deployment, endpoint=ClickHouseEndpoint.parse(proxy.url))
    )


def dies(proxy, table, into):
    """Let a run give up because the network holds its inserts into a table."""
    proxy.coming_to[f"{table.source.table}_mirror__{into}"] = [LATE] * ATTEMPTS
    try:
        (failed,) = behind(proxy, table).run(table.iteration("a"), "dies")
    finally:
        proxy.coming_to.clear()
    assert isinstance(failed, FailedStep)
    assert failed.code == UnavailableError.code


def built_anew(table):
    """Rebuild all tenants from snapshots."""
    table.deployment.log.rebuild([job.key for job in table.jobs()])
    outcomes = table.follow()
    assert {each.plan.kind for each in outcomes} == {ReadKind.SNAPSHOT}


def check(table):
    assert [each for each in table.verdicts() if not each.agrees] == []
    held = sorted(tuple(row) for row in table.sql("SELECT id FROM {t}"))
    assert sorted(table.query("SELECT id FROM {mirror}")) == held


def staged(table):
    found = table.query(
        "SELECT name FROM system.tables WHERE database = {d:String} AND name LIKE '%staging%'",
        d=table.source.database,
    )
    return [name for (name,) in found]


@pytest.mark.parametrize("kind", ["append-only", pytest.param("keyed", marks=pytest.mark.soak)])
def test_a_tail_that_lands_late_changes_nothing(deployment, proxy, kind):
    """It lands after a snapshot, the same rows, its table's end, and its tenant's end."""
    table = make_table(deployment, kind)
    table.follow()
    add(table, 3, 4)
    dies(proxy, table, "rows")
    table.sql("DELETE FROM {t} WHERE id = 3")
    built_anew(table)
    land(proxy, table)
    # Later runs are let in. This holds however many tokens the table has recorded since.
    add(table, 5)
    dies(proxy, table, "rows")
    assert [each.plan.kind for each in table.materialize("a")] == [ReadKind.TAIL]
    land(proxy, table)
    add(table, 6)
    dies(proxy, table, "rows")
    shutil.rmtree(table.path)
    table.create(COLUMNS)
    add(table, 7)
    table.follow()
    table.materialize("a")
    land(proxy, table)
    add(table, 8)
    dies(proxy, table, "rows")
    info = table.jobs()[0].spec.detail.consumer
    table.deployment.get_index_data(info).drop_tenants("tenant", ["a"])
    land(proxy)
    assert table.query("SELECT count() FROM {mirror}") == [(0,)]


def land(proxy, table=None):
    """Let the held inserts land; the barrier refuses all of them, and the table stays as it is."""
    said = proxy.land()
    assert len(said) == ATTEMPTS
    assert all("iscp_barrier_" in each for each in said), said
    if table is not None:
        check(table)


def test_a_run_that_is_overtaken_before_it_reads_the_epoch_writes_nothing(table, monkeypatch):
    """It would read its heir's epoch, and the barrier would let it in."""
    table.follow()
    add(table, 3, 4)
    enter = IndexStore.refresh_epochs

    def late(store):
        monkeypatch.setattr(IndexStore, "refresh_epochs", enter)
        table.deployment.log.recover_run_jobs({"late"})
        table.sql("DELETE FROM {t} WHERE id = 3")
        built_anew(table)
        return enter(store)

    monkeypatch.setattr(IndexStore, "refresh_epochs", late)
    found = [*one_by_one(table.deployment, table.source, table.iteration("a"), run_id="late")]
    check(table)
    assert [each.code for each in found] == [FenceError.code]


@pytest.mark.parametrize(
    ("kind", "left", "when"),
    [
        ("keyed", "rows", "before its heir"),
        ("append-only", "rows", "after its heir"),
        ("keyed", "no rows", "after its heir"),
    ],
)
def test_a_snapshot_that_is_put_in_place_when_its_claim_is_lost_is_not_what_stays(
    deployment, monkeypatch, kind, left, when
):
    """The run still had its claim when it last looked, just before."""
    table, replaced = make_table(deployment, kind), IndexStore.publish_tenants
    if left == "no rows":
        table.sql("DELETE FROM {t}")
    with closing(one_by_one(deployment, table.source, table.iteration("a"), run_id="late")) as run:
        late = next(run)

        def heir():
            monkeypatch.setattr(IndexStore, "publish_tenants", replaced)
            deployment.log.recover_run_jobs({"late"})
            add(table, 3)
            table.follow()
            check(table)

        def with_an_heir(*given, **named):
            if when == "after its heir":
                heir()
                return replaced(*given, **named)
            found = replaced(*given, **named)
            heir()
            return found

        monkeypatch.setattr(IndexStore, "publish_tenants", with_an_heir)
        with pytest.raises(FenceError):
            publish_one(deployment, late)
    check(table)
    # When it is unclear which of the two came later, the tenant is rebuilt.
    again = [ReadKind.SNAPSHOT] if when == "before its heir" else []
    assert [each.plan.kind for each in table.follow()] == again
    check(table)


def test_what_was_sent_again_and_lands_when_its_token_is_forgotten_changes_nothing(table, proxy):
    """The run got the answer to its second attempt while the network held the first."""
    table.follow()
    add(table, 3, 4)
    proxy.coming_to[f"{table.source.table}_mirror__rows"] = [LATE]
    try:
        outcomes = behind(proxy, table).run(table.iteration("a"), "sends again")
    finally:
        proxy.coming_to.clear()
    assert {type(each) for each in outcomes} == {RowDelivery}
    # As after many blocks of other tenants.
    rows = table.view(table.source.indexes[0], "__rows")
    table.deployment.endpoint.get_client().command(
        f"ALTER TABLE {rows} MODIFY SETTING non_replicated_deduplication_window = 0"
    )
    (said,) = proxy.land()
    assert "iscp_barrier_" in said
    assert table.query(f"SELECT count() FROM {rows}") == [(4,)]
    check(table)


@pytest.mark.parametrize(
    ("kind", "left"), [("keyed", "rows"), ("append-only", "no rows"), ("in buckets", "rows")]
)
def test_a_snapshot_that_is_put_in_place_late_is_not(deployment, proxy, kind, left):
    table = make_table(deployment, kind)
    table.follow()
    add(table, 3)
    if left == "no rows":
        table.sql("DELETE FROM {t}")
    table.deployment.log.rebuild([job.key for job in table.jobs()])
    proxy.late_statements.append(PLACED_BY.get(kind, "REPLACE PARTITION"))
    found = one_by_one(
        behind(proxy, table).deployment, table.source, table.iteration("a"), run_id="dies"
    )
    delivery = next(found)
    try:
        with pytest.raises(UnavailableError):
            publish_one(behind(proxy, table).deployment, delivery)
    finally:
        proxy.late_statements.clear()
    # The run was killed, so its staging table stays.
    table.deployment.log.recover_run_jobs({"dies"})
    assert len(staged(table)) == 1
    add(table, 5, 6)
    table.materialize("a")
    (said,) = proxy.land()
    assert "UNKNOWN_TABLE" in said
    check(table)
    found.close()


def test_a_tenant_without_rows_that_is_put_in_place_late_is_not_while_its_run_works_on(
    deployment, proxy
):
    """Its job was canceled, but the run goes on with another index's job."""
    table = Table.make(deployment, Mirror(), FullText("name"), columns=COLUMNS)
    add(table, 1, 2)
    table.follow()
    table.sql("DELETE FROM {t}")
    deployment.log.rebuild([job.key for job in table.jobs()])
    late = behind(proxy, table).deployment
    proxy.late_statements.append("REPLACE PARTITION")
    with closing(one_by_one(late, table.source, table.iteration("a"), run_id="works on")) as found:
        delivery = next(found)
        assert delivery.claim.name.job == "mirror"
        try:
            with pytest.raises(UnavailableError):
                publish_one(late, delivery)
        finally:
            proxy.late_statements.clear()
        deployment.log.cancel([delivery.claim.key])
        add(table, 5, 6)
        table.with_indexes(Mirror()).materialize("a", run_id="heir")
        (said,) = proxy.land()
        assert "UNKNOWN_TABLE" in said
        assert sorted(table.query("SELECT id FROM {mirror}")) == [(5,), (6,)]
        assert {job.run_id for job in table.jobs() if job.state is JobState.RUNNING} == {"works on"}


def test_what_a_run_that_died_was_building_is_cleared_away_and_in_nobody_elses_way(table, proxy):
    found = one_by_one(table.deployment, table.source, table.iteration("a"), run_id="dies")
    next(found)
    (name,) = staged(table)
    # Nobody drops it while the run works.
    assert clear_staging(table.deployment, [table.source]) == []
    assert staged(table) == [name]
    table.deployment.log.recover_run_jobs({"dies"})
    assert clear_staging(table.deployment, [table.source]) == []
    assert staged(table) == []
    found.close()
    dies(proxy, table, "staging")
    found = one_by_one(table.deployment, table.source, table.iteration("a"), run_id="heir")
    with closing(found):
        delivery = next(found)
        assert all("UNKNOWN_TABLE" in each for each in proxy.land())
        publish_one(table.deployment, delivery)
        assert [*found] == []
    check(table)
    assert staged(table) == []
