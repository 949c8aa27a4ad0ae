"""Columns of any name: built, changed and verified; and the names as the real parsers read them."""

from __future__ import annotations

import random
import unicodedata

import pytest
from tables import FEED, Table, engine_at

from iscp_dagster import FullText, Mirror, Vector
from iscp_dagster.engine.iterate import Delivery
from iscp_dagster.engine.verify import verify
from iscp_dagster.lake.feed import ReadKind
from iscp_dagster.spark.columns import column, columns, map_in_arrow
from iscp_dagster.spark.quoting import ident, text

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MAPPED = f"{FEED}, delta.columnMapping.mode = 'name'"
ANYWHERE = (
    *("s.a", "s.b", ".", "quo'te", "distance", "sla/sh", "_rank", "a.b.c", "x.null", "back\\slash"),
    *("new\\n", 'quo"te', "..", "x.size0", "../up", "per%20cent", "ha#sh", "né名", "dol$lar"),
    *("star*", "--", "/*", "0", "select", "tenant", "k", "query", "row", "h", "key_0", "in_h"),
    *("c0", "_upsert", "_insert", "times", "fresh", "id", "😀"),
)
ONLY_MAPPED = ("a b", " ", "line\nbreak", "ta\tb", "semi;colon", "e=q", "{br}", "(pa)", "co,mma")


@pytest.fixture
def engine(clickhouse_url, spark_remote, tmp_path):
    return engine_at(clickhouse_url, spark_remote, tmp_path)


def kinds(outcomes):
    assert all(isinstance(each, Delivery) for each in outcomes), outcomes
    return {each.plan.kind for each in outcomes}


def made(engine, *indexes, typed, properties, **declared):
    """An empty table of the columns and types in `typed`."""
    listed = ", ".join(f"{ident(name)} {type_}" for name, type_ in typed.items())
    return Table.make(engine, *indexes, columns=listed, properties=properties, **declared)


def insert(table, *rows):
    listed = ", ".join(f"({', '.join(row)})" for row in rows)
    table.sql(f"INSERT INTO {{t}} VALUES {listed}")


@pytest.mark.parametrize(
    ("properties", "names"),
    [(FEED, ANYWHERE[:12]), (MAPPED, ANYWHERE + ONLY_MAPPED)],
    ids=["plain", "mapped"],
)
def test_columns_of_odd_names_are_built_changed_and_verified(engine, properties, names):
    typed = {
        "te.na\\nt'": "STRING",
        "k.e/y": "BIGINT",
        "ke\\y.": "STRING",
        "v.ec\\": "ARRAY<FLOAT>",
        "j.son": "STRING",
        "st.ruct": "STRUCT<`a.b`: INT, `c\\'`: STRING>",
        **dict.fromkeys(names, "STRING"),
    }

    def row(tenant, number):
        fixed = [text(tenant), str(number), text(f"k{number}"), f"array({number}F, 1F)"]
        nested = f"""'{{"n": {number}}}', struct({number}, 'x')"""
        return [*fixed, nested, *(text(f"{name} {number}") for name in names)]

    declared = {"tenant": "te.na\\nt'", "key": ["k.e/y", "ke\\y."]}
    table = made(
        engine,
        Mirror(types={"j.son": "JSON"}),
        FullText(["sla/sh", "s.a", "quo'te"]),
        Vector("v.ec\\", dimension=2),
        typed=typed,
        properties=properties,
        **declared,
    )
    insert(table, *(row(tenant, number) for tenant in ("a", "b.c\\") for number in range(4)))
    assert kinds(table.follow()) == {ReadKind.SNAPSHOT}
    table.check()
    table.sql(f"UPDATE {{t}} SET {ident('s.a')} = 'other' WHERE {ident('k.e/y')} = 1")
    table.sql(f"DELETE FROM {{t}} WHERE {ident('k.e/y')} = 2")
    insert(table, row("a", 9))
    assert kinds(table.follow()) == {ReadKind.TAIL}
    table.check()
    searched = "SELECT {key} FROM {text} WHERE {tenant} = 'a' AND hasAllTokens({text_of}, 'other')"
    quoted = {"{key}": "`k.e/y`", "{tenant}": "`te.na\\\\nt'`", "{text_of}": "`s.a`"}
    for name, each in quoted.items():
        searched = searched.replace(name, each)
    assert table.query(searched) == [(1,)]
    nearest = table.view(table.source.index("vector"), "_nearest")
    near = f"SELECT distance, _distance < 0.01 FROM {nearest}(query=[3,1], tenant='a', k=1)"
    assert table.query(near) == [("distance 3", 1)]


def test_rows_without_a_key_and_with_odd_names(engine):
    typed = {"te.nant": "STRING", "b\\": "STRING", "m.ap": "MAP<STRING, INT>", "_rank": "INT"}
    table = made(
        engine,
        Mirror(append=True),
        typed=typed,
        properties=FEED,
        tenant="te.nant",
        key=(),
    )
    insert(table, ["'a'", "'x'", "map('y', 1)", "7"])
    assert kinds(table.follow()) == {ReadKind.SNAPSHOT}
    insert(table, ["'a'", "'x'", "map('y', 1)", "8"], ["'a'", "'x'", "map('y', 1)", "8"])
    assert kinds(table.follow()) == {ReadKind.TAIL}
    told = []
    verdicts = verify(engine, table.source, tell=told.append)
    assert [(each.agrees, each.rows) for each in verdicts] == [(True, 3)]
    assert told == [f"comparing {table.source.name}/mirror, a, at version {table.version}"]


def test_names_with_a_backtick_which_delta_lets_nobody_update(engine):
    typed = {"tenant": "STRING", "k`ey": "BIGINT", "`": "STRING", "``.`": "STRING"}
    table = made(
        engine, Mirror(), FullText(["`", "``.`"]), typed=typed, properties=FEED, key="k`ey"
    )
    insert(table, ["'a'", "1", "'x'", "'y'"], ["'b'", "1", "'x'", "'y'"])
    assert kinds(table.follow()) == {ReadKind.SNAPSHOT}
    insert(table, ["'a'", "2", "'x'", "'y'"])
    table.sql("DELETE FROM {t} WHERE tenant = 'b'")
    assert kinds(table.follow()) == {ReadKind.TAIL}
    table.check()


def test_any_name_is_one_column_for_spark(engine):
    chosen = random.Random(7)
    spark = engine.spark()

    def one():
        return chr(chosen.choice([chosen.randrange(1, 128), chosen.randrange(0x3000)]))

    names = {"".join(one() for _ in range(chosen.randrange(1, 6))) for _ in range(80)}
    # Spark compares names without their case.
    names = sorted({unicodedata.normalize("NFC", each).lower(): each for each in names}.values())
    values = {name: f"{name}\f\b\0'\\" for name in names}
    listed = ", ".join(f"{text(value)} AS {ident(name)}" for name, value in values.items())
    frame = spark.sql(f"SELECT {listed}")
    assert frame.select(*columns(names)).first().asDict() == values
    nested = frame.selectExpr("struct(*) AS `s.t`").select(*(column("s.t", n) for n in names))
    assert nested.first().asDict() == values

    def same(batches):
        for batch in batches:
            assert batch.schema.names == names
            yield batch

    assert map_in_arrow(frame, same, frame.schema).first().asDict() == values
