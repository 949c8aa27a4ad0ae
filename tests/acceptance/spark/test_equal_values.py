"""Keys and values are one where Spark holds them equal; others stay apart, whatever their type."""

from __future__ import annotations

from dataclasses import dataclass

from iscp_dagster import Mirror
from iscp_dagster.delta.comparable_values import to_comparable, to_orderable
from iscp_dagster.joblog.iterations import FailedStep
from iscp_dagster.model.declared.schema import parse_schema
from iscp_dagster.model.errors import KeyColumnError
from iscp_dagster.spark.session import get_shared_session
from support.lake.delta_tables import Table


@dataclass(frozen=True, kw_only=True)
class KeyType:
    """A type of key columns; all `distinct` keys are of rows of their own, `equal` ones are one."""

    type: str
    distinct: tuple[str, ...]
    equal: tuple[str, str] = ("", "")
    kept: str | None = None


FLOATS = ("0.0", "double('NaN')", "double('Infinity')", "-1e-40", "1e-40")
KEY_TYPES = {
    "double": KeyType(type="DOUBLE", distinct=FLOATS, equal=("0.0D", "-0.0D")),
    "float": KeyType(type="FLOAT", distinct=FLOATS, equal=("float(0)", "-float(0)")),
    "double as text": KeyType(
        type="DOUBLE", distinct=FLOATS, equal=("-0.0D", "0.0D"), kept="String"
    ),
    "nan": KeyType(type="DOUBLE", distinct=FLOATS, equal=("double('NaN')", "-double('NaN')")),
    "decimal": KeyType(type="DECIMAL(9, 3)", distinct=("1", "1.001", "-1"), equal=("2", "2.000")),
    "decimal as text": KeyType(
        type="DECIMAL(9, 3)", distinct=("1", "1.001", "-1"), equal=("2", "2.000"), kept="String"
    ),
    "text": KeyType(
        type="STRING",
        distinct=("'\\u00e9'", "'e\\u0301'", "'E'", "'e'", "'e '", "'e\\u0000'", "''"),
        equal=("'x'", "concat('', 'x')"),
    ),
    "char": KeyType(type="CHAR(3)", distinct=("'e  '", "'E'", "' e'"), equal=("'x'", "'x '")),
    "varchar": KeyType(type="VARCHAR(3)", distinct=("'e'", "'e '", "'E'"), equal=("'x'", "'x'")),
    "binary": KeyType(
        type="BINARY", distinct=("X''", "X'00'", "X'0000'", "X'ff'", "X'fe'"), equal=("X'01'",) * 2
    ),
    "boolean": KeyType(type="BOOLEAN", distinct=("true", "false"), equal=("true", "NOT false")),
    "whole number": KeyType(type="TINYINT", distinct=("0", "-128", "127"), equal=("1", "1")),
    "date": KeyType(
        type="DATE",
        distinct=("DATE'1900-01-01'", "DATE'2299-12-31'"),
        equal=("DATE'2000-1-1'",) * 2,
    ),
    "timestamp": KeyType(
        type="TIMESTAMP",
        distinct=("TIMESTAMP'2026-01-01 00:00:00Z'", "TIMESTAMP'2026-01-01 00:00:00.000001Z'"),
        equal=("TIMESTAMP'2026-01-01 00:00:00Z'", "TIMESTAMP'2026-01-01 01:00:00+01:00'"),
    ),
    "timestamp_ntz": KeyType(
        type="TIMESTAMP_NTZ",
        distinct=("TIMESTAMP_NTZ'2026-03-29 02:30:00'", "TIMESTAMP_NTZ'2026-03-29 03:30:00'"),
        equal=("TIMESTAMP_NTZ'2026-01-01 00:00:00'", "TIMESTAMP_NTZ'2026-01-01'"),
    ),
}
HOW = ("apart", "alike")
MAPS = {
    "of_bytes": ("MAP<BINARY, INT>", "map(X'00ff', 1, X'', 2)", "map(X'00fe', 1, X'', 2)"),
    "of_arrays": (
        "MAP<ARRAY<BINARY>, MAP<BINARY, DOUBLE>>",
        "map(array(X'ff'), map(X'ff', 0.5D))",
        "map(array(X'ff'), map(X'fe', 0.5D))",
    ),
    "of_structs": (
        "MAP<STRUCT<a: INT, b: DATE>, STRING>",
        "map(struct(1, DATE'2026-01-01'), 'x')",
        "map(struct(1, DATE'2026-01-02'), 'x')",
    ),
    "inside": (
        "ARRAY<STRUCT<m: MAP<BINARY, INT>>>",
        "array(struct(map(X'01', 1)))",
        "array(struct(map(X'01', 2)))",
    ),
}
OTHERS = {
    "floats": ("DOUBLE", "0.0D", "-0.0D"),
    "of_floats": ("ARRAY<STRUCT<f: FLOAT>>", "array(struct(0.0F))", "array(struct(-0.0F))"),
    "variants": ("VARIANT", "parse_json('1')", "parse_json('2')"),
}


def failures(outcomes):
    return {each.claim.key.tenant: each for each in outcomes if isinstance(each, FailedStep)}


def test_rows_are_one_where_spark_holds_their_keys_equal_and_two_elsewhere(
    spark_deployment, kept_spark
):
    """All types are columns of one key; the keys of a type's tenants differ in its column alone."""
    kept = {column_of(name): key.kept for name, key in KEY_TYPES.items() if key.kept}
    columns = ", ".join(f"{column_of(name)} {key.type}" for name, key in KEY_TYPES.items())
    table = Table.make(
        spark_deployment,
        Mirror(types=kept),
        columns=f"tenant STRING, {columns}, n INT",
        key=tuple(map(column_of, KEY_TYPES)),
        writer=kept_spark,
    )
    others = {
        name: next(each for each in key.distinct if each not in key.equal)
        for name, key in KEY_TYPES.items()
    }
    insert(
        table,
        {
            name: {
                "apart": key.distinct,
                "alike": key.equal,
                "at once": [others[name]],
                "in turn": key.equal[:1],
            }
            for name, key in KEY_TYPES.items()
        },
    )
    failed = failures(table.follow())
    assert failed.keys() == {f"{name} alike" for name in KEY_TYPES}
    insert(
        table,
        {name: {"at once": key.equal, "in turn": key.equal[1:]} for name, key in KEY_TYPES.items()},
    )
    gone = " OR ".join(
        f"(tenant = '{name} apart' AND {column_of(name)} = {other})"
        for name, other in others.items()
    )
    table.sql(f"DELETE FROM {{t}} WHERE {gone}")
    failed |= failures(table.follow())
    assert {tenant: each.code for tenant, each in failed.items()} == dict.fromkeys(
        (f"{name} {how}" for name in KEY_TYPES for how in ("alike", "at once", "in turn")),
        KeyColumnError.code,
    )
    assert all("Remove the repeats" in each.message for each in failed.values())
    verdicts = {each.tenant: each for each in table.verdicts()}
    held = dict(table.query("SELECT tenant, count() FROM {mirror} GROUP BY tenant"))
    for name, key in KEY_TYPES.items():
        verdict = verdicts[f"{name} apart"]
        assert (verdict.agrees, verdict.rows) == (True, len(key.distinct) - 1), verdict
        assert held[f"{name} apart"] == verdict.rows, name


def column_of(name):
    """The column of a type, whose name has no blanks, which Delta refuses."""
    return name.replace(" ", "_")


def insert(table, tenants):
    """Insert the keys of each type's tenants; in the other columns their keys are all the same."""
    rows = []
    for name, keys in tenants.items():
        for how, some in keys.items():
            for number, value in enumerate(some):
                own = {each: key.distinct[0] for each, key in KEY_TYPES.items()} | {name: value}
                cast = [f"CAST({own[each]} AS {key.type})" for each, key in KEY_TYPES.items()]
                rows.append(f"('{name} {how}', {', '.join(cast)}, {number})")
    table.sql(f"INSERT INTO {{t}} VALUES {', '.join(rows)}")


def values(types, number):
    rows = [f"CAST({each[number]} AS {each[0]}) AS {name}" for name, each in types.items()]
    return f"SELECT {', '.join(rows)}"


def test_values_are_told_apart_and_in_order_and_equal_ones_are_not(spark_remote):
    from pyspark.sql.functions import collect_list, sort_array

    spark = get_shared_session(spark_remote)
    rows = [spark.sql(values(MAPS, number)) for number in (1, 2, 1)]
    types = {field.name: field.type for field in parse_schema(rows[0].schema.json())}

    def form(frame, number):
        parts = (to_comparable(frame[name], types[name]).alias(f"{name}{number}") for name in MAPS)
        return frame.select(*parts)

    first, second, again = (form(frame, number) for number, frame in enumerate(rows))
    both = first.crossJoin(second).crossJoin(again)
    (found,) = both.select(
        *((both[f"{name}0"] == both[f"{name}1"]).alias(f"{name} apart") for name in MAPS),
        *((both[f"{name}0"] == both[f"{name}2"]).alias(f"{name} alike") for name in MAPS),
    ).collect()
    assert found.asDict() == {f"{name} {how}": how == "alike" for name in MAPS for how in HOW}
    more = {**MAPS, **OTHERS}
    three = spark.sql(" UNION ALL ".join(values(more, number) for number in (1, 2, 1)))
    fields = parse_schema(three.schema.json())
    orderable = three.select(*(to_orderable(three[f.name], f.type).alias(f.name) for f in fields))
    (sorted_,) = orderable.select(
        *(sort_array(collect_list(name)).alias(name) for name in more)
    ).collect()
    for name in more:
        first, second, third = sorted_[name]
        # Equal values lie together, and the other one apart from them.
        assert (first == second) != (second == third), name


def test_an_index_of_rows_with_such_maps_and_without_a_key_agrees(spark_deployment, kept_spark):
    columns = ", ".join(f"{name} {type_}" for name, (type_, *_) in MAPS.items())
    table = Table.make(
        spark_deployment,
        Mirror(append=True),
        columns=f"tenant STRING, id INT, {columns}",
        key=(),
        writer=kept_spark,
    )
    table.sql(f"INSERT INTO {{t}} SELECT 'a', 1, * FROM ({values(MAPS, 1)})")
    table.follow()
    table.sql(f"INSERT INTO {{t}} SELECT 'a', 2, * FROM ({values(MAPS, 2)})")
    assert not [each for each in table.follow() if isinstance(each, FailedStep)]
    assert table.agreed() == {"mirror": 2}
