"""Views, event triggers and endpoints as they are declared: what they give, and what is refused."""

from dataclasses import replace

import pytest

from iscp_dagster import Changes, Endpoint, Mirror, SourceTable, Trigger, View
from iscp_dagster.delta.checks import RESERVED
from iscp_dagster.model.declared.lineage import find_parents, sort_views
from iscp_dagster.model.declared.linking.attach import Declarations, UnfitError, attach_to_tables
from iscp_dagster.model.declared.linking.clashes import check_declared_once
from iscp_dagster.model.declared.views import TAKEN
from iscp_dagster.model.errors import ConfigError

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
    (given, other) = attach_to_tables([TRADES, EVENTS], [BIG, HUGE], [LARGE], [ALERTS])
    assert other is EVENTS
    assert [each.name for each in given.consumers] == ["mirror", "changes", "big", "huge", "large"]
    assert given.get_index("huge") == Changes(name="huge", view=DEFINITION, priority=3)
    assert given.get_index("changes").definition != given.get_index("big").definition
    assert given.get_trigger("large") == replace(LARGE, to=[ALERTS])
    with pytest.raises(ConfigError, match=r"has no trigger 'small'; it has: large"):
        given.get_trigger("small")


def test_a_trigger_s_endpoints_may_be_named():
    named = replace(LARGE, to=["alerts"])
    (given,) = attach_to_tables([TRADES], [], [named], [ALERTS])
    assert given.triggers[0].to == (ALERTS,)
    other = replace(ALERTS, name="other")
    known = Declarations.of([TRADES, other, LARGE, LARGE]).list_endpoints()
    assert known == [ALERTS, other], "with those that only a trigger has, and no trigger at all"


def test_triggers_that_a_table_has_already_are_triggers_of_the_location():
    table = replace(TRADES, triggers=[replace(LARGE, to=["alerts"])])
    (given,) = attach_to_tables([table], [BIG], [], [ALERTS])
    assert given.triggers == [LARGE]
    assert attach_to_tables([given]) == [given], "attached again, it stays"
    assert Declarations.of([given]).list_endpoints() == [ALERTS]
    with pytest.raises(UnfitError, match="Trigger 'large' is declared twice"):
        attach_to_tables([table], [BIG], [LARGE], [ALERTS])
    with pytest.raises(UnfitError, match="to='alerts' is not an endpoint of the location"):
        attach_to_tables([table])


def test_each_declaration_counts_once_whatever_names_it_has():
    found = Declarations.of([TRADES, BIG, TRADES, LARGE, ALERTS, BIG, Mirror()])
    assert found.everything == (TRADES, BIG, LARGE, ALERTS)


@pytest.mark.parametrize(
    "made",
    [
        lambda: replace(BIG, where="amount > 101"),
        lambda: replace(BIG, columns={"gross": "amount * 1.2"}),
        lambda: replace(BIG, columns={"net": "amount * 1.19"}),
    ],
)
def test_another_predicate_or_column_is_another_index(made):
    before, after = (
        attach_to_tables([TRADES], [view])[0].get_index("big") for view in (BIG, made())
    )
    assert before.definition != after.definition


def test_another_condition_and_nothing_else_is_another_trigger():
    assert LARGE.definition == {
        "view": BIG.definition,
        "match": "gross > 500",
        "unmatch": None,
    }
    for changed in ({"match": "gross > 501"}, {"unmatch": "gross < 400"}, {"on": HUGE}):
        assert replace(LARGE, **changed).definition != LARGE.definition
    for kept in ({"columns": ["gross"]}, {"to": []}, {"priority": 4}, {"initial": "fire"}):
        assert replace(LARGE, **kept).definition == LARGE.definition


def test_what_is_of_a_view_is_below_that_view_s_index():
    others = [
        replace(LARGE, name="of_table", on=TRADES),
        replace(LARGE, name="of_a_view_elsewhere", on=replace(BIG, name="elsewhere")),
        # Not the view that has this name in the location.
        replace(LARGE, name="of_another", on=replace(BIG, where="amount > 7")),
    ]
    (given,) = attach_to_tables([TRADES], [BIG, HUGE], [LARGE, *others])
    assert find_parents(given) == {"huge": "big", "large": "big"}


def test_views_given_by_name_come_after_those_that_they_are_of():
    assert sort_views([("c", "b"), ("a", None), ("b", "a"), ("d", "t.t")], "t.t").index("b") == 2
    refused = {
        (("a", "b"), ("b", "c"), ("c", "a")): r"views form a cycle: '\w' of '\w' of '\w' of",
        (("a", "a"),): r"views form a cycle: 'a' of 'a'\. Make one of them a view of the",
        (("a", "nope"),): r"View 'a': of='nope' is neither the table 't\.t' nor a view declared",
        (("a", None), ("a", None)): r"View 'a' is declared twice; give each its own name",
    }
    for views, said in refused.items():
        with pytest.raises(ConfigError, match=said):
            sort_views(views, "t.t")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            {"where": " "},
            r"its predicate where=' ' is empty; give a condition, or leave where=",
        ),
        ({"where": 3}, r"its predicate where=3 is empty"),
        (
            {"where": None, "columns": {}},
            r"has neither where= nor columns=; .* declare Changes",
        ),
        ({"columns": ["gross"]}, r"columns=\['gross'\] does not map names to expressions"),
        ({"columns": {"gross": ""}}, r"the calculated column 'gross' is ''; give it a name and"),
        ({"columns": {"ID": "1"}}, r"calculated column 'ID' would hide 'id', a column of its of="),
        ({"columns": {"desk": "1"}}, r"calculated column 'desk' would hide 'desk', a column of"),
        ({"columns": {"a": "1", "A": "2"}}, r"calculated column 'A' would hide 'a'"),
        ({"of": "trades"}, r"of='trades' is neither a source table nor a view; .* not its name"),
        ({"of": None}, r"of=None is neither a source table nor a view"),
        ({"of": EVENTS}, r"source table 'shop\.events' has no key, .*; declare the table's key="),
        ({"name": "no good"}, r"The view name 'no good' is not an identifier"),
        ({"name": 7}, r"The view name 7 is not an identifier"),
        ({"priority": "high"}, r"View 'big': .*'high'"),
    ],
)
def test_a_view_that_means_nothing_is_refused_with_one_error(wrong, said):
    with pytest.raises(ConfigError, match=said):
        replace(BIG, **wrong)


@pytest.mark.parametrize("name", [*sorted(TAKEN), "_iscp_upsert"])
def test_a_calculated_column_hides_no_column_that_every_change_has(name):
    for spelt in (name, name.upper()):
        said = f"View 'big': the calculated column {spelt!r} would hide {name!r}, a column that "
        with pytest.raises(ConfigError, match=said):
            replace(BIG, columns={spelt: "1"})
    assert {"_version", "_timestamp", "_deleted", "_change", "_image", "_commit_version"} <= TAKEN
    assert {*TAKEN, *(each for each in RESERVED if each.startswith("_iscp_"))} >= RESERVED


def test_a_table_without_a_key_has_no_changes():
    with pytest.raises(
        ConfigError, match=r"'changes': append=True, but changes are tracked by key"
    ):
        SourceTable("shop.events", indexes=[Changes(append=True)])
    with pytest.raises(ConfigError, match=r"declare at least one key column, or append=True"):
        SourceTable("shop.events", indexes=[Changes()])


def test_a_calculated_column_hides_none_of_the_view_below():
    with pytest.raises(ConfigError, match=r"View 'huge': the calculated column 'Gross' would hide"):
        replace(HUGE, columns={"Gross": "1"})


def test_a_calculated_column_hides_none_of_the_source():
    """Which the declaration does not name; the Delta log does."""
    (given,) = attach_to_tables([TRADES], [BIG, HUGE])
    assert given.select_columns(given.get_index("huge"), ["id", "desk", "amount"])
    said = r"Index shop\.trades/huge: the calculated column 'gross' would hide 'GROSS', a column of"
    with pytest.raises(ConfigError, match=said):
        given.select_columns(given.get_index("huge"), ["id", "desk", "amount", "GROSS"])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"name": "a:b"}, r"trigger name 'a:b' has a ':', which separates the parts .* an event's"),
        ({"name": "no good"}, r"The trigger name 'no good' is not an identifier"),
        ({"name": ""}, r"The trigger name '' is not an identifier"),
        ({"name": None}, r"The trigger name None is not an identifier"),
        ({"on": None}, r"on=None is neither a source table nor a view"),
        ({"on": "big"}, r"on='big' is neither a source table nor a view; .* not its name"),
        ({"on": Mirror()}, r"on=Mirror\(.*\) is neither a source table nor a view"),
        ({"on": EVENTS}, r"source table 'shop\.events' has no key, .*; declare the table's key="),
        ({"match": ""}, r"Trigger 'large': match='' is empty; give a condition"),
        ({"unmatch": "  "}, r"Trigger 'large': unmatch='  ' is empty; give a condition"),
        ({"initial": "all"}, r"Trigger 'large': initial='all' is not one of: skip, fire"),
        ({"columns": "id"}, r"columns='id' is not a list of names; write columns=\['id'\]"),
        ({"to": "alerts"}, r"to='alerts' is not a list of endpoints; write to=\['alerts'\]"),
        ({"to": [3]}, r"to=\[3\] is not a list of endpoints"),
        ({"priority": 2**40}, r"Trigger 'large': .*1099511627776"),
    ],
)
def test_a_trigger_that_means_nothing_is_refused_with_one_error(wrong, said):
    with pytest.raises(ConfigError, match=said):
        replace(LARGE, **wrong)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            [TRADES, LARGE, replace(LARGE, on=TRADES)],
            r"Trigger 'large' is declared twice in the location, on 'big' and on 'shop\.trades'",
        ),
        (
            [TRADES, replace(LARGE, to=["alarms"]), ALERTS],
            r"to='alarms' is not an endpoint of the location, which has: alerts\. Declare Endpoi",
        ),
        ([EVENTS, BIG], r"View 'big': its source table 'shop\.trades' is not declared in the"),
        (
            [EVENTS, LARGE],
            r"Trigger 'large': its source table 'shop\.trades' is not declared in the location",
        ),
        (
            [TRADES, replace(BIG, name="mirror")],
            r"View 'mirror': shop\.trades: index 'mirror' is declared twice",
        ),
        (
            [TRADES, BIG, replace(LARGE, name="big")],
            r"Trigger 'big': shop\.trades: job 'big' is declared twice",
        ),
        (
            [TRADES, LARGE, replace(ALERTS, batch=9)],
            r"Endpoint 'alerts' is declared twice in the location",
        ),
    ],
)
def test_what_does_not_fit_the_others_is_refused(given, said):
    with pytest.raises(UnfitError, match=said):
        Declarations.of(given).build_tables()


def test_two_tables_may_have_a_view_of_one_name_but_no_trigger_may_hide_a_table():
    sales = replace(TRADES, name="shop.sales")
    check_declared_once(attach_to_tables([TRADES, sales], [BIG, replace(BIG, of=sales)]))
    taken = replace(TRADES, name="shop.trades_large")
    with pytest.raises(ConfigError, match=r"would both have the asset 'shop\.trades_large'"):
        check_declared_once(attach_to_tables([TRADES, taken], [], [LARGE]))
    other = SourceTable("shop.trades_large", key="id", indexes=[Mirror(name="x")])
    far = replace(TRADES, name="shop.trades", indexes=[Mirror(name="large_x")])
    with pytest.raises(ConfigError, match=r"would both have the index view 'shop\.trades_large_x'"):
        check_declared_once(attach_to_tables([far, other], []))


@pytest.mark.parametrize("option", ["secrets", "retries", "allow"])
def test_an_endpoint_s_lists_are_lists(option):
    with pytest.raises(ConfigError, match=rf"Endpoint 'alerts': {option}='x' is not a list"):
        replace(ALERTS, **{option: "x"})
