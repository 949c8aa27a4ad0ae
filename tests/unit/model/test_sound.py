"""Of declarations that cannot stand together, the earlier ones stand and the others are told."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp_dagster import Endpoint, Mirror, ServiceConsumer, SourceTable, Trigger, View
from iscp_dagster.model.declared.linking.attach import Declarations
from iscp_dagster.model.declared.linking.clashes import check_declared_once
from iscp_dagster.model.declared.linking.sound import select_consistent
from iscp_dagster.model.errors import ConfigError

WORDS = SourceTable("au.words", key="id", tenant="t", indexes=[Mirror(), Mirror(name="text")])
TEXT = SourceTable("au.words_text", key="id", indexes=[Mirror()])
BIG = View("big", of=WORDS, where="n > 1")
ALERTS = Endpoint("alerts", url="https://a.example/x", secrets=["A"])
LARGE = Trigger("large", on=WORDS, match="n > 2", to=["alerts"])


def stand(*declared):
    return select_consistent(Declarations.of(declared), check_declared_once)


def names(found):
    return [each.name for table in found.tables for each in (table, *table.consumers)]


def test_what_fits_stands_as_it_is():
    found = stand(WORDS, BIG, LARGE, ALERTS)
    assert names(found) == ["au.words", "mirror", "text", "big", "large"]
    assert (found.mistakes, found.placeless) == ([], [])
    assert found.tables == Declarations.of([WORDS, BIG, LARGE, ALERTS]).build_tables()


def test_one_declaration_that_is_given_twice_counts_once():
    found = select_consistent(
        Declarations(tables=[WORDS, WORDS], views=[BIG, BIG]), check_declared_once
    )
    assert names(found) == ["au.words", "mirror", "text", "big"]
    assert found.mistakes == []


def test_a_table_of_an_index_s_name_is_left_out_with_all_that_is_over_it():
    over = (View("v", of=TEXT, where="n > 1"), Trigger("t", on=TEXT, match="n > 1"))
    found = stand(WORDS, TEXT, *over)
    assert names(found) == ["au.words", "mirror", "text"]
    (error,) = found.tables[0].left_out
    assert error.code == 10_130
    assert "au.words/text and the table au.words_text would both have the asset" in str(error)
    assert str(error).endswith("Until then the source table au.words_text is left out.")
    assert found.placeless == []
    assert found.declared == {id(WORDS): found.tables[0]}


def test_an_index_of_a_table_s_name_is_left_out_alone():
    found = stand(TEXT, WORDS)
    assert names(found) == ["au.words_text", "mirror", "au.words", "mirror"]
    (error,) = found.tables[1].left_out
    assert str(error).endswith("Until then the index au.words/text is left out.")
    assert found.tables[0].left_out == ()


def test_what_names_an_endpoint_stands_though_another_declares_it_later():
    with_alerts = replace(LARGE, name="other", to=[ALERTS])
    found = stand(WORDS, LARGE, with_alerts, replace(BIG, name="mirror"))
    assert names(found) == ["au.words", "mirror", "text", "large", "other"]
    assert found.tables[0].get_trigger("large").to == (ALERTS,)


def test_what_is_over_no_table_is_told_by_itself():
    lost = replace(BIG, of=SourceTable("au.lost", key="id"))
    found = stand(WORDS, lost, BIG)
    assert names(found) == ["au.words", "mirror", "text", "big"]
    (error,) = found.placeless
    assert "'au.lost' is not declared" in str(error)


def test_one_index_in_two_tables_is_left_out_of_one_alone():
    shared = Mirror(name="text_mirror")
    first = replace(WORDS, indexes=[shared])
    found = stand(TEXT, first, replace(WORDS, name="au.other", indexes=[shared]))
    assert names(found) == ["au.words_text", "mirror", "au.words", "au.other", "text_mirror"]


def test_a_service_consumer_of_a_table_that_is_left_out_is_told_once():
    inside = ServiceConsumer("http://127.0.0.1:1", handler="S/h", on=TEXT)
    found = stand(WORDS, replace(TEXT, services=[inside]), inside)
    assert names(found) == ["au.words", "mirror", "text"]
    assert len(found.mistakes) == 1


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a.b", "a.b_c", "a_b.c", "a.b_c_d", "a.c"]),
            st.lists(st.sampled_from(["c", "d", "c_d", "m"]), unique=True, max_size=3),
        ),
        max_size=6,
    )
)
def test_what_stands_is_as_much_as_fits_in_order(asked):
    tables = [
        SourceTable(name, key="id", indexes=[Mirror(name=each) for each in indexes])
        for name, indexes in asked
    ]
    kept: list[SourceTable] = []
    left_out = 0
    for table in tables:
        try:
            check_declared_once([*kept, replace(table, indexes=[])])
        except ConfigError:
            left_out += 1
            continue
        kept.append(replace(table, indexes=[]))
        for index in table.indexes:
            grown = replace(kept[-1], indexes=[*kept[-1].indexes, index])
            try:
                check_declared_once([*kept[:-1], grown])
            except ConfigError:
                left_out += 1
                continue
            kept[-1] = grown
    found = stand(*tables)
    assert names(found) == [each.name for table in kept for each in (table, *table.indexes)]
    assert len(found.mistakes) == left_out
    told = [error for table in found.tables for error in table.left_out]
    assert sorted(map(str, told)) == sorted(map(str, found.mistakes))
    with pytest.raises(ConfigError) if left_out else nullcontext():
        check_declared_once(tables)
