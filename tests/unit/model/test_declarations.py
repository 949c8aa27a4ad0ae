"""Declared views, event triggers and endpoints: what becomes of them, and which are refused."""

from dataclasses import replace

import pytest

from iscp_dagster import Changes, Endpoint, Mirror, SourceTable, Trigger, View
from iscp_dagster.delta.checks import RESERVED
from iscp_dagster.model.declared.lineage import find_parents, sort_views
from iscp_dagster.model.declared.linking.attach import Declarations, UnfitError, attach_to_tables
from iscp_dagster.model.declared.linking.clashes import ClashError, check_declared_once
from iscp_dagster.model.declared.views import TAKEN
from iscp_dagster.model.errors import ConfigError
from support.errors import raises_naming

TRADES = SourceTable("shop.trades", key="id", tenant="desk", indexes=[Mirror(), Changes()])
EVENTS = SourceTable("shop.events", indexes=[Mirror(append=True)])
BIG = View("big", of=TRADES, where="amount > 100", columns={"gross": "amount * 1.19"})
HUGE = View("huge", of=BIG, where="gross > 1000", priority=3)
ALERTS = Endpoint("alerts", url="https://example.com/hook", secrets=["ALERTS_SECRET"])
LARGE = Trigger("large", on=BIG, match="gross > 500", columns=["id"], to=[ALERTS])
DEFINITION = [
    {"where": "amount > 100", "columns": {"gross": "amount * 1.19"}},
    {"where": "gross > 1000", "columns": {}},
]


def test_a_view_of_a_view_is_defined_from_the_source_up():
    assert (HUGE.source, HUGE.chain) == (TRADES, (BIG, HUGE))
    assert HUGE.definition == DEFINITION
    assert (TRADES.source, TRADES.chain, TRADES.definition) == (TRADES, (), [])


def test_a_table_gets_a_changes_index_for_each_view_and_its_triggers():
    (trades, other) = attach_to_tables([TRADES, EVENTS], [BIG, HUGE], [LARGE], [ALERTS])
    assert other is EVENTS
    names = [consumer.name for consumer in trades.consumers]
    assert names == ["mirror", "changes", "big", "huge", "large"]
    assert trades.get_index("huge") == Changes(name="huge", view=DEFINITION, priority=3)
    assert trades.get_index("changes").definition != trades.get_index("big").definition
    assert trades.get_trigger("large") == replace(LARGE, to=[ALERTS])
    with raises_naming(ConfigError, "shop.trades", "'small'", "large"):
        trades.get_trigger("small")


def test_a_trigger_s_endpoints_may_be_named():
    (trades,) = attach_to_tables([TRADES], [], [replace(LARGE, to=["alerts"])], [ALERTS])
    assert trades.triggers[0].to == (ALERTS,)
    other = replace(ALERTS, name="other")
    endpoints = Declarations.of([TRADES, other, LARGE, LARGE]).list_endpoints()
    assert endpoints == [ALERTS, other], "with those that only a trigger has, and no trigger at all"


def test_triggers_that_a_table_has_already_are_triggers_of_the_location():
    table = replace(TRADES, triggers=[replace(LARGE, to=["alerts"])])
    (trades,) = attach_to_tables([table], [BIG], [], [ALERTS])
    assert trades.triggers == [LARGE]
    assert attach_to_tables([trades]) == [trades], "attached again, it stays"
    assert Declarations.of([trades]).list_endpoints() == [ALERTS]
    with raises_naming(UnfitError, "'large'", "'big'"):
        attach_to_tables([table], [BIG], [LARGE], [ALERTS])
    with raises_naming(UnfitError, "'large'", "to='alerts'"):
        attach_to_tables([table])


def test_each_declaration_counts_once_whatever_names_it_has():
    declarations = Declarations.of([TRADES, BIG, TRADES, LARGE, ALERTS, BIG, Mirror()])
    assert declarations.everything == (TRADES, BIG, LARGE, ALERTS)


@pytest.mark.parametrize(
    "change",
    [
        {"where": "amount > 101"},
        {"columns": {"gross": "amount * 1.2"}},
        {"columns": {"net": "amount * 1.19"}},
    ],
)
def test_another_predicate_or_column_is_another_index(change):
    tables = (attach_to_tables([TRADES], [view])[0] for view in (BIG, replace(BIG, **change)))
    before, after = (table.get_index("big") for table in tables)
    assert before.definition != after.definition


def test_another_condition_and_nothing_else_is_another_trigger():
    assert LARGE.definition == {"view": BIG.definition, "match": "gross > 500", "unmatch": None}
    for changed in ({"match": "gross > 501"}, {"unmatch": "gross < 400"}, {"on": HUGE}):
        assert replace(LARGE, **changed).definition != LARGE.definition
    for kept in ({"columns": ["gross"]}, {"to": []}, {"priority": 4}, {"initial": "fire"}):
        assert replace(LARGE, **kept).definition == LARGE.definition


def test_views_and_triggers_on_a_view_are_below_that_view_s_index():
    others = [
        replace(LARGE, name="of_table", on=TRADES),
        replace(LARGE, name="of_a_view_elsewhere", on=replace(BIG, name="elsewhere")),
        # Not the view that has this name in the location.
        replace(LARGE, name="of_another", on=replace(BIG, where="amount > 7")),
    ]
    (trades,) = attach_to_tables([TRADES], [BIG, HUGE], [LARGE, *others])
    assert find_parents(trades) == {"huge": "big", "large": "big"}


def test_views_are_sorted_after_the_views_that_they_name():
    assert sort_views([("c", "b"), ("a", None), ("b", "a"), ("d", "t.t")], "t.t").index("b") == 2


@pytest.mark.parametrize(
    ("views", "culprits"),
    [
        ([("a", "b"), ("b", "c"), ("c", "a")], ("'a'", "'b'", "'c'")),
        ([("a", "a")], ("'a' of 'a'",)),
        ([("a", "nope")], ("'a'", "of='nope'", "'t.t'")),
        ([("a", None), ("a", None)], ("'a'", "twice")),
    ],
)
def test_views_that_cannot_be_sorted_are_refused(views, culprits):
    with raises_naming(ConfigError, *culprits):
        sort_views(views, "t.t")


@pytest.mark.parametrize(
    ("declaration", "change", "culprits"),
    [
        (BIG, {"where": " "}, ("'big'", "where=' '")),
        (BIG, {"where": 3}, ("'big'", "where=3")),
        (BIG, {"where": None, "columns": {}}, ("'big'", "where=", "Changes()")),
        (BIG, {"columns": ["gross"]}, ("'big'", "columns=['gross']")),
        (BIG, {"columns": {"gross": ""}}, ("'big'", "'gross'", "''")),
        (BIG, {"columns": {"ID": "1"}}, ("'big'", "'ID'", "'id'")),
        (BIG, {"columns": {"desk": "1"}}, ("'big'", "'desk'", "of=")),
        (BIG, {"columns": {"a": "1", "A": "2"}}, ("'big'", "'A'", "'a'")),
        (HUGE, {"columns": {"Gross": "1"}}, ("'huge'", "'Gross'", "'gross'")),
        (BIG, {"of": "trades"}, ("'big'", "of='trades'")),
        (BIG, {"of": None}, ("'big'", "of=None")),
        (BIG, {"of": EVENTS}, ("'big'", "'shop.events'", "key=")),
        (BIG, {"name": "no good"}, ("view", "'no good'")),
        (BIG, {"name": 7}, ("view", 7)),
        (BIG, {"priority": "high"}, ("'big'", "'high'")),
        (LARGE, {"name": "a:b"}, ("trigger", "'a:b'", "':'")),
        (LARGE, {"name": "no good"}, ("trigger", "'no good'")),
        (LARGE, {"name": ""}, ("trigger", "''")),
        (LARGE, {"name": None}, ("trigger", None)),
        (LARGE, {"on": None}, ("'large'", "on=None")),
        (LARGE, {"on": "big"}, ("'large'", "on='big'")),
        (LARGE, {"on": Mirror()}, ("'large'", f"on={Mirror()!r}")),
        (LARGE, {"on": EVENTS}, ("'large'", "'shop.events'", "key=")),
        (LARGE, {"match": ""}, ("'large'", "match=''")),
        (LARGE, {"unmatch": "  "}, ("'large'", "unmatch='  '")),
        (LARGE, {"initial": "all"}, ("'large'", "initial='all'", "skip, fire")),
        (LARGE, {"columns": "id"}, ("'large'", "columns='id'", "columns=['id']")),
        (LARGE, {"to": "alerts"}, ("'large'", "to='alerts'", "to=['alerts']")),
        (LARGE, {"to": [3]}, ("'large'", "to=[3]")),
        (LARGE, {"priority": 2**40}, ("'large'", 2**40)),
        (ALERTS, {"secrets": "x"}, ("'alerts'", "secrets='x'")),
        (ALERTS, {"retries": "x"}, ("'alerts'", "retries='x'")),
        (ALERTS, {"allow": "x"}, ("'alerts'", "allow='x'")),
    ],
)
def test_a_declaration_that_means_nothing_is_refused_with_one_error(declaration, change, culprits):
    with raises_naming(ConfigError, *culprits):
        replace(declaration, **change)


@pytest.mark.parametrize("name", [*sorted(TAKEN), "_iscp_upsert"])
def test_a_calculated_column_hides_no_column_that_every_change_has(name):
    for column in (name, name.upper()):
        with raises_naming(ConfigError, "'big'", repr(column), repr(name)):
            replace(BIG, columns={column: "1"})
    assert {"_version", "_timestamp", "_deleted", "_change", "_image", "_commit_version"} <= TAKEN
    assert {*TAKEN, *(each for each in RESERVED if each.startswith("_iscp_"))} >= RESERVED


def test_a_table_without_a_key_has_no_changes():
    with raises_naming(ConfigError, "'changes'", "append=True", "key="):
        SourceTable("shop.events", indexes=[Changes(append=True)])
    with raises_naming(ConfigError, "shop.events", "'changes'", "append=True"):
        SourceTable("shop.events", indexes=[Changes()])


def test_a_calculated_column_hides_none_of_the_source():
    """The declaration does not name the source's columns; the Delta log does."""
    (trades,) = attach_to_tables([TRADES], [BIG, HUGE])
    columns = ["id", "desk", "amount"]
    assert trades.select_columns(trades.get_index("huge"), columns)
    with raises_naming(ConfigError, "shop.trades/huge", "'gross'", "'GROSS'"):
        trades.select_columns(trades.get_index("huge"), [*columns, "GROSS"])


@pytest.mark.parametrize(
    ("declarations", "culprits"),
    [
        ([TRADES, LARGE, replace(LARGE, on=TRADES)], ("'large'", "'big'", "'shop.trades'")),
        ([TRADES, replace(LARGE, to=["alarms"]), ALERTS], ("'large'", "to='alarms'", "alerts")),
        ([EVENTS, BIG], ("View 'big'", "'shop.trades'", "shop.events")),
        ([EVENTS, LARGE], ("Trigger 'large'", "'shop.trades'", "shop.events")),
        ([TRADES, replace(BIG, name="mirror")], ("View 'mirror'", "shop.trades", "index 'mirror'")),
        ([TRADES, BIG, replace(LARGE, name="big")], ("Trigger 'big'", "shop.trades", "job 'big'")),
        ([TRADES, LARGE, replace(ALERTS, batch=9)], ("Endpoint 'alerts'",)),
    ],
)
def test_a_declaration_that_does_not_fit_the_others_is_refused(declarations, culprits):
    with raises_naming(UnfitError, *culprits):
        Declarations.of(declarations).build_tables()


def test_two_tables_may_have_a_view_of_one_name_but_no_trigger_may_hide_a_table():
    sales = replace(TRADES, name="shop.sales")
    check_declared_once(attach_to_tables([TRADES, sales], [BIG, replace(BIG, of=sales)]))
    hidden = replace(TRADES, name="shop.trades_large")
    with raises_naming(ClashError, "asset", "'shop.trades_large'"):
        check_declared_once(attach_to_tables([TRADES, hidden], [], [LARGE]))
    other = SourceTable("shop.trades_large", key="id", indexes=[Mirror(name="x")])
    trades = replace(TRADES, name="shop.trades", indexes=[Mirror(name="large_x")])
    with raises_naming(ClashError, "index view", "'shop.trades_large_x'"):
        check_declared_once(attach_to_tables([trades, other], []))
