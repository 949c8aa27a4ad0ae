"""Columns, tenants and tables of any name: built, changed and verified on the real engines."""

from iscp_dagster import FullText, Mirror, SourceTable, Vector
from iscp_dagster.clickhouse.connect import quoting as clickhouse
from iscp_dagster.clickhouse.tables.ddl import RESERVED_COLUMNS
from iscp_dagster.delta.checks import is_reserved
from iscp_dagster.delta.read_plans import ReadKind
from iscp_dagster.spark.quoting import quote_identifier, quote_string
from iscp_dagster.sync.iteration.outcomes import RowDelivery
from iscp_dagster.upkeep.verify_indexes import compare_or_raise
from support.lake.delta_tables import FEED, Table

MAPPED = f"{FEED}, delta.columnMapping.mode = 'name'"
PLAIN = (
    *("s.a", "s.b", ".", "quo'te", "distance", "sla/sh", "_rank", "a.b.c", "x.null", "back\\slash"),
    *("new\\n", 'quo"te', "..", "x.size0", "../up", "per%20cent", "ha#sh", "né名", "dol$lar"),
    *("star*", "--", "/*", "0", "select", "tenant", "k", "query", "row", "h", "key_0", "in_h"),
    *("c0", "_upsert", "_insert", "times", "fresh", "id", "😀", "back`tick", "``.`", "%s"),
    *("_change", "_metadata", "_file", "null", "true", "from", "FINAL", "Array", "_tenant", "rows"),
    *("entry", "element", "key", "value", "list", "count", "nan", "*", "?", "$1", "@", "\x7f"),
)
SPACED = (
    *("a b", " ", "line\nbreak", "ta\tb", "semi;colon", "e=q", "{br}", "(pa)", "co,mma"),
    *("{version:UInt64}", "%(version)s", "{t}", " k", "k ", "1 + 1", "count()", "a\r\nb", "\0"),
)
KEY = "k'\\{}"
TENANT, VECTOR, STRUCT = "te.na\\nt'", "v.ec\\", "st.ruct"
KEYS = ("k.e/y", "ke\\y.")
FIELDS = ("a.b", "c\\'")
"""Fields of the struct."""
OTHERS = tuple({each.upper().casefold(): each for each in (*PLAIN, *SPACED)}.values())
"""Text columns, all different even ignoring case."""
TYPES = {
    TENANT: "STRING",
    **dict.fromkeys(KEYS, "STRING"),
    VECTOR: "ARRAY<FLOAT>",
    STRUCT: f"STRUCT<{', '.join(f'{quote_identifier(name)}: STRING' for name in FIELDS)}>",
    **dict.fromkeys(OTHERS, "STRING"),
}
TENANTS = ("a", "b.c\\")


def list_columns(types):
    return ", ".join(f"{quote_identifier(name)} {type_}" for name, type_ in types.items())


def make_row(tenant, number):
    """Return a row's values, each column's a different one."""
    nested = ", ".join(quote_string(f"{name} {number}") for name in FIELDS)
    return [
        quote_string(tenant),
        *(quote_string(KEY.format(number)) for _ in KEYS),
        f"array({number}F, 1F)",
        f"struct({nested})",
        *(quote_string(f"{name} {number}") for name in OTHERS),
    ]


def test_any_names_are_built_changed_and_verified(spark_deployment, kept_spark):
    assert not any(is_reserved(name) or name in RESERVED_COLUMNS for name in OTHERS)
    words = list(OTHERS[:3])
    indexes = [Mirror(), FullText(words, columns=words), Vector(VECTOR, dimension=2)]
    source = SourceTable("odd.select", key=KEYS, tenant=TENANT, indexes=indexes)
    table = Table(spark_deployment, source)
    delta = quote_identifier("delta", table.path)

    def put(*numbers):
        rows = (make_row(tenant, number) for tenant in TENANTS for number in numbers)
        listed = ", ".join(f"({', '.join(row)})" for row in rows)
        kept_spark.sql(f"INSERT INTO {delta} VALUES {listed}")

    def follow(kind):
        outcomes = table.follow()
        assert outcomes
        assert all(isinstance(each, RowDelivery) for each in outcomes), outcomes
        assert {each.plan.kind for each in outcomes} == {kind}

    kept_spark.sql(
        f"CREATE TABLE {delta} ({list_columns(TYPES)}) USING delta "
        f"PARTITIONED BY ({quote_identifier(TENANT)}) TBLPROPERTIES ({MAPPED})"
    )
    put(*range(4))
    follow(ReadKind.SNAPSHOT)
    # Delta refuses to update a table with a backtick in a column's name.
    gone = ", ".join(quote_string(KEY.format(number)) for number in (1, 2))
    kept_spark.sql(f"DELETE FROM {delta} WHERE {quote_identifier(KEYS[0])} IN ({gone})")
    put(1, 9)
    follow(ReadKind.TAIL)
    verdicts = table.verdicts()
    assert len(verdicts) == len(indexes) * len(TENANTS)
    assert [each for each in verdicts if not each.agrees] == []
    # A word finds the new row, and the row is nearest to its vector.
    mine = f"{clickhouse.quote_identifier(TENANT)} = {clickhouse.quote_string(TENANTS[0])}"
    found = f"{mine} AND hasAllTokens({clickhouse.quote_identifier(OTHERS[0])}, '9')"
    key, new = clickhouse.quote_identifier(KEYS[0]), (KEY.format(9),)
    assert new in table.query(f"SELECT {key} FROM {{text}} WHERE {found}")
    nearest = table.view(source.get_index("vector"), "_nearest")
    near = f"{nearest}(query=[9,1], tenant={clickhouse.quote_string(TENANTS[0])}, k=1)"
    assert table.query(f"SELECT {key} FROM {near}") == [new]


def test_rows_without_a_key_are_told_apart_by_all_their_columns(spark_deployment, kept_spark):
    typed = {"te.nant": "STRING", "b\\": "STRING", "m.ap": "MAP<STRING, INT>", "_rank": "INT"}
    table = Table.make(
        spark_deployment,
        Mirror(append=True),
        columns=list_columns(typed),
        writer=kept_spark,
        tenant="te.nant",
        key=(),
    )
    table.sql("INSERT INTO {t} VALUES ('a', 'x', map('y', 1), 7)")
    table.follow()
    table.sql("INSERT INTO {t} VALUES ('a', 'x', map('y', 1), 8), ('a', 'x', map('y', 1), 8)")
    (tail,) = table.follow()
    assert tail.plan.kind is ReadKind.TAIL
    told = []
    verdicts = compare_or_raise(spark_deployment, table.source, report=told.append)
    assert [(each.agrees, each.rows) for each in verdicts] == [(True, 3)]
    assert told == [f"comparing {table.source.name}/mirror, a, at version {table.version}"]


def test_a_url_with_escapes_names_one_folder_for_all_readers(
    spark_deployment, kept_spark, tmp_path
):
    folder = f"delta.`{tmp_path}/rel x#1`"
    kept_spark.sql(
        f"CREATE TABLE {folder} (tenant STRING, id BIGINT, name STRING) USING delta PARTITIONED BY "
        f"(tenant) TBLPROPERTIES ({FEED}, delta.enableDeletionVectors = true)"
    )
    kept_spark.sql(f"INSERT INTO {folder} SELECT 'a', id, 'x' FROM range(0, 20, 1, 1)")
    url = f"{(tmp_path / 'rel x#1').as_uri()}"
    assert url.endswith("/rel%20x%231")
    table = Table.make(spark_deployment, Mirror(), create=False, path=url)
    table.follow()
    kept_spark.sql(f"DELETE FROM {folder} WHERE id = 3")
    table.follow()
    assert table.query("SELECT count() FROM {mirror}") == [(19,)]
    # The log counts the row that only its deletion vector takes away.
    assert [(each.agrees, each.logged) for each in table.verdicts()] == [(True, 19)]
