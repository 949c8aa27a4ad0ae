"""Every Delta type through Spark into ClickHouse, as it is and as declared, and verified."""

from iscp_dagster import Mirror
from iscp_dagster.delta.read_plans import ReadKind
from iscp_dagster.upkeep.verify_indexes import compare_or_raise
from support.lake.delta_tables import TYPES, Table, kinds, typed_columns, typed_rows
from support.lake.row_writer import ANYWAY
from support.spark.fake_spark import NearSpark

UUIDS = [f"'{digit * 8}-0000-0000-0000-00000000000{digit}'" for digit in "abcd"]
UUIDS[1] = UUIDS[1].upper()
ALL = TYPES | {
    "s": ("STRING", "CAST(X'ff61' AS STRING), 'é😀', '\\u0000x', NULL"),
    "far": ("DATE", "'0001-01-01', '9999-12-31', '1582-10-10', NULL"),
    "later": ("TIMESTAMP", "'0001-01-01 00:00:00', '9999-12-31 23:59:59.999999', NULL, NULL"),
    "u": ("STRING", f"{', '.join(UUIDS[:3])}, NULL"),
    "ip": ("STRING", "'::1', '::ffff:1.2.3.4', '2001:db8::1', NULL"),
    "kind": ("STRING", "'a', 'b', '', NULL"),
    "js": ("STRING", """'{"b": 1.0, "a": [1, null]}', '{}', '{"x": {"y": "z"}}', NULL"""),
    "money": ("DECIMAL(38, 10)", "'-1234567890.123456789', '0', '1', NULL"),
    "half": ("DOUBLE", "'-0.5', 'NaN', '-Infinity', NULL"),
    "bytes": ("ARRAY<BIGINT>", "array(255, NULL), array(), array(0), array(1)"),
    "at": (
        "STRUCT<x: DOUBLE, y: DOUBLE>",
        "struct(1, 2), struct(0, -0.5), struct(0, 0), struct(1, 1)",
    ),
    "steps": (
        "ARRAY<STRUCT<n: INT, u: STRING>>",
        f"array(struct(1, {UUIDS[0]})), array(), array(struct(NULL, NULL)), array()",
    ),
    "tags": ("MAP<STRING, STRING>", "map('k', 'v', 'n', NULL), map(), map('', 'y'), map('z', 'z')"),
}
VARIANTS = {
    "va": 'parse_json(\'{"b": 1.50, "a": [null, "x"]}\')',
    "vo": 'parse_json(\'{"b": 1.50, "a": [null, "x"]}\')',
    "vs": "array(parse_json('1'), parse_json('null'), NULL)",
    "vm": "map('k', parse_json('{}'))",
    "vt": "named_struct('v', parse_json('\"t\"'), 'n', 1)",
}
VARIANT_TYPES = (
    "va VARIANT, vo VARIANT, vs ARRAY<VARIANT>, vm MAP<STRING, VARIANT>, "
    "vt STRUCT<v: VARIANT, n: INT>"
)
KEPT = {
    "tenant": "LowCardinality(String)",
    "id": "UInt16",
    "by": "Int256",
    "sh": "Dynamic",
    "i": "Variant(Int32, String)",
    "l": "String",
    "f": "Float64",
    "bo": "UInt8",
    "bi": "LowCardinality(String)",
    "ts": "DateTime64(7, 'Asia/Tokyo')",
    "far": "Int32",
    "later": "String",
    "u": "UUID",
    "ip": "IPv6",
    "kind": "Enum8('' = 0, 'a' = 1, 'b' = 2)",
    "js": "JSON",
    "money": "Decimal(76, 20)",
    "half": "BFloat16",
    "bytes": "Array(UInt8)",
    "at": "Point",
    "steps": "Nested(n Int128, u UUID)",
    "tags": "Map(LowCardinality(String), FixedString(1))",
    "ar": "Array(LowCardinality(String))",
    "vo": "JSON",
}


def insert(table, shift, changed=None):
    nulls = ", ".join(
        f"CASE WHEN id % 2 = 0 THEN {each} END" if name[1] in "ao" else each
        for name, each in VARIANTS.items()
    )
    types = {
        name: (type_, (changed or {}).get(name, values)) for name, (type_, values) in ALL.items()
    }
    rows = typed_rows(types, "'a'").replace("SELECT 'a', id", f"SELECT 'a', id + {shift}", 1)
    table.sql(
        f"INSERT INTO {{t}} SELECT *, {nulls} FROM ({rows}) AS t(tenant, id, {', '.join(ALL)})"
    )


def test_every_type_is_kept_as_it_is_and_as_declared(spark_deployment, kept_spark):
    plain = Mirror(columns=[*TYPES, *VARIANTS])
    table = Table.make(
        spark_deployment,
        plain,
        Mirror(name="kept", types=KEPT),
        columns=f"tenant STRING, id BIGINT, {typed_columns(ALL)}, {VARIANT_TYPES}",
        writer=kept_spark,
    )
    insert(table, 0)
    assert kinds(table.follow()) == [ReadKind.SNAPSHOT] * 2
    insert(table, 10, {"s": ALL["s"][1].replace("CAST(X'ff61' AS STRING)", "'plain'")})
    table.sql("DELETE FROM {t} WHERE id = 1")
    table.sql("UPDATE {t} SET u = NULL, vo = parse_json('{\"n\": 2e0}') WHERE id = 2")
    assert kinds(table.follow()) == [ReadKind.TAIL] * 2
    found = table.query(
        "SELECT toString(u), toString(vo), toString(far), at, later FROM {kept} WHERE id = 10"
    )
    assert found == [
        (
            UUIDS[0].strip("'"),
            '{"a":[null,"x"],"b":1.5}',
            "-719162",
            (1.0, 2.0),
            "0001-01-01 00:00:00.000000Z",
        )
    ]
    assert table.query("SELECT va, vs, vm, vt FROM {mirror} WHERE id = 10") == [
        ('{"a":[null,"x"],"b":1.5}', ["1", "null", None], {"k": "{}"}, {"v": '"t"', "n": 1})
    ]
    found = table.query("SELECT isNaN(f), toString(`dec`) FROM {mirror} WHERE id = 10")
    assert found == [(1, "-9999999999999999999999999999.9999999999")]
    verify_sees_what_was_changed(table)


def verify_sees_what_was_changed(table):
    """Check that verify notices changes, also of values that only ClickHouse distinguishes.

    All else agrees.
    """
    rows = table.view(table.source.get_index("kept")).replace("_kept`", "_kept__rows`")
    for change, key in (("generateUUIDv4() AS u", 2), ("'{\"n\":3}' AS vo", 12), ("999 AS id", 3)):
        picked = f"SELECT * FROM {rows} FINAL WHERE id = {key}"
        changed = f"SELECT * REPLACE ({change}, _version + 1 AS _version) FROM ({picked})"
        table.deployment.endpoint.get_client().command(
            f"INSERT INTO {rows} {changed}", settings=ANYWAY
        )
    found = {
        each.index: (each.missing, each.extra, each.different)
        for each in compare_or_raise(table.deployment, table.source)
    }
    assert found == {"mirror": (0, 0, 0), "kept": (0, 1, 2)}


def test_a_key_of_uuids_is_one_in_whatever_case(spark_deployment):
    """A second index keeps them as text, where the two cases are two keys."""
    a, b, c, d = (each.strip("'") for each in UUIDS)
    columns = "tenant STRING, u STRING, name STRING"
    kept = Mirror(name="kept", types={"u": "UUID"})
    made = {"columns": columns, "key": "u", "writer": NearSpark()}
    table = Table.make(spark_deployment, kept, Mirror(), **made)
    rows = ", ".join(f"('a', '{each}', 'one')" for each in (a.upper(), b, c.upper()))
    table.sql(f"INSERT INTO {{t}} VALUES {rows}")
    assert kinds(table.follow()) == [ReadKind.SNAPSHOT] * 2
    table.sql(f"UPDATE {{t}} SET name = 'two' WHERE u = '{a.upper()}'")
    table.sql(f"DELETE FROM {{t}} WHERE u = '{c.upper()}'")
    table.sql(f"INSERT INTO {{t}} VALUES ('a', '{d.upper()}', 'new')")
    assert kinds(table.follow()) == [ReadKind.TAIL] * 2
    found = table.query("SELECT toString(u), name FROM {kept} ORDER BY toString(u)")
    assert found == [(a, "two"), (b.lower(), "one"), (d, "new")]
    # A new row rewritten in the other case before a look: delete and insert of one key.
    table.sql(f"INSERT INTO {{t}} VALUES ('a', '{c}', 'again')")
    table.sql(f"UPDATE {{t}} SET u = '{c.upper()}' WHERE u = '{c}'")
    assert kinds(table.follow()) == [ReadKind.SNAPSHOT] * 2
    table.check()
    assert table.query("SELECT count() FROM {mirror}") == [(4,)]


def test_bytes_that_are_not_utf_8_are_kept(spark_deployment, kept_spark, monkeypatch):
    """Spark's change feed loses them, so a tail that Spark reads is followed by a snapshot."""
    monkeypatch.setattr("iscp_dagster.sync.reading.reader.MOST_ROWS", 0)
    columns = "tenant STRING, id BIGINT, s STRING"
    table = Table.make(spark_deployment, Mirror(), columns=columns, writer=kept_spark)
    table.sql("INSERT INTO {t} VALUES ('a', 1, 'x')")
    table.follow()
    table.sql("INSERT INTO {t} VALUES ('a', 2, CAST(X'ff61' AS STRING))")
    outcomes = table.follow()
    assert kinds(outcomes) == [ReadKind.SNAPSHOT]
    assert "U+FFFD" in outcomes[0].plan.reason
    table.check()
    assert table.query("SELECT hex(s) FROM {mirror} WHERE id = 2") == [("FF61",)]
