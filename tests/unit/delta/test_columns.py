"""What readers see of columns: which changes of a schema are seen, and which are not."""

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
ANEW = Struct((column("p", physical="col-later"), Q))


@pytest.mark.parametrize(
    "after",
    [
        (replace(P, name="q"), replace(Q, name="p")),
        (replace(P, name="x"), Q),
        (replace(P, physical="col-later"), Q),
        (P,),
        (P, Q, column("r")),
        (replace(P, type=Primitive("long")), Q),
        (replace(P, padded=True), Q),
    ],
)
def test_names_columns_and_types_are_seen(after):
    assert get_visible_columns((P, Q)) != get_visible_columns(after)


@pytest.mark.parametrize("inner", [SWAPPED, ANEW, Struct((Q, P)), Struct((P,))])
@pytest.mark.parametrize(
    "within",
    [
        lambda type_: type_,
        lambda type_: Struct((column("deeper", type_),)),
        lambda type_: Array(element=type_),
        lambda type_: Map(key=type_, value=TEXT),
        lambda type_: Map(key=TEXT, value=Array(element=type_)),
    ],
)
def test_nested_ones_are_seen_too(inner, within):
    before, after = column("s", within(INNER)), column("s", within(inner))
    assert get_visible_columns((before,)) != get_visible_columns((after,))


@pytest.mark.parametrize(
    "after",
    [
        (Q, P),
        (replace(P, nullable=False), Q),
        (replace(P, comment="what it is"), Q),
    ],
)
def test_order_comments_and_nullability_are_not(after):
    assert get_visible_columns((P, Q)) == get_visible_columns(after)


def test_a_column_that_gets_a_name_in_the_files_keeps_its_own():
    plain = DeltaField(name="p", type=TEXT)
    assert get_visible_columns((plain,)) == get_visible_columns((replace(plain, physical="p"),))
