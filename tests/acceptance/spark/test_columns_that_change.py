"""Commits that change a table's columns and no row: every tenant reads as Spark does afterwards."""

from pathlib import Path

from iscp_dagster import FullText, Mirror
from iscp_dagster.delta.log.commits import format_commit_name
from iscp_dagster.delta.read_plans import ReadKind
from iscp_dagster.model.states import JobState
from iscp_dagster.planning.runner import Runner
from iscp_dagster.upkeep.position import read_positions
from iscp_dagster.upkeep.verify_indexes import compare_or_raise
from support.lake.delta_tables import FEED, Table, kinds

TWO_ROWS = "VALUES ('a', 0), ('b', 1) AS rows(tenant, id)"
NTZ = "'delta.feature.timestampNtz' = 'supported'"
MAPPED = f"{FEED}, 'delta.columnMapping.mode' = 'name'"
COLUMNS = "tenant STRING, id BIGINT, p STRING, q STRING, w INT"
SWAP = ("RENAME COLUMN p TO x", "RENAME COLUMN q TO p", "RENAME COLUMN x TO q")


def test_idle_tenants_read_what_the_source_says_whenever_its_columns_change(
    spark_deployment, kept_spark
):
    table = Table.make(
        spark_deployment,
        *(Mirror(), FullText("p")),
        columns=COLUMNS,
        properties=MAPPED,
        writer=kept_spark,
    )
    table.sql("INSERT INTO {t} VALUES ('a', 1, 'p1', 'q1', 1), ('b', 2, 'p2', 'q2', 2)")
    table.follow()
    before = table.version
    # A column takes the name of one that is gone.
    alter(table, "DROP COLUMN p", "RENAME COLUMN q TO p")
    # Nobody says that it is in step before it is, and what is compared is what was built.
    positions = read_positions(table.deployment, table.source)
    assert {each.watermark.version for each in positions} == {before}
    assert set(kinds(table.follow())) == {ReadKind.SNAPSHOT}
    assert served(table, "p, w") == [("a", 1, "q1", 1), ("b", 2, "q2", 2)]
    alter(table, "ADD COLUMNS (q STRING COMMENT 'more')")
    assert set(kinds(table.follow())) == {ReadKind.TAIL}
    assert served(table, "p, q, w") == [("a", 1, "q1", None, 1), ("b", 2, "q2", None, 2)]
    # A runner that was down notices the change, and tails have the new names.
    assert table.look().dispatches == []
    alter(table, *SWAP)
    table.runner = Runner(table.deployment, [table.source])
    assert set(kinds(table.follow())) == {ReadKind.SNAPSHOT}
    table.sql("UPDATE {t} SET p = 'later' WHERE id = 2")
    assert set(kinds(table.follow())) == {ReadKind.TAIL}
    assert served(table, "p, q, w") == [("a", 1, None, "q1", 1), ("b", 2, "later", "q2", 2)]
    table.check()


def alter(table, *statements):
    for statement in statements:
        table.sql(f"ALTER TABLE {{t}} {statement}")


def served(table, columns):
    """Return the rows of the index view."""
    return table.query(f"SELECT tenant, id, {columns} FROM {{mirror}} ORDER BY id")


def test_a_comparison_says_that_the_log_has_lost_a_version_and_compares_what_there_is(
    deployment, kept_spark
):
    properties = f"{FEED}, 'delta.checkpointInterval' = '2'"
    table = Table.make(
        deployment, Mirror(), columns=COLUMNS, properties=properties, writer=kept_spark
    )
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


def test_whatever_delta_widens_is_widened_in_the_index(spark_deployment, kept_spark):
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
        spark_deployment,
        Mirror(),
        columns=f"tenant STRING, id BIGINT, {columns}",
        properties=f"{FEED}, delta.enableTypeWidening = true, {NTZ}",
        writer=kept_spark,
    )
    values = ", ".join(f"CAST({value} AS {type_})" for type_, value, _ in widened.values())
    table.sql(f"INSERT INTO {{t}} SELECT tenant, id, {values} FROM {TWO_ROWS}")
    table.follow()
    alter(table, *(f"ALTER COLUMN {name} TYPE {type_}" for name, (_, _, type_) in widened.items()))
    table.sql("UPDATE {t} SET d = 1234567890.1234, n = 0.25, xs = array(5000000000) WHERE id = 1")
    table.follow()
    assert {job.state for job in table.jobs()} == {JobState.COMPLETED}
    table.check()
    found = table.query("SELECT toString(d), n, xs FROM {mirror} ORDER BY id")
    assert [row[0] for row in found] == ["-123.45", "1234567890.1234"]


def test_a_column_without_a_type_appears_once_it_has_one(spark_deployment, kept_spark):
    """Spark stores nothing of a VOID column."""
    columns = "tenant STRING, id BIGINT, v VOID"
    table = Table.make(spark_deployment, Mirror(), columns=columns, writer=kept_spark)
    table.sql("INSERT INTO {t} VALUES ('a', 1, NULL), ('b', 2, NULL)")
    table.follow()
    table.sql("INSERT INTO {t} VALUES ('a', 3, NULL)")
    table.sql("UPDATE {t} SET id = 4 WHERE id = 1")
    assert set(kinds(table.follow())) == {ReadKind.TAIL}
    assert table.query("SELECT * FROM {mirror} ORDER BY id") == [("b", 2), ("a", 3), ("a", 4)]

    def append(spark):
        rows = spark.sql("SELECT 'a' AS tenant, 5L AS id, 7 AS v")
        rows.write.format("delta").mode("append").option("mergeSchema", "true").save(table.path)

    kept_spark.write("append 7 as v", Path(table.path), append)
    table.follow()
    table.check()
    found = table.query("SELECT id, v FROM {mirror} ORDER BY id")
    assert found == [(2, None), (3, None), (4, None), (5, 7)]
