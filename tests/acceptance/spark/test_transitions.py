"""The changes of a view, read per commit with both images, against a model in Python."""

import random
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest

from iscp_dagster.delta.expressions import analyze_expressions
from iscp_dagster.delta.images import ViewRead, read_base, read_images
from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.delta.reader import TableSelection
from iscp_dagster.model.declared.images import ImageSource, Stage, TriggerConditions
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.moment import Moment
from iscp_dagster.spark.session import get_shared_session
from support.errors import assert_names, raises_naming
from support.lake.deals_table import all_of, big, dealings, huge, seen
from support.spark.fake_spark import run_sql

BIG = Stage(where="amount > 100", columns=(("gross", "amount * 1.19"),))
HUGE = Stage(where="gross > 150", columns=(("shout", "upper(note)"),))
HOT = TriggerConditions(name="hot", match="amount > 140", unmatch="amount < 120")
COLD = TriggerConditions(name="cold", match="amount < 60 OR size(tags) > 1")


def amounts(row):
    return {name: row[name] for name in ("tenant", "k", "amount")}


@pytest.fixture(scope="module")
def spark(spark_remote):
    return get_shared_session(spark_remote)


@pytest.fixture(scope="module")
def table(spark, tmp_path_factory):
    path = tmp_path_factory.mktemp("lake") / "dealings"
    log = DeltaLog(str(path), "tenant")

    def run(statement):
        spark.sql(statement.replace("{t}", f"delta.`{path}`")).collect()

    model = dealings(path, run)
    return SimpleNamespace(path=str(path), log=log, model=model)


def read_of(spark, table, image_source, tenants=None):
    selection = TableSelection(
        path=table.path,
        columns=(),
        keys=("k",),
        tenant_column="tenant",
        tenants=tenants,
    )
    schema = table.log.get_facts(table.model.gap[0]).fields
    calculated = analyze_expressions(spark, "the view", schema, image_source)
    return ViewRead.from_schema(selection, schema, image_source, calculated)


def rows_of(spark, table, read, after, upto, **more):
    """Return the image rows as the model writes them, checking each row's time and marks."""
    found = read_images(spark, read, Moment(after), Moment(upto), **more).collect()
    rows = []
    for each in found:
        row = each.asDict()
        assert row["_timestamp"] == table.log.get_moment(row["_version"]).micros
        assert (row["_repeats"], row["_deleted"]) == (False, False)
        kept = {name: row[name] for name in read.output}
        place = row["tenant"], row["_version"], row["_ordinal"], row["_image"]
        rows.append((*place, row["_change"], row["_fields"], kept))
    return rows


def ordered(rows):
    return sorted(rows, key=lambda row: row[:4])


def test_rows_are_the_same_however_the_range_is_cut(spark, table):
    model, chance = table.model, random.Random(5)
    last = model.gap[0]
    for stages, view, columns, number_of_cuts in (
        ((), all_of, None, 0),
        ((BIG, HUGE), huge, None, 1),
        ((), amounts, ("amount",), 0),
    ):
        read = read_of(spark, table, ImageSource(stages=stages, columns=columns))
        whole = rows_of(spark, table, read, 0, last)
        assert whole == ordered(whole)
        expected = model.images(view, range(1, last + 1))
        assert whole == ordered(expected)
        kinds = {row[4] for row in expected}
        assert kinds == {1, 2, 3}
        if not number_of_cuts:
            continue
        cuts = sorted(chance.sample(range(1, last), number_of_cuts))
        parts = [
            rows_of(spark, table, read, after, upto, partitions=1 + number % 2)
            for number, (after, upto) in enumerate(pairwise([0, *cuts, last]))
        ]
        assert ordered(row for part in parts for row in part) == ordered(expected)


def test_images_are_of_the_tenants_asked_for_and_say_which_conditions_they_meet(spark, table):
    image_source = ImageSource(stages=(BIG,))
    read = read_of(spark, table, image_source, frozenset({"globex"}))
    last = table.model.gap[0]
    expected = table.model.images(big, range(1, last + 1))
    assert rows_of(spark, table, read, 0, last) == [row for row in expected if row[0] == "globex"]
    read = read_of(spark, table, ImageSource().replace_conditions([HOT, COLD]))
    met = set()
    for each in read_images(spark, read, Moment(0), Moment(last)).collect():
        amount = each["amount"]
        hot = amount is not None and amount > 140
        cold = (amount is not None and amount < 60) or len(each["tags"]) > 1
        assert each["_match$hot"] is hot
        assert each["_unmatch$hot"] is (amount is not None and amount < 120)
        assert (each["_match$cold"], each["_unmatch$cold"]) == (cold, not cold)
        met.add((amount is None, hot, cold))
    assert met >= {(True, False, False), (False, True, False), (False, False, True)}


def test_a_history_begins_with_the_rows_of_the_view(spark, table):
    image_source = ImageSource(stages=(BIG, HUGE)).replace_conditions([HOT])
    read = read_of(spark, table, image_source)
    at = table.log.get_moment(table.model.gap[0])
    found = read_base(spark, read, at).collect()
    held = {(row["tenant"], row["k"]): {n: row[n] for n in read.output} for row in found}
    assert held == seen(table.model.states[at.version], huge)
    assert held
    said = {
        (r["_change"], r["_image"], tuple(r["_fields"]), r["_version"], r["_timestamp"])
        for r in found
    }
    assert said == {(0, 1, (), at.version, at.micros)}


def test_keys_written_twice_and_keys_inserted_while_they_exist_are_marked(spark, tmp_path):
    path = tmp_path / "twins"

    def sql(text):
        run_sql(text.replace("{t}", f"delta.`{path}`"))

    sql(
        "CREATE TABLE {t} (k BIGINT, v INT) USING delta TBLPROPERTIES "
        "('delta.enableChangeDataFeed' = 'true')"
    )
    sql("INSERT INTO {t} VALUES (1, 1), (1, 2), (2, 5), (NULL, 1), (NULL, 2)")
    sql("INSERT INTO {t} VALUES (2, 6), (3, 7)")
    selection = TableSelection(path=str(path), columns=(), keys=("k",))
    read = ViewRead.from_schema(
        selection, DeltaLog(str(path)).get_facts().fields, ImageSource(), ()
    )
    found = read_images(spark, read, Moment(0), Moment(2)).collect()
    marked = {(row["k"], row["v"]) for row in found if row["_repeats"]}
    assert marked == {(1, 1), (1, 2), (2, 6)}
    fresh = {(row["k"], row["v"]) for row in found if row["_fresh"]}
    assert {(2, 5), (3, 7)} <= fresh
    assert {row["v"] for row in found if row["k"] is None} == {1, 2}
    # Rows without a key are told only while some are there.
    sql("DELETE FROM {t} WHERE k IS NULL")
    found = read_images(spark, read, Moment(0), Moment(3)).collect()
    assert {row["k"] for row in found} == {1, 2, 3}
    # Rows that the view does not have do not count.
    outside = replace(read, image_source=ImageSource(stages=(Stage(where="v > 5"),)))
    found = read_images(spark, outside, Moment(0), Moment(2)).collect()
    assert {(row["k"], row["_repeats"]) for row in found} == {(2, False), (3, False)}


FAULTS = {
    "amont > 1": "names a column amont that does not exist; it can use: tenant, k, amount",
    "amount": "is of type decimal(10,2), not boolean",
    "NULL": "is of type void, not boolean",
    "amount >": "is not Spark SQL that can be evaluated here: [PARSE_SYNTAX_ERROR]",
    "frobnicate(k)": "calls a function that Spark does not have",
    "sum(amount) > 1": "is an aggregate",
    "row_number() OVER (ORDER BY k) > 1": "is a window function",
    "explode(array(k)) > 1": "makes several rows from one",
    "exists(SELECT 1)": "has a subquery",
    "k IN (/* all */ VALUES 1)": "has a subquery",
    "rand() > 0.5": "gives another value each time",
    "now() > '2020-01-01'": "calls now, whose value does not depend on the row",
    "current_date = DATE'2020-01-01'": "calls current_date, whose value does not depend on the row",
    "note > timestamp 'now'": "depends on the time it is evaluated",
    "note > timestamp /* of */ r'now'": "depends on the time it is evaluated",
    "`now`() > note": "calls now, whose value does not depend on the row",
    "IDENTIFIER('now')() > note": "hides a name in identifier()",
    "current_path() = note": "calls current_path, whose value does not depend on the row",
    "window(note, '5 minutes').start > note": "puts rows into time windows",
    "*": "is not Spark SQL that can be evaluated here: [WRONG_NUM_ARGS",
    "_version > 1": "names _version, a system column outside the row",
    "_timestamp > 1": "names _timestamp, a system column outside the row",
    "_change = 1": "names _change, a system column outside the row",
}


def test_expressions_that_cannot_be_used_have_one_clear_error_each(spark, table, capfd):
    fields = table.log.get_facts().fields

    def check(*stages, conditions=()):
        image_source = ImageSource(stages=stages).replace_conditions(conditions)
        return analyze_expressions(spark, "View shop.trades/big", fields, image_source)

    for text, fault in FAULTS.items():
        with pytest.raises(ConfigError) as caught:
            check(BIG, Stage(where=text))
        said = str(caught.value)
        assert_names(said, "View shop.trades/big", f"`{text}`")
        assert fault in said
        assert "JVM" not in said
        assert "\n" not in said
    with raises_naming(ConfigError, "'net'", "`gros / 2`", "gros"):
        check(BIG, Stage(columns=(("net", "gros / 2"),)))
    with raises_naming(ConfigError, "'AMOUNT'", "'amount'"):
        check(Stage(columns=(("AMOUNT", "1"),)))
    with raises_naming(ConfigError, "'n'", "`NULL`"):
        check(Stage(columns=(("n", "NULL"),)))
    with raises_naming(ConfigError, "'warm'", "`tags`", "map"):
        check(conditions=[TriggerConditions(name="warm", match="k > 1", unmatch="tags")])
    within = Stage(columns=(("s", "named_struct('user', note, 'version', k)"),))
    assert check(within, Stage(where="s.user = 'x' AND s . version > 1")) != ()
    good = "note LIKE '%select now()%' AND extract(YEAR FROM DATE'1999-01-01') > 1 -- rand()"
    assert check(Stage(where=good)) == ()
    assert "org.apache" not in "".join(capfd.readouterr())


def test_the_calculated_columns_have_types(spark, table):
    found = analyze_expressions(
        spark, "the view", table.log.get_facts().fields, ImageSource(stages=(BIG, HUGE))
    )
    assert {each.name: str(each.type) for each in found} == {
        "gross": "decimal(14,4)",
        "shout": "string",
    }
