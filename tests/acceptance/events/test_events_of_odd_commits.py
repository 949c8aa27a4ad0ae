"""Unusual commits, under views, triggers and a mirror in one iteration."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from iscp_dagster import Changes, Endpoint, Mirror, Trigger, View
from iscp_dagster.delta.read_plans import ReadKind
from iscp_dagster.joblog.iterations import FailedStep
from iscp_dagster.location.assets.iterations import Iterations
from iscp_dagster.model.declared.linking.attach import index_of_view
from iscp_dagster.model.errors import KeyColumnError, SchemaError
from iscp_dagster.webhooks.tables import ISCP_OUTBOX
from support.errors import assert_names
from support.lake.delta_tables import Table, deployment_at

COLUMNS = "tenant STRING, k BIGINT, amount BIGINT, note STRING, tags MAP<STRING, STRING>"
NUMBER = "8d2f7d0a-8ee0-4f4d-a64b-6f0b2a7f1d11"
KEPT = ("changes", "mirror", "sticky")


def declare(table):
    """Declare a view with an index, and a trigger on each of view and table."""
    narrow = View("narrow", of=table.source, where="amount > 150", types={"note": "UUID"})
    hook = Endpoint("hook", url="https://example.com/hook", secrets=["S"])
    triggers = [
        Trigger("beside", on=narrow, match="amount > 500", to=[hook]),
        Trigger("sticky", on=table.source, match="amount > 500", unmatch="amount < 50", to=[hook]),
    ]
    indexes = [Mirror(), Changes(), index_of_view(narrow)]
    return replace(table, source=replace(table.source, indexes=indexes, triggers=triggers))


def read_events(table, trigger):
    """Return type, event key and version of each of the trigger's events, in order."""
    columns = ISCP_OUTBOX.c
    rows = sa.select(columns.event_type, columns.event_key, columns.source_version)
    with table.deployment.log.begin_read() as connection:
        rows = rows.where(columns.trigger_name == trigger).order_by(columns.number)
        return [tuple(row) for row in connection.execute(rows)]


def insert(table, *rows):
    listed = ", ".join(f"('{t}', {k}, {amount}, '{note}', map())" for t, k, amount, note in rows)
    table.sql(f"INSERT INTO {{t}} VALUES {listed}")


def outcomes_of(table, tenant):
    """Materialize indexes and triggers as a person does; return the tenant's outcomes by job."""
    iterations = Iterations(
        deployment=table.deployment,
        source=table.source,
        run_id="by hand",
        tenants=["acme", "globex"],
        consumers=table.source.consumers,
        warn=pytest.fail,
    )
    events = [event for batch in iterations.iterate_jobs() for event in batch]
    outcomes = [event for event in events if hasattr(event, "claim")]
    return {each.claim.key.job_name: each for each in outcomes if each.claim.key.tenant == tenant}


def by_job(outcomes, tenant):
    done = [each for each in outcomes if not isinstance(each, FailedStep)]
    return {each.job_name: each for each in done if each.tenant == tenant}


@pytest.mark.soak
def test_bad_rows_and_vacuumed_commits_cost_no_other_job_an_event(
    clickhouse_url, spark_remote, tmp_path
):
    deployment = deployment_at(clickhouse_url, spark_remote, tmp_path)
    table = declare(Table.make(deployment, key="k", columns=COLUMNS))
    insert(table, ("acme", 1, 10, NUMBER), ("globex", 1, 10, NUMBER))
    assert {each.plan.kind for each in outcomes_of(table, "acme").values()} == {ReadKind.SNAPSHOT}

    # A value that one view's index cannot hold stops it alone, not the trigger beside it. Another
    # tenant's mirror, view and triggers begin in one iteration, two commits late.
    insert(table, *((each, 2, 900, NUMBER) for each in ("globex", "initech")))
    insert(table, ("acme", 2, 900, "no number"), ("initech", 3, 300, NUMBER))
    outcomes = table.follow()
    assert by_job(outcomes, "initech").keys() == {*KEPT, "narrow", "beside"}
    (failed,) = [each for each in outcomes if isinstance(each, FailedStep)]
    assert (failed.claim.key.job_name, failed.claim.key.tenant) == ("narrow", "acme")
    assert failed.code == SchemaError.code
    for trigger in ("beside", "sticky"):
        assert sorted(read_events(table, trigger)) == [
            ("MATCH", '["acme","2"]', 3),
            ("MATCH", '["globex","2"]', 2),
            ("MATCH", '["initech","2"]', 2),
        ]

    # A row without its key is reported while it exists; then nothing is missing.
    insert(table, ("acme", "NULL", 900, NUMBER), ("acme", 3, 900, "a \ufffd"))
    outcomes = outcomes_of(table, "acme")
    assert {outcomes[job].code for job in KEPT} == {KeyColumnError.code}
    for job in KEPT:
        assert_names(outcomes[job].message, f"{table.source.name}/{job}", "'k'", "{'k': None}")
    table.sql("UPDATE {t} SET k = 4, tags = map('a', 'b, c -> d') WHERE k IS NULL")
    outcomes = outcomes_of(table, "acme")
    kinds = {job: outcomes[job].plan.kind for job in KEPT}
    # Texts that may have lost bytes need a snapshot only where rows are kept as they are.
    assert kinds.pop("mirror") is ReadKind.SNAPSHOT
    assert set(kinds.values()) == {ReadKind.TAIL}
    assert [each for each in read_events(table, "sticky") if each[2] > 3] == [
        ("MATCH", '["acme","3"]', 4),
        ("MATCH", '["acme","4"]', 5),
    ]
    changes = "SELECT _version, tags FROM {changes} WHERE tenant = 'acme' AND k = 4"
    assert table.query(changes) == [(5, {"a": "b, c -> d"})]

    # The changes are gone before they are read, as after VACUUM.
    before = read_events(table, "sticky")
    table.sql("UPDATE {t} SET amount = CASE k WHEN 1 THEN 700 ELSE 20 END WHERE k < 3")
    shutil.rmtree(Path(table.path, "_change_data"))
    outcomes = by_job(table.follow(), "globex")
    assert {outcomes[job].plan.kind for job in KEPT} == {ReadKind.SNAPSHOT}
    # Changes indexes and triggers report the gap alike.
    (gap,) = {outcomes["changes"].gap, outcomes["sticky"].report["gap"]}
    assert_names(gap, "6 to 6", "VACUUM")
    assert read_events(table, "sticky") == before
    rows = "SELECT k, amount, _change, _version FROM {changes} WHERE tenant = 'globex' ORDER BY k"
    assert table.query(rows) == [(1, 700, 0, 6), (2, 20, 0, 6)]
    assert {each.agrees for each in table.verdicts() if each.index != "narrow"} == {True}

    # The active rows were read again, and events continue from there. A column that ClickHouse has
    # no null for costs indexes their changes, but triggers no event.
    table.sql("UPDATE {t} SET amount = 40 WHERE k < 3")
    table.sql("ALTER TABLE {t} ADD COLUMNS (more ARRAY<INT>)")
    table.sql(f"INSERT INTO {{t}} VALUES ('acme', 9, 900, '{NUMBER}', map(), array(1))")
    table.follow()
    assert sorted(read_events(table, "sticky")[len(before) :]) == [
        ("MATCH", '["acme","9"]', 9),
        *(("UNMATCH", f'["{each}","1"]', 7) for each in ("acme", "globex")),
    ]
