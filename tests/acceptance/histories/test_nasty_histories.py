"""Histories that went wrong elsewhere, or might: what ClickHouse serves is what Spark reads.

A history is its name, SQL with `{t}` for the Delta table, `LOOK` where it is synchronized and
compared in between, and what differs from a table `(tenant, id, v)`: other columns after the id
(`more`), or all of them (`columns`). They are grouped by what went wrong; `ELSEWHERE` names the
tests of kinds that cannot be written as such a history.

An archive in `tests/golden/histories/nasty` keeps the tables of a history, which Spark wrote once,
and the rows that Spark read of them. A history without one is written in one Spark, some side by
side; a soak writes all of them. To keep all, or those that `-k` names:
`ISCP_WRITE_HISTORIES=1 pytest -m "soak or not soak" -k test_clickhouse_has_what_spark_has
tests/acceptance/histories/test_nasty_histories.py`.
"""

import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp_dagster import FullText, Mirror, Vector
from iscp_dagster.api.jobs import ALL_TENANTS, Jobs
from iscp_dagster.model.errors import KeyColumnError, SchemaError
from iscp_dagster.model.jobs import JobID
from iscp_dagster.spark import quoting
from iscp_dagster.spark.session import create_private_session
from support.lake.delta_tables import FEED, deployment_at
from support.lake.golden_histories import WRITER_SETTINGS, to_be_written
from support.lake.spark_histories import (
    LOOK,
    IndexStep,
    history,
    live_through,
    record,
    replay,
)
from support.spark.fake_spark import near

AT_ONCE = 4
SETTINGS = WRITER_SETTINGS | {
    "spark.databricks.delta.schema.autoMerge.enabled": "false",
    "spark.databricks.delta.checkpoint.partSize": "3",
}
PLAIN_FEED = "delta.enableChangeDataFeed = true"
"""Without in-commit timestamps, which delta-rs does not write."""
MAPPED = f"{FEED}, delta.columnMapping.mode = 'name'"
VECTORS = f"{FEED}, delta.enableDeletionVectors = true"
WIDENING = f"{FEED}, delta.enableTypeWidening = true"
ODD_TENANTS = (
    *(
        "a b",
        "a/b",
        "a%2Fb",
        "quo'te",
        'quo"te',
        "back\\slash",
        "tick`",
        "é",
        "e\u0301",
        "名",
        "😀",
    ),
    *(".", "..", "null", "NULL", "None", "default", "*", "%s", "{a:String}", "a,b", "a=b", "a;b"),
    *("--", "/*", "tab\t", "line\nbreak", "\r", "\x7f", " a", "a ", "A", "a", "0", "-1"),
    *("1e3", "true", "(x)", "[y]", "<z>", "#", "?", "&", "$", "@", "~", "t" * 180),
)
ODD_COLUMNS = (
    *("a b", ";", "it's", 'qu"ote', "back\\slash", "größe", "grüße", "名", "😀", "e\u0301", "é"),
    *("{", "}", "(", ")", ",", "=", "*", "%s", "?", "--", "/*", "#", "$x", "@", "~", "[0]", "<z>"),
    *("select", "null", "from", "0", "1e3", "size0", "FINAL", "default", "line\nbreak", "tab\t"),
)
"""Without a backtick, over which Delta's own UPDATE fails."""
WIDE = 1_000
NINES = "9" * 38
OLD = "'1969-12-31 23:59:59.999999Z', '1900-01-01 00:00:00', '1900-01-01'"
LATE = "'2299-12-31 23:59:59.999999Z', '2299-12-31 23:59:59.999999', '2299-12-31'"
ODD_FLOATS = "float('-Infinity'), double('NaN')"


def put(*rows):
    """The statement that inserts rows, each written as its values."""
    return f"INSERT INTO {{t}} VALUES {', '.join(f'({row})' for row in rows)}"


TWO = put("'a', 1, 'x'", "'a', 2, 'y'", "'b', 1, 'z'", "'b', 2, 'w'")
"""Two rows of each of two tenants."""


def numbers(count):
    return ", ".join(map(str, range(count)))


def sql_text(value):
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def append_by_rust(*rows):
    """Append rows `(tenant, id, v)` by delta-rs."""

    def append(table):
        names = ("tenant", "id", "v")
        columns = {name: [row[at] for row in rows] for at, name in enumerate(names)}
        write_deltalake(table.path, pa.table(columns), mode="append")

    return append


def delete_by_rust(predicate):
    return lambda table: DeltaTable(table.path).delete(predicate)


def update_by_rust(predicate, **updates):
    return lambda table: DeltaTable(table.path).update(predicate=predicate, updates=updates)


def overwrite(rows, **options):
    """Overwrite by a DataFrame, which can do what SQL cannot; `rows` is a query."""

    def write(table):
        frame = table.writer.sql(rows).write.format("delta").mode("overwrite")
        frame.options(**options).partitionBy("tenant").save(table.path)

    return write


def in_zone(zone, statement):
    """Run SQL in a session of its own, in which clocks show the time of `zone`."""

    def run(table):
        session = table.deployment.private_spark()
        try:
            session.conf.set("spark.sql.session.timeZone", zone)
            session.sql(statement.replace("{t}", f"delta.`{table.path}`")).collect()
        finally:
            session.stop()

    return run


def clean_log(table):
    """Delete the log's files before its last checkpoint, as its retention does."""
    log = Path(table.path, "_delta_log")
    last = json.loads((log / "_last_checkpoint").read_text())["version"]
    for file in log.glob("*"):
        number = file.name.split(".")[0]
        if number.isdigit() and int(number) < last:
            file.unlink()


def hint_at(version):
    """Have `_last_checkpoint` name an earlier version than that of the last checkpoint."""

    def write(table):
        hint = Path(table.path, "_delta_log", "_last_checkpoint")
        hint.write_text(json.dumps({"version": version, "size": 3}))

    return write


def recreate(*rows):
    """Delete the folder, and create the table in it anew."""

    def create(table):
        shutil.rmtree(table.path)
        table.create("tenant STRING, id BIGINT, v STRING")
        if rows:
            table.sql(put(*rows))

    return create


def clone_changed(table):
    """Put a clone of a copy in the table's place; its files lie in the copy's folder."""
    copy = f"delta.`{table.path}_copy`"
    table.sql(f"CREATE TABLE {copy} USING delta PARTITIONED BY (tenant) AS SELECT * FROM {{t}}")
    table.sql(f"UPDATE {copy} SET v = 'copied' WHERE id = 1")
    shutil.rmtree(table.path)
    table.sql(f"CREATE TABLE {{t}} SHALLOW CLONE {copy} TBLPROPERTIES ({FEED})")


def declare_and_rebuild(**declared):
    """Declare the mirror with other columns, and have it rebuilt."""

    def rebuild(table):
        table.source = table.with_indexes(Mirror(**declared), *table.source.indexes[1:]).source
        table.runner = None
        jobs = Jobs(deployment=table.deployment, sources=[table.source], cancel_runs=pytest.fail)
        name = JobID(db=table.source.database, table=table.source.table, job="mirror")
        assert jobs.rebuild_job(ALL_TENANTS, name)

    return IndexStep(rebuild)


def many(number, statement):
    """As many times the same statement, `#` being the number."""
    return [statement.replace("#", str(each)) for each in range(number)]


HISTORIES = {
    "keys and tenants": (
        history(
            "keys are swapped, then go round in three commits",
            *(TWO, LOOK, "UPDATE {t} SET id = 3 - id", LOOK, "UPDATE {t} SET id = 9 WHERE id = 1"),
            *("UPDATE {t} SET id = 1 WHERE id = 2", "UPDATE {t} SET id = 2 WHERE id = 9"),
        ),
        history(
            "tenants exchange their rows, and one is left without",
            *(
                TWO,
                LOOK,
                "UPDATE {t} SET tenant = CASE tenant WHEN 'a' THEN 'b' ELSE 'a' END",
                LOOK,
            ),
            "UPDATE {t} SET tenant = 'c', id = id + 10 WHERE tenant = 'a'",
        ),
        history(
            "a tenant is deleted and comes again",
            *(TWO, LOOK, "DELETE FROM {t} WHERE tenant = 'a'", LOOK, put("'a', 2, 'again'")),
        ),
        history(
            "a key lives many lives between two looks",
            *(TWO, LOOK, "DELETE FROM {t} WHERE id = 1", put("'a', 1, 'second'")),
            *("UPDATE {t} SET v = 'third' WHERE id = 1", "DELETE FROM {t} WHERE id = 1"),
            put("'a', 1, 'fourth'"),
        ),
        history(
            "odd tenants",
            put(*(f"{quoted}, 1, {quoted}" for quoted in map(sql_text, ODD_TENANTS))),
            *(LOOK, "UPDATE {t} SET v = upper(v)", "DELETE FROM {t} WHERE tenant LIKE 'a%'"),
        ),
        history(
            "no tenants, and clustered",
            *("INSERT INTO {t} SELECT id, 'v' || id FROM range(100)", LOOK),
            *(
                "UPDATE {t} SET v = 'u' WHERE id % 10 = 0",
                "OPTIMIZE {t}",
                "DELETE FROM {t} WHERE id = 5",
            ),
            columns="id BIGINT, v STRING",
            tenant=None,
            by="CLUSTER BY (id)",
        ),
        history(
            "tenants of numbers",
            *(put("1, 1, 'x'", "-5, 1, 'y'", "0, 1, 'z'"), LOOK),
            *("UPDATE {t} SET tenant = 7 WHERE tenant = 0", put("1, 2, 'w'")),
            columns="tenant INT, id BIGINT, v STRING",
        ),
        history(
            "tenants of dates",
            *(put("'1969-12-31', 1, 'x'", "'2024-02-29', 1, 'y'"), LOOK),
            *("UPDATE {t} SET tenant = '2024-03-01' WHERE v = 'y'", put("'1969-12-31', 2, 'z'")),
            columns="tenant DATE, id BIGINT, v STRING",
        ),
        history(
            "tenants of truth values",
            *(put("true, 1, 'x'", "false, 1, 'y'"), LOOK, "UPDATE {t} SET tenant = NOT tenant"),
            columns="tenant BOOLEAN, id BIGINT, v STRING",
            soak=True,
        ),
        history(
            "a second partition column",
            *(put("'a', 1, '2020-01-01'", "'a', 2, NULL", "'b', 1, '2020-01-01'"), LOOK),
            *(
                "UPDATE {t} SET day = '2020-01-02' WHERE id = 1",
                "DELETE FROM {t} WHERE day IS NULL",
            ),
            more="day DATE",
            by="PARTITIONED BY (day, tenant)",
        ),
    ),
    "types of keys": (
        history(
            "keys that look alike",
            put("'a', 'é', 1", "'a', 'e\u0301', 2", "'a', 'É', 3", "'a', '', 4", "'a', ' ', 5"),
            put(
                "'a', 'x', 6", "'a', 'x ', 7", r"'a', 'x\u0000', 8", "'a', CAST(X'ff' AS STRING), 9"
            ),
            *(LOOK, "UPDATE {t} SET n = -n", "DELETE FROM {t} WHERE k = 'é'"),
            columns="tenant STRING, k STRING, n INT",
            key="k",
        ),
        history(
            "keys of many types together",
            put("'a', true, '1969-12-31', 1.10, X'00', '1969-12-31 23:59:59.5Z', 'v'"),
            put("'a', false, '1969-12-31', 1.1, X'', '1969-12-31 23:59:59.5Z', NULL"),
            *(LOOK, "UPDATE {t} SET v = 'new' WHERE b"),
            "UPDATE {t} SET x = X'ff', c = -1.1 WHERE NOT b",
            columns="tenant STRING, b BOOLEAN, d DATE, c DECIMAL(5, 2), x BINARY, t TIMESTAMP, "
            "v STRING",
            key=("b", "d", "c", "x", "t"),
        ),
        history(
            "a key's zero gets a sign",
            *(put("'a', 0.0D, 'plus'", "'a', 1.5D, 'v'", "'b', -0.0D, 'minus'"), LOOK),
            *("UPDATE {t} SET k = -0.0D, v = 'was plus' WHERE v = 'plus'", LOOK),
            "DELETE FROM {t} WHERE tenant = 'b'",
            columns="tenant STRING, k DOUBLE, v STRING",
            key="k",
        ),
        history(
            "both zeros are keys",
            *(put("'a', 0.0D, 'plus'"), LOOK, put("'a', -0.0D, 'minus'")),
            columns="tenant STRING, k DOUBLE, v STRING",
            key="k",
            refused=KeyColumnError.code,
        ),
        history(
            "a key that is no number",
            *(put("'a', double('NaN'), 'nan'", "'a', double('Infinity'), 'inf'"), LOOK),
            *("UPDATE {t} SET v = 'changed'", LOOK, "DELETE FROM {t} WHERE isnan(k)"),
            columns="tenant STRING, k DOUBLE, v STRING",
            key="k",
        ),
        history(
            "rows without a key, and some of them twice",
            *(put("'a', 1, map('k', 1)", "'a', 1, map('k', 1)", "'b', NULL, map()"), LOOK),
            *(put("'a', 1, map('k', 1)"), LOOK),
            put("'a', NULL, map('j', NULL)", "'a', NULL, map('j', NULL)"),
            columns="tenant STRING, n INT, m MAP<STRING, INT>",
            key=(),
            indexes=(Mirror(append=True),),
        ),
        history(
            "keys of the other types together",
            put("'a', -128, -32768, 1, 1.5F, 1e37BD, '1900-01-01 00:00:00', 'v'"),
            *(put("'a', -128, -32768, 1, 1.5F, 1e36BD, '1900-01-01 00:00:00', 'w'"), LOOK),
            *("UPDATE {t} SET v = 'new', f = float('-Infinity')", "DELETE FROM {t} WHERE v = 'w'"),
            "UPDATE {t} SET y = 127, h = 32767, n = '2299-12-31 23:59:59.999999' WHERE c = 1e37BD",
            columns="tenant STRING, y TINYINT, h SMALLINT, i INT, f FLOAT, c DECIMAL(38, 0), "
            "n TIMESTAMP_NTZ, v STRING",
            key=("y", "h", "i", "f", "c", "n"),
        ),
    ),
    "deletion vectors": (
        history(
            "deletion vectors, and files rewritten over them",
            *("INSERT INTO {t} SELECT 'a', id, 'v' || id FROM range(1000)", LOOK),
            *(
                "DELETE FROM {t} WHERE id % 3 = 0",
                "UPDATE {t} SET v = 'new' WHERE id % 7 = 0",
                LOOK,
            ),
            *("OPTIMIZE {t}", "DELETE FROM {t} WHERE id % 5 = 0"),
            properties=VECTORS,
            soak=True,
        ),
        history(
            "half of a large file is deleted, twice",
            *("INSERT INTO {t} SELECT /*+ COALESCE(1) */ 'a', id, 'v' FROM range(600000)", LOOK),
            *("DELETE FROM {t} WHERE id % 2 = 0", "DELETE FROM {t} WHERE id % 4 = 1"),
            properties=VECTORS,
            where="id % 997 < 3",
            soak=True,
        ),
        history(
            "deletion vectors come, are purged and given up",
            *("INSERT INTO {t} SELECT /*+ COALESCE(1) */ 'a', id, 'v' FROM range(100)", LOOK),
            *("ALTER TABLE {t} SET TBLPROPERTIES (delta.enableDeletionVectors = true)", LOOK),
            *("DELETE FROM {t} WHERE id < 10", "REORG TABLE {t} APPLY (PURGE)", LOOK),
            "MERGE INTO {t} t USING (SELECT id FROM range(20, 30)) s ON t.id = s.id WHEN MATCHED "
            "AND t.id < 25 THEN DELETE WHEN MATCHED THEN UPDATE SET v = 'm'",
            *("ALTER TABLE {t} SET TBLPROPERTIES (delta.enableDeletionVectors = false)", LOOK),
            "DELETE FROM {t} WHERE id = 99",
        ),
    ),
    "logs and feeds": (
        history(
            "delta-rs writes beside Spark",
            *(TWO, LOOK, append_by_rust(("a", 3, "rust"), ("c", 1, "new"))),
            *("UPDATE {t} SET v = 'spark' WHERE id = 3", update_by_rust("id = 1", v="'both'")),
            delete_by_rust("tenant = 'b' AND id = 2"),
            properties=PLAIN_FEED,
        ),
        history(
            "the change feed's files are vacuumed",
            *(TWO, LOOK, "UPDATE {t} SET v = 'u' WHERE id = 1", "DELETE FROM {t} WHERE id = 2"),
            "VACUUM {t} RETAIN 0 HOURS",
        ),
        history(
            "the change feed is switched off for a while",
            *(TWO, LOOK, "ALTER TABLE {t} SET TBLPROPERTIES (delta.enableChangeDataFeed = false)"),
            *("UPDATE {t} SET v = 'unseen' WHERE id = 1", "DELETE FROM {t} WHERE id = 2"),
            *("ALTER TABLE {t} SET TBLPROPERTIES (delta.enableChangeDataFeed = true)", LOOK),
            "UPDATE {t} SET v = 'seen' WHERE id = 1",
        ),
        history(
            "checkpoints of many parts",
            *many(5, "INSERT INTO {t} VALUES ('a', #, 'v'), ('b', #, 'w'), ('c#', 1, 'x')"),
            *(clean_log, LOOK, "UPDATE {t} SET v = 'new' WHERE id = 3"),
            properties=f"{FEED}, delta.checkpointInterval = 2",
        ),
        history(
            "checkpoints of version 2, row tracking, and no statistics",
            *(TWO, "UPDATE {t} SET v = 'one' WHERE id = 1", LOOK),
            *("UPDATE {t} SET id = id + 1 WHERE tenant = 'a'", put("'a', 9, 'nine'")),
            properties=f"{FEED}, delta.checkpointPolicy = 'v2', delta.checkpointInterval = 2, "
            "delta.enableRowTracking = true, delta.dataSkippingNumIndexedCols = 0",
        ),
        history(
            "the change feed is switched on late",
            *(TWO, "UPDATE {t} SET v = 'unseen' WHERE id = 1"),
            "ALTER TABLE {t} SET TBLPROPERTIES (delta.enableChangeDataFeed = true)",
            *(LOOK, "UPDATE {t} SET v = 'seen' WHERE id = 2"),
            properties="",
        ),
        history(
            "times come into the commits late",
            *(TWO, LOOK, "UPDATE {t} SET v = 'before' WHERE id = 1"),
            "ALTER TABLE {t} SET TBLPROPERTIES (delta.enableInCommitTimestamps = true)",
            *("UPDATE {t} SET v = 'after' WHERE id = 2", LOOK, put("'c', 1, 'more'")),
            properties=PLAIN_FEED,
        ),
        history(
            "the log before the checkpoint is deleted",
            *(TWO, LOOK, "ALTER TABLE {t} ADD COLUMNS (n INT)"),
            *many(6, "INSERT INTO {t} VALUES ('a', 1#, 'v', #)"),
            clean_log,
            properties=f"{FEED}, delta.checkpointInterval = 3",
        ),
        history(
            "the hint of the last checkpoint is stale",
            *many(5, "INSERT INTO {t} VALUES ('a', #, 'v'), ('b', #, 'w')"),
            *(clean_log, hint_at(2), LOOK, "UPDATE {t} SET v = 'on' WHERE id = 3", clean_log),
            hint_at(2),
            properties=f"{FEED}, delta.checkpointInterval = 2",
        ),
    ),
    "statements": (
        history(
            "MERGE inserts, updates and deletes",
            *(TWO, LOOK),
            "MERGE INTO {t} t USING (SELECT * FROM VALUES ('a', 1L, 'm'), ('a', 2L, NULL), "
            "('c', 1L, 'n') AS s(tenant, id, v)) s ON t.tenant = s.tenant AND t.id = s.id "
            "WHEN MATCHED AND s.v IS NULL THEN DELETE WHEN MATCHED THEN UPDATE SET * "
            "WHEN NOT MATCHED THEN INSERT * WHEN NOT MATCHED BY SOURCE AND t.id = 2 THEN DELETE",
        ),
        history(
            "MERGE brings a column",
            *(TWO, LOOK),
            "MERGE WITH SCHEMA EVOLUTION INTO {t} t USING (SELECT 'a' AS tenant, 1L AS id, 'm' AS "
            "v, 7 AS more) s ON t.tenant = s.tenant AND t.id = s.id WHEN MATCHED THEN UPDATE SET * "
            "WHEN NOT MATCHED THEN INSERT *",
        ),
        history(
            "OPTIMIZE, also by Z-order, between changes",
            *(TWO, put("'a', 3, 'more'"), LOOK, "OPTIMIZE {t}"),
            *("UPDATE {t} SET v = 'o' WHERE id = 1", "OPTIMIZE {t} ZORDER BY (id)"),
        ),
        history(
            "RESTORE to an earlier version",
            *(TWO, "UPDATE {t} SET v = 'later'", "DELETE FROM {t} WHERE id = 2", LOOK),
            *("RESTORE TABLE {t} TO VERSION AS OF 1", LOOK, put("'a', 5, 'on'")),
        ),
        history(
            "CREATE OR REPLACE, with other columns and fewer tenants",
            *(TWO, LOOK),
            "CREATE OR REPLACE TABLE {t} USING delta PARTITIONED BY (tenant) TBLPROPERTIES "
            f"({FEED}) AS SELECT 'b' AS tenant, 1L AS id, 7 AS n",
            *(LOOK, put("'b', 2, 8", "'c', 1, 9")),
            on_replace="rebuild",
        ),
        history(
            "all rows are deleted, then overwritten",
            *(TWO, LOOK, "DELETE FROM {t}", LOOK, "INSERT OVERWRITE {t} VALUES ('a', 1, 'over')"),
            "INSERT OVERWRITE {t} VALUES ('b', 1, 'over'), ('b', 2, 'and over')",
            soak=True,
        ),
        history(
            "TRUNCATE, then new rows",
            *(TWO, LOOK, "TRUNCATE TABLE {t}", LOOK, put("'b', 1, 'new'")),
        ),
        history(
            "REPLACE WHERE, of rows and of a partition",
            *(
                TWO,
                LOOK,
                "INSERT INTO {t} REPLACE WHERE id = 1 VALUES ('a', 1, 'r'), ('c', 1, 'r')",
            ),
            "INSERT INTO {t} REPLACE WHERE tenant = 'b' VALUES ('b', 5, 'p')",
        ),
        history(
            "partitions are overwritten, one by name and one by its rows",
            *(TWO, LOOK, "INSERT OVERWRITE {t} PARTITION (tenant = 'a') SELECT 1L, 'named'", LOOK),
            overwrite("SELECT 'b' AS tenant, 7L AS id, 'x' AS v", partitionOverwriteMode="dynamic"),
        ),
        history(
            "overwritten with other columns",
            *(TWO, LOOK),
            overwrite("SELECT 'b' AS tenant, 7L AS id, 5 AS n", overwriteSchema="true"),
            *(LOOK, put("'a', 1, 6")),
        ),
        history(
            "commits without rows",
            *(
                TWO,
                LOOK,
                "UPDATE {t} SET v = 'none' WHERE id = 99",
                "DELETE FROM {t} WHERE id = 99",
            ),
            *("INSERT INTO {t} SELECT * FROM {t} WHERE id > 99", "OPTIMIZE {t}", LOOK),
            *("ALTER TABLE {t} ALTER COLUMN v COMMENT 'told'", "COMMENT ON TABLE {t} IS 'all'"),
            *("ALTER TABLE {t} SET TBLPROPERTIES ('my.own' = 'x')", LOOK, put("'a', 3, 'row'")),
        ),
        history(
            "RESTORE to before a rename and an added column",
            *(
                TWO,
                LOOK,
                "ALTER TABLE {t} RENAME COLUMN v TO w",
                "ALTER TABLE {t} ADD COLUMNS (n INT)",
            ),
            *(put("'a', 3, 'x', 7"), LOOK, "RESTORE TABLE {t} TO VERSION AS OF 1", LOOK),
            put("'a', 4, 'on'"),
            properties=MAPPED,
            soak=True,
        ),
        history(
            "recreated with fewer tenants, then without rows",
            *(TWO, LOOK, recreate("'b', 1, 'new'"), LOOK, recreate(), LOOK, put("'a', 1, 'on'")),
            on_replace="rebuild",
            soak=True,
        ),
        history(
            "replaced by a shallow clone",
            *(TWO, LOOK, clone_changed, LOOK, "UPDATE {t} SET v = 'own' WHERE id = 2"),
            on_replace="rebuild",
            movable=False,
            soak=True,
        ),
    ),
    "columns that come, go and are renamed": (
        history(
            "columns are added",
            *(TWO, LOOK, "ALTER TABLE {t} ADD COLUMNS (n INT AFTER id, more DATE)", LOOK),
            put("'a', 3, 5, 'z', DATE'2020-02-29'"),
        ),
        history(
            "a struct's field is added",
            *(put("'a', 1, struct('x')"), LOOK, "ALTER TABLE {t} ADD COLUMNS (s.more DATE)"),
            more="s STRUCT<a: STRING>",
        ),
        history(
            "columns change places",
            *(TWO, LOOK, "ALTER TABLE {t} ALTER COLUMN v FIRST", LOOK),
            "INSERT INTO {t} (tenant, id, v) VALUES ('a', 3, 'placed')",
        ),
        history(
            "two columns exchange their names by metadata alone",
            *(put("'a', 1, 'p', 'q'", "'b', 1, 'pp', 'qq'"), LOOK),
            *(f"ALTER TABLE {{t}} RENAME COLUMN {old} TO {new}" for old, new in ("px", "qp", "xq")),
            more="p STRING, q STRING",
            properties=MAPPED,
        ),
        history(
            "a column is renamed, then one tenant writes",
            *(TWO, LOOK, "ALTER TABLE {t} RENAME COLUMN v TO w", put("'a', 3, 'after'")),
            properties=MAPPED,
        ),
        history(
            "a column is dropped and added again",
            *(put("'a', 1, 5", "'b', 1, 6"), LOOK, "ALTER TABLE {t} DROP COLUMN w"),
            "ALTER TABLE {t} ADD COLUMNS (w INT)",
            more="w INT",
            properties=MAPPED,
        ),
        history(
            "a struct's field is renamed, then one tenant writes",
            *(put("'a', 1, struct(1, 2)", "'b', 1, struct(3, 4)"), LOOK),
            *("ALTER TABLE {t} RENAME COLUMN s.x TO z", LOOK, put("'a', 2, struct(5, NULL)")),
            more="s STRUCT<x: INT, y: INT>",
            properties=MAPPED,
            verified=True,
            soak=True,
        ),
        history(
            "two fields of a struct exchange their names",
            *(put("'a', 1, struct('x', 'y')", "'b', 1, struct(NULL, 'yy')"), LOOK),
            *(
                f"ALTER TABLE {{t}} RENAME COLUMN s.{old} TO {new}"
                for old, new in ("xt", "yx", "ty")
            ),
            more="s STRUCT<x: STRING, y: STRING>",
            properties=MAPPED,
        ),
        history(
            "fields of structs in arrays and maps are renamed, dropped and added",
            put("'a', 1, array(struct(1, array(2))), map('k', struct(3, struct('x')))"),
            *(put("'b', 1, array(), map('k', NULL)"), LOOK),
            "ALTER TABLE {t} RENAME COLUMN l.element.xs TO zs",
            *("ALTER TABLE {t} RENAME COLUMN m.value.s.t TO u", LOOK),
            *(f"ALTER TABLE {{t}} DROP COLUMN {field}" for field in ("l.element.x", "m.value.s")),
            *(LOOK, "ALTER TABLE {t} ADD COLUMNS (l.element.x INT, m.value.s STRUCT<u: STRING>)"),
            *(LOOK, put("'b', 2, array(struct(array(), 7)), map('k', struct(NULL, struct('u')))")),
            more="l ARRAY<STRUCT<x: INT, xs: ARRAY<INT>>>, "
            "m MAP<STRING, STRUCT<x: INT, s: STRUCT<t: STRING>>>",
            properties=MAPPED,
            nulls=False,
            verified=True,
            soak=True,
        ),
        history(
            "a struct's field is dropped and added with another type",
            *(put("'a', 1, struct(1, 2)"), LOOK, "ALTER TABLE {t} DROP COLUMN s.x"),
            "ALTER TABLE {t} ADD COLUMNS (s.x STRING)",
            more="s STRUCT<x: INT, y: INT>",
            properties=MAPPED,
            refused=SchemaError.code,
        ),
        history(
            "columns are added, declared and rebuilt",
            *(TWO, LOOK, "ALTER TABLE {t} ADD COLUMNS (n INT)", put("'a', 3, 'z', 7")),
            *(declare_and_rebuild(columns=["v", "n"]), LOOK, "UPDATE {t} SET n = 8 WHERE id = 1"),
            indexes=(Mirror(columns=["v"]), FullText("v")),
            soak=True,
        ),
        history(
            "columns are mapped late, then renamed",
            *(TWO, LOOK, "ALTER TABLE {t} SET TBLPROPERTIES (delta.columnMapping.mode = 'name')"),
            *(LOOK, "ALTER TABLE {t} RENAME COLUMN v TO w", put("'a', 3, 'after'")),
        ),
        history(
            "columns are mapped by their ids",
            *(put("'a', 1, struct(1, 2)", "'b', 1, NULL"), LOOK),
            *("ALTER TABLE {t} RENAME COLUMN s.x TO z", "UPDATE {t} SET s.z = 9 WHERE id = 1"),
            more="s STRUCT<x: INT, y: INT>",
            properties=f"{FEED}, delta.columnMapping.mode = 'id'",
            nulls=False,
        ),
        history(
            "a name changes its case",
            *(
                TWO,
                LOOK,
                "ALTER TABLE {t} RENAME COLUMN v TO x",
                "ALTER TABLE {t} RENAME COLUMN x TO V",
            ),
            put("'a', 3, 'V'"),
            properties=MAPPED,
            soak=True,
        ),
    ),
    "types that are widened": (
        history(
            "numbers are widened",
            *(put("'a', 1, 127, 1.1"), LOOK, "ALTER TABLE {t} ALTER COLUMN n TYPE INT"),
            *("ALTER TABLE {t} ALTER COLUMN f TYPE DOUBLE", put("'a', 2, 2147483647, 1e300")),
            more="n TINYINT, f FLOAT",
            properties=WIDENING,
        ),
        history(
            "a decimal is widened",
            *(put("'a', 1, 9.99"), LOOK, "ALTER TABLE {t} ALTER COLUMN d TYPE DECIMAL(20, 4)"),
            put("'a', 2, 1234567890123456.1234"),
            more="d DECIMAL(5, 2)",
            properties=WIDENING,
            soak=True,
        ),
    ),
    "columns": (
        history(
            "odd columns",
            *(put(f"'a', 1, struct(6, 7), array(8), {numbers(len(ODD_COLUMNS))}"), LOOK),
            "UPDATE {t} SET `a b` = -1, `;` = -2",
            "INSERT INTO {t} SELECT 'b', * EXCEPT (tenant) FROM {t}",
            more="`s.t` STRUCT<`x y`: INT, `Ä`: INT>, `a.r.r` ARRAY<INT>, "
            + ", ".join(f"{quoting.quote_identifier(name)} INT" for name in ODD_COLUMNS),
            properties=MAPPED,
        ),
        history(
            "generated, default and identity columns",
            *("INSERT INTO {t} (tenant, id) VALUES ('a', 1), ('a', 2)", LOOK),
            "UPDATE {t} SET id = 20 WHERE id = 2",
            "INSERT INTO {t} (tenant, id, d) VALUES ('a', 3, NULL)",
            more="g BIGINT GENERATED ALWAYS AS (id * 2), d STRING DEFAULT 'none', "
            "i BIGINT GENERATED ALWAYS AS IDENTITY",
            properties=f"{FEED}, delta.feature.allowColumnDefaults = 'supported'",
        ),
        history(
            "a thousand columns",
            f"INSERT INTO {{t}} SELECT 'a', id, {numbers(WIDE)} FROM range(3)",
            *(LOOK, put(f"'a', 5, {', '.join(['NULL'] * WIDE)}")),
            more=", ".join(f"c{number} INT" for number in range(WIDE)),
        ),
        history(
            "several indexes with columns of their own",
            *(put("'a', 1, 'some words', array(1F, 2F), 7"), LOOK),
            *("UPDATE {t} SET n = 8", put("'a', 2, 'more', array(0F, -0F), NULL")),
            more="v STRING, e ARRAY<FLOAT>, n INT",
            indexes=(Mirror(columns=["n"]), FullText("v", columns=["v"]), Vector("e", dimension=2)),
            soak=True,
        ),
        history(
            "CHECK constraints, and NOT NULL until it is dropped",
            *(
                put("'a', 1, 5", "'b', 1, 6"),
                LOOK,
                "ALTER TABLE {t} ADD CONSTRAINT c CHECK (id > 0)",
            ),
            *(LOOK, "ALTER TABLE {t} ALTER COLUMN n DROP NOT NULL", put("'a', 2, NULL"), LOOK),
            *("ALTER TABLE {t} DROP CONSTRAINT c", put("'b', -1, NULL")),
            more="n INT NOT NULL",
        ),
    ),
    "values": (
        history(
            "foreign encodings",
            put("'a', 1, CAST(X'ff61' AS STRING)", "'a', 2, CAST(X'e4f6' AS STRING)"),
            *(LOOK, put("'a', 3, CAST(X'c328' AS STRING)", "'a', 4, '\ufffd'")),
            "UPDATE {t} SET v = CAST(X'eda080' AS STRING) WHERE id = 1",
        ),
        history(
            "types within types within types",
            put("'a', 1, array(struct(map('k', array(struct(1.5D, NULL))), 'x'))"),
            *(LOOK, put("'a', 2, array()", "'a', 3, array(struct(map(), NULL))")),
            put(
                "'a', 4, array(struct(map('é', array(struct(NULL, true))), NULL), "
                "struct(map(), ''))"
            ),
            more="n ARRAY<STRUCT<m: MAP<STRING, ARRAY<STRUCT<d: DOUBLE, b: BOOLEAN>>>, s: STRING>>",
        ),
        history(
            "arrays, maps and structs are null",
            put("'a', 1, NULL, NULL, NULL", "'a', 2, array(1), map('k', 1), struct(1, 'x')"),
            *(LOOK, "UPDATE {t} SET l = NULL, m = NULL, s = NULL WHERE id = 2"),
            put("'a', 3, array(NULL), map('k', NULL), struct(NULL, NULL)"),
            more="l ARRAY<INT>, m MAP<STRING, INT>, s STRUCT<a: INT, b: STRING>",
            nulls=False,
        ),
        history(
            "maps whose keys are bytes, structs and arrays",
            put("'a', 1, map(X'00ff', 1), map(struct(1, 'x'), 1), map(array(1, 2), 'l')"),
            *(LOOK, put("'a', 2, map(), map(struct(2, ''), 2, struct(1, ''), 3), map()")),
            "UPDATE {t} SET b = map(X'', 5, X'80', NULL) WHERE id = 1",
            more="b MAP<BINARY, INT>, s MAP<STRUCT<x: INT, y: STRING>, INT>, "
            "l MAP<ARRAY<INT>, STRING>",
            verified=True,
            soak=True,
        ),
        history(
            "values at the ends of their types, and nulls in their place",
            put(f"'a', 1, true, -128, 0.0F, 0.0D, -{NINES}BD, '', X'', {OLD}"),
            put(f"'a', 2, NULL, NULL, {ODD_FLOATS}, {NINES}BD, NULL, NULL, NULL, NULL, NULL"),
            *(
                LOOK,
                "UPDATE {t} SET f = -0.0F, d = -0.0D, b = NULL, x = X'00', n = NULL WHERE id = 1",
            ),
            put(f"'a', 3, false, 127, 1.4E-45F, 4.9E-324D, 1.10BD, '', X'ff', {LATE}"),
            more="b BOOLEAN, y TINYINT, f FLOAT, d DOUBLE, e DECIMAL(38, 0), s STRING, x BINARY, "
            "t TIMESTAMP, n TIMESTAMP_NTZ, day DATE",
        ),
        history(
            "far times kept as numbers and texts",
            put("'a', 1, '0001-01-01 00:00:00Z', '0001-01-01 00:00:00', '0001-01-01'"),
            *(LOOK, put("'a', 3, NULL, NULL, NULL")),
            put(
                "'a', 2, '9999-12-31 23:59:59.999999Z', '9999-12-31 23:59:59.999999', '9999-12-31'"
            ),
            more="t TIMESTAMP, n TIMESTAMP_NTZ, d DATE",
            indexes=(
                Mirror(types={"t": "Int64", "n": "String", "d": "Int32"}),
                Mirror(name="texts", types={"t": "String", "n": "Int64", "d": "String"}),
            ),
        ),
        history(
            "empty texts and bytes of zero",
            put("'a', 1, ''", r"'a', 2, '\u0000'", r"'a', 3, 'x\u0000y'", "'a', 4, NULL"),
            *(LOOK, r"UPDATE {t} SET v = concat(v, '\u0000')"),
        ),
        history(
            "very long texts",
            put("'a', 1, repeat('é', 2000000)", "'a', 2, repeat('x', 70000)"),
            *(LOOK, "UPDATE {t} SET v = repeat('y', 5000000) WHERE id = 2"),
            soak=True,
        ),
        history(
            "variants, and texts of limited length",
            put("""'a', 1, parse_json('{"b": 1.50, "a": [null, "x"]}'), 'abc', 'de'"""),
            *(
                LOOK,
                "UPDATE {t} SET j = parse_json('null') WHERE id = 1",
                put("'a', 2, NULL, '', 'f'"),
            ),
            more="j VARIANT, vc VARCHAR(5), ch CHAR(4)",
        ),
        history(
            "writers in other time zones",
            in_zone(
                "America/New_York", put("'a', 1, '2024-11-03 01:30:00', '2024-11-03 01:30:00'")
            ),
            in_zone("Asia/Kathmandu", put("'a', 2, '1900-01-01 06:00:00', '1900-01-01 00:00:00'")),
            *(LOOK, in_zone("Europe/Dublin", "UPDATE {t} SET t = t + INTERVAL 6 MONTHS")),
            in_zone("Europe/Dublin", put("'b', 1, '2024-03-31 01:30:00', '2024-03-31 01:30:00'")),
            more="t TIMESTAMP, n TIMESTAMP_NTZ",
        ),
    ),
    "several of these at once": (
        history(
            "a deleted row, a wider type, a rename, a move and a new column in one look",
            *(put("'a', 1, 1, 'x'", "'a', 2, 2, 'y'", "'b', 1, 3, 'z'"), LOOK),
            *("DELETE FROM {t} WHERE id = 2", "ALTER TABLE {t} ALTER COLUMN n TYPE BIGINT"),
            "ALTER TABLE {t} RENAME COLUMN v TO w",
            "UPDATE {t} SET tenant = 'b', id = 7, n = 5000000000 WHERE tenant = 'a'",
            *("ALTER TABLE {t} ADD COLUMNS (v STRING)", LOOK, put("'a', 1, 9, 'w', 'v'")),
            more="n INT, v STRING",
            properties=f"{MAPPED}, delta.enableDeletionVectors = true, "
            "delta.enableTypeWidening = true, delta.enableRowTracking = true",
        ),
        history(
            "a column takes a dropped one's name, and gives it back by RESTORE",
            *(put("'a', 1, 5, 50", "'b', 1, 6, 60"), LOOK, "ALTER TABLE {t} DROP COLUMN n"),
            *("ALTER TABLE {t} RENAME COLUMN m TO n", LOOK, put("'a', 2, 70")),
            *("UPDATE {t} SET id = 9 WHERE tenant = 'b'", LOOK),
            *("RESTORE TABLE {t} TO VERSION AS OF 1", LOOK, put("'b', 2, 7, 8")),
            more="n BIGINT, m BIGINT",
            properties=MAPPED,
            soak=True,
        ),
        history(
            "keys and tenants go round, and neither log nor files tell how",
            *(TWO, LOOK, *many(3, "UPDATE {t} SET id = 3 - id")),
            "UPDATE {t} SET tenant = IF(tenant = 'a', 'b', 'a') WHERE id = 1",
            *("OPTIMIZE {t}", "VACUUM {t} RETAIN 0 HOURS", clean_log, LOOK),
            *("UPDATE {t} SET id = 3 - id", put("'c', 1, 'late'")),
            properties=f"{VECTORS}, delta.checkpointInterval = 2",
            soak=True,
        ),
    ),
}


ELSEWHERE = {
    "a catalog keeps the commits": "test_a_table_that_cannot_be_followed",
    "a feature of the future": "test_a_feature_that_comes_later",
    "a path with %20 in it": "test_a_url_with_escapes_names_one_folder_for_all_readers",
    "a person registers a recreated table": (
        "test_rows_of_tenants_that_a_recreated_table_lacks_cease_to_be_served"
    ),
    "a rebuild whatever its siblings do": (
        "test_a_rebuild_has_the_columns_that_the_table_has_gained_whatever_its_siblings_do"
    ),
    "columns of the type VOID": "test_a_column_without_a_type_appears_once_it_has_one",
    "equal keys, type by type": (
        "test_rows_are_one_where_spark_holds_their_keys_equal_and_two_elsewhere"
    ),
    "every widening": "test_whatever_delta_widens_is_widened_in_the_index",
    "every type, as itself and as declared": "test_every_type_is_kept_as_it_is_and_as_declared",
    "keys with a collation": "test_a_table_that_cannot_be_followed",
    "names by the hundred": "test_any_names_are_built_changed_and_verified",
    "null parts by each rule": "test_images_have_null_parts_by_their_indexes_rules",
    "rows without a tenant": "test_rows_without_a_tenant_are_left_out",
    "the order of append-only chunks": "test_chunks_are_the_same_whatever_spark_does",
}
"""Kinds that are no history here, and the tests that hold them."""


def list_histories(*, kept):
    """Return the histories, or those with an archive; only a soak has Spark write one again."""
    return [
        pytest.param(
            each,
            id=f"{kind}: {each.name}",
            marks=[pytest.mark.soak] if each.soak or each.is_kept > kept else [],
        )
        for kind, histories in HISTORIES.items()
        for each in histories
        if each.is_kept or not kept
    ]


@pytest.fixture(scope="module")
def running(request, spark_remote, clickhouse_url, tmp_path_factory):
    """Start the histories that were asked for, some at a time; give the future of each."""
    writer = create_private_session(spark_remote, SETTINGS)
    of_mine = [item for item in request.session.items if item.path == request.path]
    asked = [
        item.callspec.params["history"]
        for item in of_mine
        if item.function is test_clickhouse_has_what_spark_has
    ]

    def run(history):
        folder = tmp_path_factory.mktemp("history")
        deployment = deployment_at(clickhouse_url, spark_remote, folder)
        if to_be_written() and history.movable:
            record(history, deployment, writer, folder / "kept")
        else:
            live_through(history, deployment, writer)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {each.name: pool.submit(run, each) for each in asked}
        pool.shutdown(cancel_futures=True)
    writer.stop()


@pytest.mark.parametrize("history", list_histories(kept=False))
def test_clickhouse_has_what_spark_has(running, history):
    running[history.name].result()


@pytest.mark.parametrize("history", list_histories(kept=True))
def test_clickhouse_has_what_spark_had(request, clickhouse_url, tmp_path, history):
    with near() if not history.is_for_spark else nullcontext() as session:
        spark = session or request.getfixturevalue("spark_remote")
        replay(history, deployment_at(clickhouse_url, spark, tmp_path), tmp_path / "kept")


def test_the_kinds_that_are_held_elsewhere_are():
    files = Path(__file__).parents[2].rglob("test_*.py")
    tests = {
        name for file in files for name in re.findall(r"def (test_\w+)", file.read_text("utf-8"))
    }
    assert set(ELSEWHERE.values()) - tests == set()
