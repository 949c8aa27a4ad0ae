"""Null arrays, maps and structs, by the rules of a declaration."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from iscp_dagster import FullText, Mirror, SourceTable, Vector
from iscp_dagster.clickhouse.tables.ddl import IndexShape
from iscp_dagster.clickhouse.types.declared_types import check_types
from iscp_dagster.clickhouse.types.jsontext import to_json_texts, to_json_texts_or_null
from iscp_dagster.clickhouse.types.leaves import Misfit
from iscp_dagster.clickhouse.types.nulls import check_table_null_rules, get_null_rule
from iscp_dagster.clickhouse.types.storage import resolve_stored_type
from iscp_dagster.clickhouse.types.widening import can_widen
from iscp_dagster.clickhouse.types.wire import encode_column, respell_column
from iscp_dagster.delta.arrow import to_arrow_type
from iscp_dagster.model.declared.schema import Array, DeltaField, Map, Primitive, Struct
from iscp_dagster.model.errors import ConfigError, SchemaError
from support.errors import raises_naming
from support.lake.row_writer import make_fields

TEXT, LONG = Primitive("string"), Primitive("long")
TAGS = Array(element=TEXT)
STREET = DeltaField(name="street", type=TEXT, nullable=False)
SHIP = Struct((STREET, *make_fields(floors=Array(element=LONG), geo=Struct(make_fields(x=LONG)))))
DEEP = Map(key=TEXT, value=Array(element=SHIP))
FIELDS = make_fields(id=LONG, tags=TAGS, v=Array(element=Primitive("float")))
NOTHING = {"street": None, "floors": [], "geo": {"x": None}}


def resolve(type_, rule, **more):
    return resolve_stored_type(type_, None, nullable=True, column="c", nulls=rule, **more)


def make_column(type_, values):
    return pa.chunked_array([pa.array(values, to_arrow_type(type_))])


def shape(index, **table):
    source = SourceTable("shop.t", key="id", indexes=[index], **table)
    return IndexShape(source=source, index=index, fields=FIELDS)


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize(
    ("type_", "values", "expected"),
    [
        (TAGS, [None, None, ["a", None]], [[], [], ["a", None]]),
        (Map(key=TEXT, value=LONG), [None, None, [("a", None)]], [[], [], [("a", None)]]),
        (
            SHIP,
            [None, None, {**NOTHING, "street": "x"}],
            [NOTHING, NOTHING, {**NOTHING, "street": "x"}],
        ),
        (DEEP, [None, [("a", None)], [("a", [None])]], [[], [("a", [])], [("a", [NOTHING])]]),
    ],
    ids=str,
)
def test_an_empty_value_stands_for_a_null_at_any_depth(type_, values, expected, start):
    stored, column = resolve(type_, "empty"), make_column(type_, values).slice(start)
    assert encode_column(column, stored).to_pylist() == expected[start:]
    # The comparison has it too.
    assert respell_column(column, stored).to_pylist() == expected[start:]
    with pytest.raises(Misfit):
        encode_column(column, resolve(type_, "refuse"))


def test_a_null_array_over_hidden_elements_is_empty():
    """Arrow allows a null to have elements behind it."""
    offsets, values, mask = [0, 2, 3], ["a", "b", "c"], pa.array([True, False])
    column = pa.chunked_array([pa.ListArray.from_arrays(offsets, values, mask=mask)])
    assert encode_column(column, resolve(TAGS, "empty")).to_pylist() == [[], ["c"]]


def test_the_members_of_a_null_struct_are_null():
    assert str(resolve(SHIP, "empty").type).startswith("Tuple(`street` Nullable(String)")
    assert can_widen("Tuple(street String)", "Tuple(street Nullable(String))")
    assert not can_widen("Tuple(street Nullable(String))", "Tuple(street String)")


def test_json_text_distinguishes_null_from_empty():
    assert str(resolve(DEEP, "json").type) == "Nullable(String)"
    values = [None, [], [("ü", None)], [("a", [None, {**NOTHING, "floors": None}])]]
    texts = encode_column(make_column(DEEP, values), resolve(DEEP, "json")).to_pylist()
    assert texts[0] is None
    assert [json.loads(text) for text in texts[1:]] == [
        {},
        {"ü": None},
        {"a": [None, {"street": None, "floors": None, "geo": {"x": None}}]},
    ]


@pytest.mark.parametrize(
    ("type_", "value", "text"),
    [
        (Array(element=Primitive("double")), float("nan"), '["NaN"]'),
        (Array(element=Primitive("float")), 0.1, "[0.1]"),
        (Array(element=Primitive("binary")), b"\xff", '["/w=="]'),
        (Array(element=Primitive("boolean")), True, "[true]"),
        (Map(key=TAGS, value=LONG), (["a"], 1), '[[["a"],1]]'),
    ],
    ids=str,
)
def test_json_text_has_every_value(type_, value, text):
    assert to_json_texts(pa.array([[value]], to_arrow_type(type_)), type_).to_pylist() == [text]


def test_json_text_has_only_text_in_utf_8():
    values = pa.array([[b"\xff"]]).cast(pa.list_(pa.binary())).view(pa.list_(pa.string()))
    with raises_naming(Misfit, "UTF-8"):
        to_json_texts(values, TAGS)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
def test_json_text_has_times_in_utc_whoever_reads_them(zone):
    times = Array(element=Primitive("timestamp"))
    values = pa.array([[0]], pa.list_(pa.timestamp("us", zone)))
    assert to_json_texts(values, times).to_pylist() == ['["1970-01-01T00:00:00Z"]']


@pytest.mark.parametrize("name", ["date", "timestamp", "timestamp_ntz"])
def test_json_text_has_the_years_that_python_has(name):
    type_ = Array(element=Primitive(name))
    whole = pa.int32() if name == "date" else pa.int64()
    beyond = 2**31 - 1 if name == "date" else 2**62
    values = pa.array([[0], [beyond], None], pa.list_(whole)).cast(to_arrow_type(type_))
    with raises_naming(Misfit, 1, 9999):
        to_json_texts(values, type_)
    texts = to_json_texts_or_null(values, type_).to_pylist()
    assert [text is None for text in texts] == [False, True, True]


def test_the_first_rule_for_a_column_applies():
    mirror = Mirror(nulls={"tags": "json"})
    source = SourceTable("shop.t", key="id", nulls="refuse", indexes=[mirror])
    assert get_null_rule(source, mirror, "tags") == "json"
    assert get_null_rule(source, mirror, "v") == "refuse"
    vector = Vector("v", dimension=2, nulls="json")
    assert get_null_rule(SourceTable("shop.t", key="id"), vector, "v") == "empty"
    assert get_null_rule(SourceTable("shop.t", key="id"), FullText("body"), "tags") == "empty"


def test_a_flag_is_a_column_beside_it():
    flagged = shape(Mirror(nulls={"tags": "flag"}))
    assert flagged.flags == {"tags_is_null": "tags"}
    assert flagged.columns == ("id", "tags", "v", "tags_is_null")
    (_, create) = flagged.render_create_statements()
    assert "`tags_is_null` Bool DEFAULT true" in create
    assert "`tags_is_null` FROM" in flagged.render_view_statements()[-1]
    taken = [*FIELDS, DeltaField(name="tags_is_null", type=LONG)]
    with raises_naming(SchemaError, "shop.t/mirror", "'tags_is_null'"):
        IndexShape(source=flagged.source, index=flagged.index, fields=taken)


def test_the_definition_has_every_rule_but_the_default():
    assert "nulls" not in json.loads(shape(Mirror()).definition)
    assert json.loads(shape(Mirror(nulls="json")).definition)["nulls"] == {"*": "json"}
    flagged = shape(Mirror(), nulls={"tags": "flag"})
    assert json.loads(flagged.definition)["nulls"] == {"tags": "flag"}


PLAIN = SourceTable("shop.t", key="id")


@pytest.mark.parametrize(
    ("make", "error", "values"),
    [
        (
            lambda: check_types(replace(PLAIN, nulls="zero"), Mirror()),
            *(ConfigError, ["shop.t", "'zero'", "empty, flag, json, refuse"]),
        ),
        (
            lambda: check_types(PLAIN, Mirror(nulls={"tags": 3})),
            *(ConfigError, ["shop.t/mirror", 3, "empty, flag, json, refuse"]),
        ),
        (
            lambda: check_types(PLAIN, Mirror(columns=["v"], nulls={"tags": "json"})),
            *(ConfigError, ["shop.t/mirror", "'tags'"]),
        ),
        (
            lambda: check_types(PLAIN, Mirror(exclude=["tags"], nulls={"tags": "json"})),
            *(ConfigError, ["shop.t/mirror", "'tags'"]),
        ),
        (
            lambda: check_table_null_rules(replace(PLAIN, nulls={"tagz": "json"}), FIELDS),
            *(SchemaError, ["'shop.t'", "'tagz'", "id, tags, v"]),
        ),
        (
            lambda: check_table_null_rules(replace(PLAIN, nulls={"id": "flag"}), FIELDS),
            *(SchemaError, ["'shop.t'", "'id'", "long"]),
        ),
        (
            lambda: shape(Mirror(nulls={"tagz": "json"})),
            *(SchemaError, ["shop.t/mirror", "'tagz'"]),
        ),
        (
            lambda: shape(Mirror(nulls={"id": "json"})),
            *(SchemaError, ["shop.t/mirror", "'id'", "long"]),
        ),
        (
            lambda: shape(Mirror(nulls="json", types={"tags": "Array(UUID)"})).stored_types,
            *(SchemaError, ["'tags'", "'Array(UUID)'", "nulls='json'"]),
        ),
        (
            lambda: shape(Vector("v", dimension=2, nulls={"v": "json"})).stored_types,
            *(SchemaError, ["'v'", "'shop.t'", "graph"]),
        ),
    ],
)
def test_a_rule_that_does_not_fit_is_refused(make, error, values):
    with raises_naming(error, *values):
        make()
