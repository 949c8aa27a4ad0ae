"""A snapshot read with Arrow is the snapshot that Spark reads, type by type and row by row."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tables import Table, engine_at

from iscp_dagster import Mirror
from iscp_dagster.engine.source import Source, as_they_are
from iscp_dagster.lake.checks import SYSTEM_COLUMNS
from iscp_dagster.lake.feed import ReadKind, ReadPlan
from iscp_dagster.lake.reader import Selection, snapshot

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SNAPSHOT = ReadPlan(kind=ReadKind.SNAPSHOT, reason="asked for")
TYPES = {
    "s": ("STRING", "'', 'é', NULL"),
    "by": ("TINYINT", "-128, 127, NULL"),
    "sh": ("SMALLINT", "-32768, 32767, NULL"),
    "i": ("INT", "-2147483648, 2147483647, NULL"),
    "l": ("BIGINT", "-9223372036854775808, 9223372036854775807, NULL"),
    "f": ("FLOAT", "'-Infinity', 1.17e-38, NULL"),
    "d": ("DOUBLE", "'Infinity', -0.1, NULL"),
    "small": ("DECIMAL(9, 2)", "-9999999.99, 0.01, NULL"),
    "middle": ("DECIMAL(18, 4)", "-99999999999999.9999, 0.0001, NULL"),
    "large": ("DECIMAL(38, 10)", "-9999999999999999999999999999.9999999999, 0.0000000001, NULL"),
    "bo": ("BOOLEAN", "true, false, NULL"),
    "bi": ("BINARY", "X'00ff', X'', NULL"),
    "da": ("DATE", "'1583-01-01', '2299-12-31', NULL"),
    "ts": ("TIMESTAMP", "'1583-01-01 00:00:00', '2299-12-31 23:59:59.999999', NULL"),
    "nt": ("TIMESTAMP_NTZ", "'1583-01-01 00:00:00', '2299-12-31 23:59:59.999999', NULL"),
    "texts": ("ARRAY<STRING>", "array('x', NULL), array(), NULL"),
    "floats": ("ARRAY<FLOAT>", "array(0.5), array(), NULL"),
    "times": ("ARRAY<TIMESTAMP>", "array('2020-01-01 00:00:00.5'), array(NULL), NULL"),
}
OTHER = "b c/d'é%20"


@pytest.fixture
def engine(stack, tmp_path):
    return engine_at(stack.clickhouse_url, stack.spark_remote, tmp_path)


def arrow_rows(table, columns, tenants):
    """The rows as an iteration's tasks make them; None where Spark hands them over."""
    source = Source(table.engine, table.source, frozenset(tenants))
    log = table.engine.delta_log(table.source)
    at = log.latest()
    rows = source.rows(SNAPSHOT, type("Range", (), {"to": at}), columns)
    if rows.unpack is as_they_are:
        return None
    return pa.Table.from_batches(list(rows.unpack(rows.frame.toArrow().to_batches())))


def spark_rows(table, columns, tenants):
    at = table.engine.delta_log(table.source).latest()
    selection = Selection(
        path=table.path,
        columns=columns,
        keys=table.source.keys,
        tenant_column=table.source.tenant,
        tenants=frozenset(tenants),
    )
    return snapshot(table.engine.spark(), selection, at).drop(*SYSTEM_COLUMNS).toArrow()


def plain(table):
    """Row by row in order of the key, less what names of parts and nullability say."""
    named = table.sort_by([("tenant", "ascending"), ("id", "ascending")])
    types = [str(field.type).replace("element", "item") for field in named.schema]
    return [t.replace(" not null", "") for t in types], named.to_pylist()


def test_every_type_is_the_same(engine):
    columns = ", ".join(f"{name} {type_}" for name, (type_, _) in TYPES.items())
    table = Table.make(engine, Mirror(), columns=f"tenant STRING, id INT, {columns}")
    arrays = ", ".join(
        f"CAST(array({values}) AS ARRAY<{type_}>) AS {name}"
        for name, (type_, values) in TYPES.items()
    )
    picked = ", ".join(f"{name}[id]" for name in TYPES)
    rows = f"SELECT explode(sequence(0, 2)) AS id, {arrays}"
    for tenant in ("a", OTHER):
        quoted = tenant.replace("'", "\\'")
        table.sql(f"INSERT INTO {{t}} SELECT '{quoted}', id, {picked} FROM ({rows})")
    names = ["id", *TYPES, "tenant"]
    for tenants in (("a",), ("a", OTHER)):
        found = arrow_rows(table, names, tenants)
        assert found.num_rows == 3 * len(tenants)
        assert plain(found) == plain(spark_rows(table, names, tenants))


def test_what_the_table_lived_through_does_not_matter(engine):
    table = Table.make(engine, Mirror())
    table.insert(*range(20))
    table.insert(1, 2, 3, tenant="b")
    table.sql("UPDATE {t} SET name = 'changed' WHERE id % 3 = 0")
    table.sql("DELETE FROM {t} WHERE id = 7")
    table.sql("ALTER TABLE {t} ADD COLUMN later INT FIRST")
    table.sql("INSERT INTO {t} (later, tenant, id) VALUES (5, 'a', 100)")
    table.sql("OPTIMIZE {t}")
    table.sql("UPDATE {t} SET later = 6 WHERE id = 4")
    names = ["tenant", "id", "name", "v", "later"]
    found = arrow_rows(table, names, ["a", "b"])
    assert plain(found) == plain(spark_rows(table, names, ["a", "b"]))
    assert found.num_rows == 23


@pytest.mark.parametrize(
    ("columns", "properties"),
    [
        ("tenant STRING, id BIGINT", "delta.enableDeletionVectors = true"),
        ("tenant STRING, id BIGINT", "delta.columnMapping.mode = 'name'"),
        ("tenant STRING, id BIGINT", "delta.enableTypeWidening = true"),
        ("tenant STRING, id BIGINT, st STRUCT<a: INT>", "delta.appendOnly = false"),
    ],
)
def test_spark_reads_what_arrow_would_read_otherwise(engine, columns, properties):
    table = Table.make(engine, Mirror(), columns=columns, properties=properties)
    table.sql("INSERT INTO {t} (tenant, id) VALUES ('a', 1), ('a', 2)")
    table.sql("DELETE FROM {t} WHERE id = 1")
    assert arrow_rows(table, [each.split()[0] for each in columns.split(", ")], ["a"]) is None
