"""Commits that change a table's columns and no row: every tenant reads as Spark does afterwards."""

from pathlib import Path

import pytest

from iscp_dagster import FullText, Mirror
from iscp_dagster.delta.log.commits import format_commit_name
from iscp_dagster.delta.read_plans import ReadKind
from iscp_dagster.model.states import JobState
from iscp_dagster.planning.runner import Runner
from iscp_dagster.upkeep.position import read_positions
from iscp_dagster.upkeep.verify import compare_or_raise
from support.lake.delta_tables import FEED, Table, deployment_at, kinds

TWO_ROWS = "VALUES ('a', 0), ('b', 1) AS rows(tenant, id)"
NTZ = "'delta.feature.timestampNtz' = 'supported'"
MAPPED = f"{FEED}, 'delta.columnMapping.mode' = 'name'"
COLUMNS = "tenant STRING, id BIGINT, p STRING, q STRING, w INT"
SWAP = ["RENAME COLUMN p TO x", "RENAME COLUMN q TO p", "RENAME COLUMN x TO q"]
HISTORIES = {
    "a column takes the name of one that is gone": (
        ["DROP COLUMN p", "RENAME COLUMN q TO p"],
        "p, w",
    ),
    "a column is added": (["ADD COLUMNS (n DECIMAL(9,2) COMMENT 'more')"], "p, q, w, n"),
}


@pytest.fixture
def deployment(clickhouse_url, spark_remote, tmp_path):
    return deployment_at(clickhouse_url, spark_remote, tmp_path)


def made(deployment, *indexes, columns=COLUMNS):
    table = Table.make(deployment, *indexes, columns=columns, properties=MAPPED)
    table.sql("INSERT INTO {t} VALUES ('a', 1, 'p1', 'q1', 1), ('b', 2, 'p2', 'q2', 2)")
    table.follow()
    return table


def served(table, columns):
    """Return the rows of the index view and those of the source, which Spark reads."""
    select = f"SELECT tenant, id, {columns} FROM {{}} ORDER BY id"
    source = [tuple(row) for row in table.sql(select.format("{t}"))]
    return table.query(select.format("{mirror}")), source


@pytest.mark.parametrize("history", HISTORIES)
def test_idle_tenants_read_what_the_source_says(deployment, history):
    statements, columns = HISTORIES[history]
    table = made(deployment, Mirror())
    before = table.version
    for statement in statements:
        table.sql(f"ALTER TABLE {{t}} {statement}")
    # Nobody says that it is in step before it is, and what is compared is what was built.
    behind = [each.watermark.version for each in read_positions(deployment, table.source)]
    assert behind == [before, before]
    outcomes = table.follow()
    index, source = served(table, columns)
    assert index == source
    table.check()
    assert {each.version for each in table.verdicts()} == {table.version}
    added = history == "a column is added"
    assert set(kinds(outcomes)) == {ReadKind.TAIL if added else ReadKind.SNAPSHOT}


def test_a_runner_that_was_down_notices_the_change_and_tails_have_the_new_names(deployment):
    table = made(deployment, Mirror(), FullText("p"))
    assert table.look().dispatches == []
    for statement in SWAP:
        table.sql(f"ALTER TABLE {{t}} {statement}")
    table.runner = Runner(deployment, [table.source])
    assert set(kinds(table.follow())) == {ReadKind.SNAPSHOT}
    table.sql("UPDATE {t} SET p = 'later' WHERE id = 2")
    assert set(kinds(table.follow())) == {ReadKind.TAIL}
    index, source = served(table, "p, q, w")
    assert index == source
    table.check()


def test_a_comparison_says_that_the_log_has_lost_a_version_and_compares_what_there_is(deployment):
    properties = f"{FEED}, 'delta.checkpointInterval' = '2'"
    table = Table.make(deployment, Mirror(), columns=COLUMNS, properties=properties)
    table.sql("INSERT INTO {t} VALUES ('a', 1, 'p1', 'q1', 1), ('b', 2, 'p2', 'q2', 2)")
    table.follow()
    for number in range(2):
        table.sql(f"INSERT INTO {{t}} VALUES ('a', {3 + number}, 'p', 'q', 3)")
    for version in range(3):
        Path(table.path, format_commit_name(version)).unlink()
    told = []
    found = compare_or_raise(deployment, table.source, report=told.append)
    lost = "at version 3: the index has version 1, which is no longer in the table's log"
    assert told
    assert [each for each in told if not each.endswith(lost)] == []
    assert {each.tenant: (each.version, each.agrees) for each in found} == {
        "a": (3, False),
        "b": (3, True),
    }
    table.follow()
    table.check()


def test_whatever_delta_widens_is_widened_in_the_index(deployment):
    widened = {
        "b": ("TINYINT", "-128", "BIGINT"),
        "i": ("INT", "-2147483648", "DOUBLE"),
        "n": ("SMALLINT", "7", "DECIMAL(12, 2)"),
        "f": ("FLOAT", "1.5", "DOUBLE"),
        "d": ("DECIMAL(5, 2)", "-123.45", "DECIMAL(20, 4)"),
        "l": ("BIGINT", "-9223372036854775808", "DECIMAL(20, 0)"),
        "day": ("DATE", "DATE'1969-12-31'", "TIMESTAMP_NTZ"),
        "s.a": ("STRUCT<a: SMALLINT>", "struct(3)", "INT"),
        "xs.element": ("ARRAY<INT>", "array(4, NULL)", "BIGINT"),
    }
    named = [(name.partition(".")[0], type_) for name, (type_, *_) in widened.items()]
    columns = ", ".join(f"{name} {type_}" for name, type_ in named)
    table = Table.make(
        deployment,
        Mirror(),
        columns=f"tenant STRING, id BIGINT, {columns}",
        properties=f"{FEED}, delta.enableTypeWidening = true, {NTZ}",
    )
    values = ", ".join(f"CAST({value} AS {type_})" for type_, value, _ in widened.values())
    table.sql(f"INSERT INTO {{t}} SELECT tenant, id, {values} FROM {TWO_ROWS}")
    table.follow()
    for name, (_, _, type_) in widened.items():
        table.sql(f"ALTER TABLE {{t}} ALTER COLUMN {name} TYPE {type_}")
    table.sql("UPDATE {t} SET d = 1234567890.1234, n = 0.25, xs = array(5000000000) WHERE id = 1")
    table.follow()
    assert {job.state for job in table.jobs()} == {JobState.COMPLETED}
    table.check()
    found = table.query("SELECT toString(d), n, xs FROM {mirror} ORDER BY id")
    assert [row[0] for row in found] == ["-123.45", "1234567890.1234"]


def test_a_column_without_a_type_appears_once_it_has_one(deployment):
    """Spark stores nothing of a VOID column."""
    columns = "tenant STRING, id BIGINT, v VOID"
    table = Table.make(deployment, Mirror(), columns=columns)
    table.sql("INSERT INTO {t} VALUES ('a', 1, NULL), ('b', 2, NULL)")
    table.follow()
    table.check()
    table.sql("INSERT INTO {t} VALUES ('a', 3, NULL)")
    table.sql("UPDATE {t} SET id = 4 WHERE id = 1")
    assert set(kinds(table.follow())) == {ReadKind.TAIL}
    table.check()
    assert table.query("SELECT * FROM {mirror} ORDER BY id") == [("b", 2), ("a", 3), ("a", 4)]
    rows = deployment.spark().sql("SELECT 'a' AS tenant, 5L AS id, 7 AS v")
    rows.write.format("delta").mode("append").option("mergeSchema", "true").save(table.path)
    table.follow()
    table.check()
    found = table.query("SELECT id, v FROM {mirror} ORDER BY id")
    assert found == [(2, None), (3, None), (4, None), (5, 7)]
