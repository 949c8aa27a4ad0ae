"""Values of a file, read as the table's current type."""

from decimal import Decimal as Number

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp_dagster.delta.arrow import cast_to_type, has_times, is_flat, is_known, to_arrow_type
from iscp_dagster.model.declared.schema import (
    Array,
    Decimal,
    DeltaField,
    Map,
    Primitive,
    Struct,
    parse_name,
)
from support.lake.row_writer import make_fields

LONG, TEXT = Primitive("long"), Primitive("string")


def make_field(name, type_, physical=""):
    return DeltaField(name=name, type=type_, physical=physical)


# The types in a file, and the column as it is declared now.
OLD_INNER = Struct(make_fields(a="long", dropped="string"))
OLD_NESTED = {"many": Array(element=OLD_INNER), "by": Map(key=TEXT, value=OLD_INNER)}
OLD = Struct(make_fields(n="long", inner=OLD_INNER, **OLD_NESTED))
NEW_INNER = Struct((make_field("added", TEXT), make_field("A", LONG, physical="a")))
NEW = Struct(
    (
        make_field("by", Map(key=TEXT, value=NEW_INNER)),
        make_field("many", Array(element=NEW_INNER)),
        make_field("added", Array(element=LONG)),
        make_field("renamed", NEW_INNER, physical="inner"),
        make_field("n", LONG),
    )
)


NUMBERS = st.none() | st.integers(-5, 5)
INNER = st.none() | st.fixed_dictionaries({"a": NUMBERS, "dropped": st.none() | st.just("x")})
VALUES = st.lists(
    st.none()
    | st.fixed_dictionaries(
        {
            "n": NUMBERS,
            "inner": INNER,
            "many": st.none() | st.lists(INNER, max_size=3),
            "by": st.none() | st.lists(st.tuples(st.sampled_from("pq"), INNER), max_size=2),
        }
    ),
    max_size=6,
)


def to_new_inner(value):
    return None if value is None else {"added": None, "A": value["a"]}


def to_new(value):
    if value is None:
        return None
    many, by = value["many"], value["by"]
    return {
        "by": None if by is None else [(key, to_new_inner(inner)) for key, inner in by],
        "many": None if many is None else list(map(to_new_inner, many)),
        "added": None,
        "renamed": to_new_inner(value["inner"]),
        "n": value["n"],
    }


@given(VALUES, st.integers(0, 6), st.integers(0, 6))
def test_fields_come_and_go_inside_of_structs_lists_and_maps(values, begin, length):
    column = cast_to_type(pa.array(values, to_arrow_type(OLD)).slice(begin, length), NEW)
    column.validate(full=True)
    assert column.type == to_arrow_type(NEW)
    assert column.to_pylist() == [to_new(value) for value in values[begin : begin + length]]


@pytest.mark.parametrize(
    ("name", "known", "times"),
    [
        ("long", True, False),
        ("decimal(5,2)", True, False),
        ("date", True, True),
        ("timestamp_ntz", True, True),
        ("variant", False, False),
        ("interval", False, False),
    ],
)
def test_whether_arrow_knows_a_type_and_whether_it_has_times_or_structs(name, known, times):
    plain = parse_name(name)
    struct = Struct((make_field("x", LONG), make_field("y", plain)))
    for type_ in (plain, Array(element=plain), struct, Map(key=TEXT, value=Array(element=struct))):
        assert (is_known(type_), has_times(type_)) == (known, times)
    assert is_flat(plain) is is_flat(Array(element=plain)) is True
    assert is_flat(struct) is is_flat(Array(element=struct)) is False


def test_a_narrower_value_of_a_file_becomes_what_the_column_is():
    column = pa.array([1, None], pa.timestamp("us"))
    assert cast_to_type(column, Primitive("timestamp")).type == pa.timestamp("us", "UTC")
    decimals = pa.array(["1.50"]).cast(pa.decimal128(9, 2))
    assert cast_to_type(decimals, Decimal(9, 2)).to_pylist() == [Number("1.50")]
