"""Values of a file, read as the table's current type."""

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

LONG, TEXT = Primitive("long"), Primitive("string")


def named(name, type_, physical=""):
    return DeltaField(name=name, type=type_, physical=physical)


# The types in a file, and the column as it is declared now.
INNER = Struct((named("a", LONG), named("gone", TEXT)))
WRITTEN = Struct(
    (
        named("n", LONG),
        named("inner", INNER),
        named("many", Array(element=INNER)),
        named("by", Map(key=TEXT, value=INNER)),
    )
)
NEW_INNER = Struct((named("later", TEXT), named("A", LONG, physical="a")))
NOW = Struct(
    (
        named("by", Map(key=TEXT, value=NEW_INNER)),
        named("many", Array(element=NEW_INNER)),
        named("came", Array(element=LONG)),
        named("held", NEW_INNER, physical="inner"),
        named("n", LONG),
    )
)


def inner():
    number = st.none() | st.integers(-5, 5)
    return st.none() | st.fixed_dictionaries({"a": number, "gone": st.none() | st.just("x")})


VALUES = st.lists(
    st.none()
    | st.fixed_dictionaries(
        {
            "n": st.none() | st.integers(-5, 5),
            "inner": inner(),
            "many": st.none() | st.lists(inner(), max_size=3),
            "by": st.none() | st.lists(st.tuples(st.sampled_from("pq"), inner()), max_size=2),
        }
    ),
    max_size=6,
)


def now_inner(value):
    return None if value is None else {"later": None, "A": value["a"]}


def now(value):
    if value is None:
        return None
    many, by = value["many"], value["by"]
    return {
        "by": None if by is None else [(key, now_inner(each)) for key, each in by],
        "many": None if many is None else list(map(now_inner, many)),
        "came": None,
        "held": now_inner(value["inner"]),
        "n": value["n"],
    }


@given(VALUES, st.integers(0, 6), st.integers(0, 6))
def test_fields_come_and_go_inside_of_structs_lists_and_maps(values, begin, length):
    column = pa.array(values, to_arrow_type(WRITTEN)).slice(begin, length)
    found = cast_to_type(column, NOW)
    found.validate(full=True)
    assert found.type == to_arrow_type(NOW)
    assert found.to_pylist() == [now(value) for value in values[begin : begin + length]]


@pytest.mark.parametrize(
    ("type_", "known", "flat", "times"),
    [
        ("long", True, True, False),
        ("decimal(5,2)", True, True, False),
        ("date", True, True, True),
        ("timestamp_ntz", True, True, True),
        ("variant", False, True, False),
        ("interval", False, True, False),
    ],
)
def test_what_arrow_has_of_a_type(type_, known, flat, times):
    plain = parse_name(type_)
    struct = Struct((named("x", LONG), named("y", plain)))
    for made in (plain, Array(element=plain), struct, Map(key=TEXT, value=Array(element=struct))):
        assert (is_known(made), has_times(made)) == (known, times)
    assert is_flat(plain) is is_flat(Array(element=plain)) is flat
    assert not is_flat(struct)
    assert not is_flat(Array(element=struct))


def test_a_narrower_value_of_a_file_becomes_what_the_column_is():
    column = pa.array([1, None], pa.timestamp("us"))
    assert cast_to_type(column, Primitive("timestamp")).type == pa.timestamp("us", "UTC")
    assert cast_to_type(pa.array(["1.50"]).cast(pa.decimal128(9, 2)), Decimal(9, 2)).to_pylist()
