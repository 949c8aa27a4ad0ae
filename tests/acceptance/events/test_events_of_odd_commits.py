"""Commits that are no everyday ones, under a view, its triggers and a mirror in one iteration."""

from dataclasses import replace

import pytest
import sqlalchemy as sa
from tables import Table, deployment_at

from iscp_dagster import Changes, Endpoint, Mirror, Trigger, View
from iscp_dagster.delta.plans import ReadKind
from iscp_dagster.joblog.iterations import FailedStep
from iscp_dagster.location.assets.iterations import Iterations
from iscp_dagster.model.declared.together.attach import index_of_view
from iscp_dagster.model.errors import KeyColumnError, SchemaError
from iscp_dagster.webhooks.tables import ISCP_OUTBOX

COLUMNS = "tenant STRING, k BIGINT, amount BIGINT, note STRING, tags MAP<STRING, STRING>"
NUMBER = "8d2f7d0a-8ee0-4f4d-a64b-6f0b2a7f1d11"
KEPT = ("big", "changes", "mirror", "plain", "sticky")


def declared(table):
    """Declare two views of the table, and a trigger on each of view and table."""
    big = View("big", of=table.source, where="amount > 100")
    narrow = View("narrow", of=table.source, where="amount > 150", types={"note": "UUID"})
    hook = Endpoint("hook", url="https://example.com/hook", secrets=["S"])
    triggers = [
        Trigger("plain", on=big, match="amount > 500", to=[hook]),
        Trigger("beside", on=narrow, match="amount > 500", to=[hook]),
        Trigger("sticky", on=table.source, match="amount > 500", unmatch="amount < 50", to=[hook]),
    ]
    indexes = [Mirror(), Changes(), index_of_view(big), index_of_view(narrow)]
    return replace(table, source=replace(table.source, indexes=indexes, triggers=triggers))


def events(table, trigger):
    """Return type, event key and version of each of the trigger's events, in order."""
    columns = ISCP_OUTBOX.c
    chosen = sa.select(columns.event_type, columns.event_key, columns.source_version)
    with table.deployment.log.begin_read() as connection:
        found = chosen.where(columns.trigger_name == trigger).order_by(columns.number)
        return [tuple(row) for row in connection.execute(found)]


def insert(table, *rows):
    listed = ", ".join(f"('{t}', {k}, {amount}, '{note}', map())" for t, k, amount, note in rows)
    table.sql(f"INSERT INTO {{t}} VALUES {listed}")


def outcomes_of(table, tenant):
    """Materialize indexes and triggers as a person does; by job, the outcomes of the tenant."""
    its = Iterations(
        deployment=table.deployment,
        source=table.source,
        run_id="by hand",
        tenants=["acme", "globex"],
        consumers=table.source.consumers,
        warn=pytest.fail,
    )
    found = [each for some in its.iterate_jobs() for each in some if hasattr(each, "claim")]
    return {each.claim.key.job_name: each for each in found if each.claim.key.tenant == tenant}


def by_job(outcomes, tenant):
    return {each.job_name: each for each in outcomes if each.tenant == tenant}


def test_rows_that_one_job_cannot_take_and_commits_that_are_gone_cost_no_other_event(
    clickhouse_url, spark_remote, tmp_path
):
    deployment = deployment_at(clickhouse_url, spark_remote, tmp_path)
    table = declared(Table.make(deployment, key="k", columns=COLUMNS))
    insert(table, ("acme", 1, 10, NUMBER), ("globex", 1, 10, NUMBER))
    assert {each.plan.kind for each in outcomes_of(table, "acme").values()} == {ReadKind.SNAPSHOT}

    # A value that one view's index cannot hold stops it alone, not the trigger beside it.
    insert(table, ("acme", 2, 900, "no number"), ("globex", 2, 900, NUMBER))
    found = outcomes_of(table, "acme")
    assert [job for job, each in found.items() if isinstance(each, FailedStep)] == ["narrow"]
    assert found["narrow"].code == SchemaError.code
    for trigger in ("plain", "beside", "sticky"):
        assert sorted(events(table, trigger)) == [
            ("MATCH", '["acme","2"]', 2),
            ("MATCH", '["globex","2"]', 2),
        ]

    # A row without its key is told while it is there; then nothing is missing.
    insert(table, ("acme", "NULL", 900, NUMBER), ("acme", 3, 900, "a \ufffd"))
    found = outcomes_of(table, "acme")
    assert {found[job].code for job in KEPT} == {KeyColumnError.code}
    for job in KEPT:
        said = f"{table.source.name}/{job}: key column 'k' is null in row {{'k': None}}"
        assert found[job].message.startswith(said)
    table.sql("DELETE FROM {t} WHERE k IS NULL")
    table.sql("UPDATE {t} SET tags = map('a', 'b, c -> d') WHERE k = 1")
    table.sql("UPDATE {t} SET tags = map('a', 'b', 'c', 'd') WHERE k = 1")
    found = outcomes_of(table, "acme")
    kinds = {job: found[job].plan.kind for job in KEPT}
    # Texts that may have lost bytes need a snapshot only where rows are kept as they are.
    assert kinds.pop("mirror") is ReadKind.SNAPSHOT
    assert set(kinds.values()) == {ReadKind.TAIL}
    for trigger in ("plain", "sticky"):
        assert [each for each in events(table, trigger) if each[2] > 2] == [
            ("MATCH", '["acme","3"]', 3)
        ]
    told = "SELECT _version, _fields, tags FROM {changes} WHERE tenant = 'acme' AND k = 1"
    assert table.query(f"{told} AND _version > 4 AND _image ORDER BY _version") == [
        (5, ["tags"], {"a": "b, c -> d"}),
        (6, ["tags"], {"a": "b", "c": "d"}),
    ]

    # A tenant whose mirror, view and triggers begin in one iteration, two commits late.
    insert(table, ("initech", 1, 900, NUMBER))
    insert(table, ("initech", 2, 300, NUMBER))
    assert by_job(table.follow(), "initech").keys() == {*KEPT, "narrow", "beside"}
    for trigger in ("plain", "beside", "sticky"):
        assert events(table, trigger)[-1] == ("MATCH", '["initech","1"]', 7)
    assert table.query("SELECT k, amount FROM {big} WHERE tenant = 'initech' ORDER BY k") == [
        (1, 900),
        (2, 300),
    ]

    # VACUUM takes the changes away before they are read.
    before = {trigger: events(table, trigger) for trigger in ("plain", "sticky")}
    table.sql("UPDATE {t} SET amount = 20 WHERE k = 2")
    table.sql("UPDATE {t} SET amount = 700 WHERE k = 1")
    vacuumed(table)
    last = table.version
    gone = by_job(table.follow(), "globex")
    why = f"versions 9 to {last}: VACUUM removed files of the changes of versions 9 to {last}"
    assert {gone[job].plan.kind for job in KEPT} == {ReadKind.SNAPSHOT}
    assert {gone[job].gap for job in ("big", "changes")} == {why}
    assert {gone[job].report["gap"] for job in ("plain", "sticky")} == {why}
    assert {trigger: events(table, trigger) for trigger in before} == before
    held = "SELECT k, amount, _change, _version FROM {changes} WHERE tenant = 'globex' ORDER BY k"
    assert table.query(held) == [(1, 700, 0, last), (2, 20, 0, last)]

    # What is active was found anew, and events go on from there.
    table.sql("UPDATE {t} SET amount = 40 WHERE k IN (1, 2)")
    table.follow()
    for trigger in before:
        assert sorted(events(table, trigger)[len(before[trigger]) :]) == [
            ("UNMATCH", f'["{tenant}","1"]', last + 1) for tenant in ("acme", "globex", "initech")
        ]
    assert {each.agrees for each in table.verdicts() if each.index != "narrow"} == {True}

    # What ClickHouse has no null for costs indexes their changes, but triggers no event.
    table.sql("ALTER TABLE {t} ADD COLUMNS (more ARRAY<INT>)")
    table.sql(f"INSERT INTO {{t}} VALUES ('acme', 9, 900, '{NUMBER}', map(), array(1))")
    outcomes_of(table, "acme")
    for trigger in before:
        assert events(table, trigger)[-1] == ("MATCH", '["acme","9"]', last + 3)


def vacuumed(table):
    """Delete all files that the latest version does not need."""
    checked = "spark.databricks.delta.retentionDurationCheck.enabled"
    table.sql(f"SET {checked} = false")
    table.sql("VACUUM {t} RETAIN 0 HOURS")
    table.sql(f"RESET {checked}")
