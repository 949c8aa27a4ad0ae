"""Of declarations that contradict, the earlier ones are kept and the others are reported."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from iscp_dagster import Endpoint, Mirror, ServiceConsumer, SourceTable, Trigger, View
from iscp_dagster.model.declared.linking.attach import Declarations
from iscp_dagster.model.declared.linking.clashes import check_declared_once
from iscp_dagster.model.declared.linking.sound import select_consistent
from iscp_dagster.model.errors import ConfigError
from support.errors import assert_names

WORDS = SourceTable("au.words", key="id", tenant="t", indexes=[Mirror(), Mirror(name="text")])
TEXT = SourceTable("au.words_text", key="id", indexes=[Mirror()])
BIG = View("big", of=WORDS, where="n > 1")
ALERTS = Endpoint("alerts", url="https://a.example/x", secrets=["A"])
LARGE = Trigger("large", on=WORDS, match="n > 2", to=["alerts"])


def select(*declared):
    return select_consistent(Declarations.of(declared), check_declared_once)


def list_names(kept):
    return [each.name for table in kept.tables for each in (table, *table.consumers)]


def test_consistent_declarations_are_kept_as_they_are():
    kept = select(WORDS, BIG, LARGE, ALERTS)
    assert list_names(kept) == ["au.words", "mirror", "text", "big", "large"]
    assert (kept.mistakes, kept.placeless) == ([], [])
    assert kept.tables == Declarations.of([WORDS, BIG, LARGE, ALERTS]).build_tables()


def test_one_declaration_named_twice_counts_once():
    twice = Declarations(tables=[WORDS, WORDS], views=[BIG, BIG])
    kept = select_consistent(twice, check_declared_once)
    assert list_names(kept) == ["au.words", "mirror", "text", "big"]
    assert kept.mistakes == []


def test_a_table_with_an_index_s_name_is_left_out_with_its_views_and_triggers():
    over = (View("v", of=TEXT, where="n > 1"), Trigger("t", on=TEXT, match="n > 1"))
    kept = select(WORDS, TEXT, *over)
    assert list_names(kept) == ["au.words", "mirror", "text"]
    (error,) = kept.tables[0].left_out
    assert error.code == 10_130
    assert_names(str(error), "au.words/text", "asset", "source table au.words_text")
    assert kept.placeless == []
    assert kept.declared == {id(WORDS): kept.tables[0]}


def test_an_index_with_a_table_s_name_is_left_out_alone():
    books = ServiceConsumer("http://127.0.0.1:1", handler="S/h", name="books")
    large = replace(LARGE, to=[ALERTS])
    kept = select(TEXT, replace(WORDS, services=[books], triggers=[large]))
    assert list_names(kept) == ["au.words_text", "mirror", "au.words", "mirror", "large", "books"]
    (error,) = kept.tables[1].left_out
    assert_names(str(error), "au.words_text", "index au.words/text")
    assert kept.tables[0].left_out == ()


def test_a_trigger_that_names_an_endpoint_is_kept_though_another_declares_it_later():
    with_alerts = replace(LARGE, name="other", to=[ALERTS])
    kept = select(WORDS, LARGE, with_alerts, replace(BIG, name="mirror"))
    assert list_names(kept) == ["au.words", "mirror", "text", "large", "other"]
    assert kept.tables[0].get_trigger("large").to == (ALERTS,)


def test_a_view_of_no_declared_table_is_reported_by_itself():
    lost = replace(BIG, of=SourceTable("au.lost", key="id"))
    kept = select(WORDS, lost, BIG)
    assert list_names(kept) == ["au.words", "mirror", "text", "big"]
    (error,) = kept.placeless
    assert_names(str(error), "'au.lost'", "view big")


def test_one_index_in_two_tables_is_left_out_of_one_alone():
    shared = Mirror(name="text_mirror")
    first = replace(WORDS, indexes=[shared])
    kept = select(TEXT, first, replace(WORDS, name="au.other", indexes=[shared]))
    assert list_names(kept) == ["au.words_text", "mirror", "au.words", "au.other", "text_mirror"]


def test_a_service_consumer_of_a_table_that_is_left_out_is_reported_once():
    inside = ServiceConsumer("http://127.0.0.1:1", handler="S/h", on=TEXT)
    kept = select(WORDS, replace(TEXT, services=[inside]), inside)
    assert list_names(kept) == ["au.words", "mirror", "text"]
    assert len(kept.mistakes) == 1


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a.b", "a.b_c", "a_b.c", "a.b_c_d", "a.c"]),
            st.lists(st.sampled_from(["c", "d", "c_d", "m"]), unique=True, max_size=3),
        ),
        max_size=6,
    )
)
def test_as_much_is_kept_as_fits_in_order(declarations):
    tables = [
        SourceTable(name, key="id", indexes=[Mirror(name=index) for index in indexes])
        for name, indexes in declarations
    ]
    expected: list[SourceTable] = []
    left_out = 0

    def fits(candidates):
        try:
            check_declared_once(candidates)
        except ConfigError:
            return False
        return True

    for table in tables:
        bare = replace(table, indexes=[])
        if not fits([*expected, bare]):
            left_out += 1
            continue
        expected.append(bare)
        for index in table.indexes:
            larger = replace(expected[-1], indexes=[*expected[-1].indexes, index])
            if fits([*expected[:-1], larger]):
                expected[-1] = larger
            else:
                left_out += 1
    kept = select(*tables)
    names = [each.name for table in expected for each in (table, *table.indexes)]
    assert list_names(kept) == names
    assert len(kept.mistakes) == left_out
    reported = [error for table in kept.tables for error in table.left_out]
    assert sorted(map(str, reported)) == sorted(map(str, kept.mistakes))
    assert fits(tables) is not bool(left_out)
