"""Which changes of a schema readers see, and which they do not."""

from dataclasses import replace

import pytest

from iscp_dagster.delta.log.columns import get_visible_columns
from iscp_dagster.model.declared.schema import Array, DeltaField, Map, Primitive, Struct

TEXT = Primitive("string")


def column(name, type_=TEXT, physical=None, **more):
    return DeltaField(name=name, type=type_, physical=physical or f"col-{name}", **more)


P, Q = column("p"), column("q")
INNER = Struct((P, Q))
SWAPPED = Struct((replace(P, name="q"), replace(Q, name="p")))
NEW_P = Struct((column("p", physical="col-later"), Q))


@pytest.mark.parametrize(
    ("after", "is_seen"),
    [
        ((replace(P, name="q"), replace(Q, name="p")), True),
        ((replace(P, name="x"), Q), True),
        ((replace(P, physical="col-later"), Q), True),
        ((P,), True),
        ((P, Q, column("r")), True),
        ((replace(P, type=Primitive("long")), Q), True),
        ((replace(P, padded=True), Q), True),
        ((Q, P), False),
        ((replace(P, nullable=False), Q), False),
        ((replace(P, comment="a number"), Q), False),
    ],
)
def test_names_columns_and_types_are_seen_but_not_order_comments_and_nulls(after, is_seen):
    assert (get_visible_columns((P, Q)) != get_visible_columns(after)) is is_seen


@pytest.mark.parametrize("inner", [SWAPPED, NEW_P, Struct((Q, P)), Struct((P,))])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda type_: type_,
        lambda type_: Struct((column("deeper", type_),)),
        lambda type_: Array(element=type_),
        lambda type_: Map(key=type_, value=TEXT),
        lambda type_: Map(key=TEXT, value=Array(element=type_)),
    ],
)
def test_changes_of_nested_fields_are_seen_too(inner, wrap):
    before, after = column("s", wrap(INNER)), column("s", wrap(inner))
    assert get_visible_columns((before,)) != get_visible_columns((after,))


def test_a_column_that_gets_a_name_in_the_files_keeps_its_own():
    plain = DeltaField(name="p", type=TEXT)
    assert get_visible_columns((plain,)) == get_visible_columns((replace(plain, physical="p"),))
