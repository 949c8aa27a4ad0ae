"""A snapshot read with Arrow equals the one that Spark reads, type by type and row by row."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import pytest

from iscp_dagster import Mirror
from iscp_dagster.clickhouse.connect.quoting import quote_string
from iscp_dagster.delta.checks import CHANGE_COLUMNS
from iscp_dagster.delta.read_plans import ReadKind, ReadPlan
from iscp_dagster.delta.reader import TableSelection, read_snapshot
from iscp_dagster.model.batch import Range
from iscp_dagster.model.moment import START
from iscp_dagster.sync.reading.reader import SourceReader, pass_through
from iscp_dagster.sync.reading.requests import ReadRequest
from support.lake.delta_tables import TYPES, Table, typed_columns, typed_rows

SNAPSHOT = ReadPlan(kind=ReadKind.SNAPSHOT, reason="asked for")
PLAIN = TYPES | {
    "small": ("DECIMAL(9, 2)", "-9999999.99, 0.01, 0, NULL"),
    "middle": ("DECIMAL(18, 4)", "-99999999999999.9999, 0.0001, 0, NULL"),
    "old": ("DATE", "'1583-01-01', '1900-01-01', '2299-12-31', NULL"),
    "late": ("TIMESTAMP", "'1583-01-01 00:00:00', '2299-12-31 23:59:59.999999', NULL, NULL"),
    "floats": ("ARRAY<FLOAT>", "array(0.5), array(), array(CAST(NULL AS FLOAT)), NULL"),
    "deep": (
        "ARRAY<STRUCT<d: DATE, m: MAP<STRING, STRUCT<a: TIMESTAMP>>>>",
        (
            "array(named_struct('d', DATE '1583-01-01', 'm', map('k', named_struct('a', NULL)))), "
            "array(NULL), array(), NULL"
        ),
    ),
    "times": ("ARRAY<TIMESTAMP>", "array('2020-01-01 00:00:00.5'), array(NULL), array(), NULL"),
}
OTHER = "b c/d'é%20"


def arrow_rows(table, columns, tenants):
    """Return the rows as an iteration's tasks read them; None where Spark reads them."""
    source = SourceReader(
        table.deployment,
        table.source,
        frozenset(tenants),
        table.deployment.make_delta_log(table.source),
    )
    log = table.deployment.make_delta_log(table.source)
    at = log.get_latest_moment()
    wanted = ReadRequest(plan=SNAPSHOT, range=Range(from_=START, to=at))
    rows = source.make_frame(table.deployment.spark(), wanted, columns, through_spark=False)
    if rows.unpack is pass_through:
        return None
    return pa.Table.from_batches(list(rows.unpack(rows.frame.toArrow().to_batches())))


def spark_rows(table, columns, tenants):
    at = table.deployment.make_delta_log(table.source).get_latest_moment()
    selection = TableSelection(
        path=table.path,
        columns=columns,
        keys=table.source.keys,
        tenant_column=table.source.tenant,
        tenants=frozenset(tenants),
    )
    return read_snapshot(table.deployment.spark(), selection, at).drop(*CHANGE_COLUMNS).toArrow()


def plain(table):
    """Return types and rows in key order, without part names and nullability."""
    named = table.sort_by([("tenant", "ascending"), ("id", "ascending")])
    types = [str(field.type).replace("element", "item") for field in named.schema]
    # As text, where NaN equals NaN.
    return [t.replace(" not null", "") for t in types], list(map(str, named.to_pylist()))


def of_one_tenant(rows):
    return rows.filter(pa.compute.equal(rows["tenant"], "a"))


def test_every_type_is_the_same(spark_deployment, kept_spark):
    columns = f"tenant STRING, id INT, {typed_columns(PLAIN)}"
    table = Table.make(spark_deployment, Mirror(), columns=columns, writer=kept_spark)
    both = (typed_rows(PLAIN, quote_string(tenant)) for tenant in ("a", OTHER))
    table.sql(f"INSERT INTO {{t}} {' UNION ALL '.join(both)}")
    names = ["id", *PLAIN, "tenant"]
    expected = spark_rows(table, names, ("a", OTHER))
    assert expected.num_rows == 8
    assert plain(arrow_rows(table, names, ("a", OTHER))) == plain(expected)
    assert plain(arrow_rows(table, names, ("a",))) == plain(of_one_tenant(expected))


def test_rows_that_went_columns_that_are_mapped_and_fields_that_came(spark_deployment, kept_spark):
    table = Table.make(
        spark_deployment,
        Mirror(),
        columns="tenant STRING, id BIGINT, st STRUCT<a: INT>, many ARRAY<STRUCT<a: INT>>",
        properties="delta.columnMapping.mode = 'name', 'delta.enableDeletionVectors' = true",
        writer=kept_spark,
    )
    of = "named_struct('a', {0}), array(named_struct('a', {0}))"
    for tenant in ("a", OTHER):
        rows = ", ".join(f"({quote_string(tenant)}, {n}, {of.format(n)})" for n in range(200))
        table.sql(f"INSERT INTO {{t}} VALUES {rows}, ({quote_string(tenant)}, 200, NULL, NULL)")
    table.sql("DELETE FROM {t} WHERE id % 3 = 0")
    table.sql("ALTER TABLE {t} ADD COLUMNS (st.b STRING, many.element.b STRING AFTER a)")
    table.sql(
        "INSERT INTO {t} VALUES ('a', 201, named_struct('a', 1, 'b', 'new'), "
        "array(NULL, named_struct('a', NULL, 'b', 'new')))"
    )
    table.sql("UPDATE {t} SET st = NULL WHERE id = 4")
    table.sql("ALTER TABLE {t} RENAME COLUMN st TO `other name`")
    table.sql("OPTIMIZE {t}")
    table.sql("INSERT INTO {t} (tenant, id) VALUES ('a', 202)")
    facts = spark_deployment.make_delta_log(table.source).get_facts()
    columns = [each.name for each in facts.fields]
    expected = spark_rows(table, columns, ("a", OTHER))
    assert expected.num_rows > 2 * 130
    assert plain(arrow_rows(table, columns, ("a", OTHER))) == plain(expected)
    assert plain(arrow_rows(table, columns, ("a",))) == plain(of_one_tenant(expected))


@pytest.mark.parametrize(
    ("columns", "properties"),
    [
        ("tenant STRING, id BIGINT", "delta.columnMapping.mode = 'id'"),
        ("tenant STRING, id BIGINT", "delta.enableTypeWidening = true"),
        # For such a table deltalake does not say which rows are deleted.
        (
            "tenant STRING, id BIGINT",
            "delta.enableTypeWidening = true, 'delta.enableDeletionVectors' = true",
        ),
        ("tenant STRING, id BIGINT, va VARIANT", "delta.appendOnly = false"),
    ],
    ids=["mapped by id", "widened", "widened, with deletion vectors", "variant"],
)
def test_spark_reads_what_arrow_would_read_otherwise(
    spark_deployment, kept_spark, columns, properties
):
    made = {"columns": columns, "properties": properties, "writer": kept_spark}
    table = Table.make(spark_deployment, Mirror(), **made)
    table.sql("INSERT INTO {t} (tenant, id) VALUES ('a', 1), ('a', 2)")
    table.sql("DELETE FROM {t} WHERE id = 1")
    assert arrow_rows(table, [each.split()[0] for each in columns.split(", ")], ["a"]) is None


def respell_column(table, version, name):
    """Have the files of a commit name a column in upper case, as other engines may write it."""
    commit = Path(table.path, "_delta_log", f"{version:020d}.json")
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for add in (action["add"] for action in actions if "add" in action):
        file = Path(table.path, add["path"])
        rows = pq.read_table(file, partitioning=None)
        pq.write_table(rows.rename_columns({name: name.upper()}), file)
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        add["size"] = file.stat().st_size
    commit.write_text("\n".join(map(json.dumps, actions)))
    commit.with_name(f".{commit.name}.crc").unlink(missing_ok=True)


def test_files_that_arrow_would_read_differently_are_read_through_spark(spark_deployment):
    table = Table.make(spark_deployment, Mirror())
    table.insert(1, 2)
    respell_column(table, 1, "name")
    assert [each.plan.kind for each in table.follow()] == [ReadKind.SNAPSHOT]
    table.check()
    table.insert(3)
    respell_column(table, 2, "name")
    assert [each.plan.kind for each in table.follow()] == [ReadKind.TAIL]
    assert table.query("SELECT id, name FROM {mirror} WHERE name != '' ORDER BY id") == [
        (id_, f"some words {id_}") for id_ in (1, 2, 3)
    ]
    table.check()
