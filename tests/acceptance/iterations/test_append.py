"""Append-only indexes on real services: each row once, by tokens and the state of batches alone."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from iscp_dagster import FullText, Mirror
from iscp_dagster.clickhouse.connect.failures import DoubledRowsError
from iscp_dagster.delta.read_plans import ReadKind
from iscp_dagster.joblog.iterations import FailedStep
from iscp_dagster.model.errors import SchemaError
from iscp_dagster.model.moment import START
from support.jobs.log_rows import fail
from support.lake.delta_tables import Table, kinds, one_by_one, publish_one
from support.lake.row_writer import ANYWAY

ALL = (Mirror(append=True), FullText("name", append=True))
SOME = list("abc")
COLUMNS = "tenant STRING, at BIGINT, name STRING, tags MAP<STRING, INT>"


@pytest.fixture
def events(deployment):
    return Table.make(deployment, *ALL, columns=COLUMNS, key=())


def add(table, *names, tenant="a"):
    rows = ", ".join(f"('{tenant}', {n}, '{name}', map('n', {n}))" for n, name in enumerate(names))
    table.sql(f"INSERT INTO {{t}} VALUES {rows}")


def check(table):
    assert table.query("SELECT count() FROM {mirror}") == [(table.agreed()["mirror"],)]


def test_rows_are_there_once_each_also_where_alike_until_one_changes_or_goes(events):
    add(events, "first", "first", "first")
    assert kinds(events.follow()) == [ReadKind.SNAPSHOT] * 2
    add(events, "first", "second")
    add(events, "other", tenant="b")
    assert sorted(kinds(events.follow())) == [ReadKind.SNAPSHOT] * 2 + [ReadKind.TAIL] * 2
    check(events)
    assert events.query("SELECT count() FROM {text} WHERE hasAllTokens(name, 'first')") == [(4,)]
    events.sql("UPDATE {t} SET name = 'third' WHERE tenant = 'a' AND at = 1")
    add(events, "two", tenant="b")
    outcomes = events.follow()
    assert {(each.tenant, each.plan.kind) for each in outcomes} == {
        ("a", ReadKind.SNAPSHOT),
        ("b", ReadKind.TAIL),
    }
    assert "changed or deleted" in next(o.plan.reason for o in outcomes if o.tenant == "a")
    check(events)
    events.sql("DELETE FROM {t} WHERE name = 'third'")
    assert set(kinds(events.follow())) == {ReadKind.SNAPSHOT}
    check(events)
    # Rewriting files changes no row.
    events.sql("OPTIMIZE {t}")
    assert events.follow() == []


def begun(table, *tenants, run_id="dies"):
    """Run an iteration that writes its rows and dies before it confirms them."""
    iteration = table.iteration(*tenants or "a")
    found = one_by_one(table.deployment, table.source, iteration, run_id=run_id)
    first = next(found)
    found.close()
    table.deployment.log.recover_run_jobs({run_id})
    return [first]


def test_a_replay_is_dropped_by_its_tokens_in_whatever_files_company_and_layout(
    events, monkeypatch
):
    for tenant in SOME:
        add(events, "old", tenant=tenant)
    events.follow()
    for number in range(2):
        for tenant in SOME:
            add(events, *(f"new {number}" for _ in range(4)), *map(str, range(30)), tenant=tenant)
    (first,) = begun(events, "a")
    assert first.plan.kind is ReadKind.TAIL
    assert (first.inserted, first.claim.key.tenant) == (68, "a")
    # Fewer and larger files, with rows in another order.
    events.sql("OPTIMIZE {t} ZORDER BY (name)")
    # What was begun together is read by one tenant alone, and the other way round.
    begun(events, "b", "c")
    monkeypatch.setattr("iscp_dagster.sync.reading.reader.FEWEST_TASKS", 3)
    monkeypatch.setattr("iscp_dagster.sync.reading.reader.SMALL_BYTES", 1)
    monkeypatch.setattr("iscp_dagster.sync.reading.reader.ROWS_PER_CHUNK", 7)
    events = replace(events, deployment=replace(events.deployment))
    assert events.query("SELECT count() FROM {mirror}") == [(3 + 3 * 68,)]
    for tenant in SOME:
        add(events, *(f"newest {n}" for n in range(40)), tenant=tenant)
    assert kinds(events.run(events.iteration("b"))) == [ReadKind.TAIL] * 2
    outcomes = events.run(events.iteration("a", "c"))
    assert kinds(outcomes) == [ReadKind.TAIL] * 4
    assert {(each.tenant, each.to.version) for each in outcomes} == {
        (tenant, events.version) for tenant in "ac"
    }
    check(events)


def test_several_are_one_scan_each_charged_and_cut_as_it_is_alone(events, monkeypatch):
    monkeypatch.setattr("iscp_dagster.sync.reading.reader.ROWS_PER_CHUNK", 3)
    for tenant in SOME:
        add(events, "old", tenant=tenant)
    events.follow()
    for number, tenant in enumerate(SOME, 1):
        add(events, *(f"new {n % 2}" for n in range(number)), "new", tenant=tenant)
    (due,) = events.look().dispatches
    outcomes = events.run(due.iteration, queued_as=due.name)
    assert len({id(each.written.request) for each in outcomes}) == 1
    assert [each.inserted for each in outcomes if each.job_name == "mirror"] == [2, 3, 4]
    assert {each.written.chunks for each in outcomes} == {1 + 1 + 2}
    check(events)


@pytest.mark.soak
@settings(
    max_examples=5,
    deadline=None,
    # No shrinking: it takes minutes.
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "add", "iterate", "die"]),
            st.sets(st.sampled_from(SOME), min_size=1),
        ),
        max_size=12,
    )
)
def test_whatever_company_tenants_have_and_whoever_dies_each_row_is_there_once(deployment, steps):
    table = Table.make(deployment, *ALL, columns=COLUMNS, key=())
    for tenant in SOME:
        add(table, "old", tenant=tenant)
    table.follow()
    for number, (what, tenants) in enumerate(steps):
        if what == "add":
            for tenant in sorted(tenants):
                add(table, *[f"new {number}"] * 3, tenant=tenant)
            continue
        if what == "iterate":
            assert not [e for e in table.materialize(*sorted(tenants)) if isinstance(e, FailedStep)]
        elif alike := behind(table, tenants):
            begun(table, *alike, run_id=f"dies {number}")
    assert set(kinds(table.follow())) <= {ReadKind.TAIL}
    check(table)


def behind(table, tenants):
    """Return the tenants whose jobs wait for the same commits."""
    stand = {tenant: set() for tenant in tenants}
    for job in table.jobs():
        stand.get(job.key.tenant, set()).add(job.watermark.version)
    lowest = min(map(min, stand.values()))
    alike = sorted(tenant for tenant, found in stand.items() if found == {lowest})
    return alike if lowest < table.version else []


def test_a_row_that_is_refused_stops_its_tenant_alone_or_is_set_aside(deployment):
    types = {"at": "UInt8"}
    strict = Mirror(name="strict", append=True, types=types)
    lenient = Mirror(name="lenient", append=True, types=types, errors="dead_letter")
    table = Table.make(deployment, strict, lenient, columns=COLUMNS, key=())
    for tenant in SOME:
        add(table, "old", tenant=tenant)
    table.follow()
    for tenant in SOME:
        add(table, "new", "newer", tenant=tenant)
    table.sql(
        "INSERT INTO {t} VALUES ('b', 300, 'odd', map('n', 1)), ('b', 1, 'even', map('n', 1))"
    )
    outcomes = table.run(table.iteration(*SOME))
    (failed,) = [each for each in outcomes if isinstance(each, FailedStep)]
    assert (failed.claim.key.tenant, failed.claim.key.job_name) == ("b", "strict")
    assert failed.code == SchemaError.code
    for index, number in ((strict, 1), (lenient, 4)):
        held = table.query(f"SELECT tenant, count() FROM {{{index.name}}} GROUP BY tenant")
        assert dict(held) == dict.fromkeys(SOME, 3) | {"b": number}
    table.sql("DELETE FROM {t} WHERE at = 300")
    assert not [each for each in table.materialize("b") if isinstance(each, FailedStep)]
    assert set(table.agreed().values()) == {10}


def test_rows_that_stand_twice_are_noticed_and_the_tenant_is_built_anew(events):
    add(events, "old")
    events.follow()
    add(events, "new", "newer")
    begun(events)
    mirror = events.view(ALL[0], "__rows")
    # As if the table had forgotten the tokens when the rows came again.
    events.deployment.endpoint.get_client().command(
        f"INSERT INTO {mirror} SELECT * FROM {mirror} WHERE _version > 1", settings=ANYWAY
    )
    outcomes = events.follow()
    (failed,) = [each for each in outcomes if isinstance(each, FailedStep)]
    assert failed.code == DoubledRowsError.code
    assert "2 rows of versions" in failed.message
    assert "4 are there" in failed.message
    (again,) = [each for each in outcomes if getattr(each, "plan", None) and each.range.initial]
    assert (again.plan.kind, again.range.from_) == (ReadKind.SNAPSHOT, START)
    check(events)


def test_changes_of_more_chunks_than_tokens_are_sure_of_are_read_as_a_snapshot(events, monkeypatch):
    add(events, "old")
    events.follow()
    monkeypatch.setattr("iscp_dagster.sync.reading.reader.ROWS_PER_CHUNK", 7)
    monkeypatch.setattr("iscp_dagster.clickhouse.write.chunks.MOST_CHUNKS", 3)
    add(events, *(f"new {n}" for n in range(21)))
    assert kinds(events.follow()) == [ReadKind.TAIL] * 2
    add(events, *(f"newer {n}" for n in range(22)))
    found = events.follow()
    assert kinds(found) == [ReadKind.SNAPSHOT] * 2
    assert "more than 3 chunks in one task" in found[0].plan.reason
    check(events)


def test_a_replay_for_one_index_is_cut_as_it_was_for_both(deployment):
    """The order of rows does not depend on the columns that the siblings read."""
    narrow = Mirror(name="narrow", columns=["name"], append=True)
    other = Mirror(name="other", columns=["at"], append=True)
    table = Table.make(deployment, narrow, other, columns=COLUMNS, key=())
    add(table, "old")
    table.follow()
    add(table, *(f"{n % 7} {n % 3}" for n in range(50)))
    found = one_by_one(deployment, table.source, table.iteration("a"), run_id="dies")
    first = next(found)
    publish_one(deployment, first)
    found.close()
    deployment.log.recover_run_jobs({"dies"})
    (again,) = table.follow()
    assert {first.claim.key.job_name, again.claim.key.job_name} == {"narrow", "other"}
    for index in (narrow, other):
        assert table.query(f"SELECT count() FROM {{{index.name}}}") == [(51,)]


def test_a_snapshot_takes_the_place_of_all_steps_of_its_claim_and_of_what_is_there_in_part(events):
    add(events, "old")
    events.follow()
    events.sql("UPDATE {t} SET name = 'changed'")
    begun(events)
    add(events, "newer", "newest")
    outcomes = events.follow()
    assert kinds(outcomes) == [ReadKind.SNAPSHOT] * 2
    assert {each.range.to.version for each in outcomes} == {events.version}
    check(events)
    add(events, "new", "newer")
    begun(events)
    claims = events.deployment.log.claim_jobs(events.iteration("a"), "fails", {})
    for claim in claims:
        fail(events.deployment.log, claim, 10_430, "a row is refused")
    add(events, "newest")
    outcomes = events.materialize()
    assert set(kinds(outcomes)) == {ReadKind.SNAPSHOT}
    check(events)
