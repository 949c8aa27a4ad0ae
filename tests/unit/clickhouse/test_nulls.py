"""Null arrays, maps and structs, by the rules that a declaration gives."""

import json

import pyarrow as pa
import pytest

from iscp_dagster import FullText, Mirror, SourceTable, Vector
from iscp_dagster.clickhouse.tables.ddl import IndexTable
from iscp_dagster.clickhouse.types.declared_types import check_types
from iscp_dagster.clickhouse.types.jsontext import to_json_texts, to_json_texts_or_null
from iscp_dagster.clickhouse.types.leaves import Misfit
from iscp_dagster.clickhouse.types.nulls import check_table_nulls, get_null_rule
from iscp_dagster.clickhouse.types.storage import resolve_stored_type
from iscp_dagster.clickhouse.types.widening import can_widen
from iscp_dagster.clickhouse.types.wire import encode_column, respell_column
from iscp_dagster.delta.arrow import to_arrow_type
from iscp_dagster.model.declared.schema import Array, DeltaField, Map, Primitive, Struct
from iscp_dagster.model.errors import ConfigError, SchemaError

TEXT, LONG = Primitive("string"), Primitive("long")
TAGS = Array(element=TEXT)
SHIP = Struct(
    (
        DeltaField(name="street", type=TEXT, nullable=False),
        DeltaField(name="floors", type=Array(element=LONG)),
        DeltaField(name="geo", type=Struct((DeltaField(name="x", type=LONG),))),
    )
)
DEEP = Map(key=TEXT, value=Array(element=SHIP))
FIELDS = [
    DeltaField(name="id", type=LONG),
    DeltaField(name="tags", type=TAGS),
    DeltaField(name="v", type=Array(element=Primitive("float"))),
]
NOTHING = {"street": None, "floors": [], "geo": {"x": None}}


def kept(type_, rule, **more):
    return resolve_stored_type(type_, None, nullable=True, column="c", nulls=rule, **more)


def column(type_, values):
    return pa.chunked_array([pa.array(values, to_arrow_type(type_))])


def shape(index, **table):
    source = SourceTable("shop.t", key="id", indexes=[index], **table)
    return IndexTable(source=source, index=index, fields=FIELDS)


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize(
    ("type_", "values", "wanted"),
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
def test_an_empty_value_stands_for_a_null_at_any_depth(type_, values, wanted, start):
    stored, given = kept(type_, "empty"), column(type_, values).slice(start)
    assert encode_column(given, stored).to_pylist() == wanted[start:]
    assert respell_column(given, stored).to_pylist() == wanted[start:], "the comparison has it too"
    with pytest.raises(Misfit):
        encode_column(given, kept(type_, "refuse"))


def test_a_null_array_over_hidden_elements_is_empty():
    """Arrow allows a null to have elements behind it."""
    hidden = pa.ListArray.from_arrays(
        pa.array([0, 2, 3]), pa.array(["a", "b", "c"]), mask=pa.array([True, False])
    )
    assert encode_column(pa.chunked_array([hidden]), kept(TAGS, "empty")).to_pylist() == [[], ["c"]]


def test_the_members_of_a_null_struct_are_null():
    assert str(kept(SHIP, "empty").type).startswith("Tuple(`street` Nullable(String)")
    assert can_widen("Tuple(street String)", "Tuple(street Nullable(String))")
    assert not can_widen("Tuple(street Nullable(String))", "Tuple(street String)")


def test_json_text_tells_null_from_empty():
    assert str(kept(DEEP, "json").type) == "Nullable(String)"
    values = [None, [], [("ü", None)], [("a", [None, {**NOTHING, "floors": None}])]]
    texts = encode_column(column(DEEP, values), kept(DEEP, "json")).to_pylist()
    assert texts[0] is None
    assert [json.loads(text) for text in texts[1:]] == [
        {},
        {"ü": None},
        {"a": [None, {"street": None, "floors": None, "geo": {"x": None}}]},
    ]


def test_json_text_has_every_value():
    def written(name, value, type_=None):
        type_ = Array(element=Primitive(name)) if type_ is None else type_
        return to_json_texts(pa.array([[value]], to_arrow_type(type_)), type_).to_pylist()[0]

    assert written("double", float("nan")) == '["NaN"]'
    assert written("float", 0.1) == "[0.1]"
    assert written("binary", b"\xff") == '["/w=="]'
    assert written("boolean", True) == "[true]"
    by_list = Map(key=TAGS, value=LONG)
    assert written("", (["a"], 1), by_list) == '[[["a"],1]]'
    with pytest.raises(Misfit, match="only text in UTF-8"):
        to_json_texts(
            pa.array([[b"\xff"]]).cast(pa.list_(pa.binary())).view(pa.list_(pa.string())), TAGS
        )


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
    with pytest.raises(Misfit, match="the years 1 to 9999"):
        to_json_texts(values, type_)
    held = to_json_texts_or_null(values, type_).to_pylist()
    assert [text is None for text in held] == [False, True, True]


def test_the_first_rule_for_the_column_holds():
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
    with pytest.raises(SchemaError, match="needs a column 'tags_is_null', which the source has"):
        IndexTable(source=flagged.source, index=flagged.index, fields=taken)


def test_another_rule_is_another_definition_and_the_default_is_none():
    assert "nulls" not in json.loads(shape(Mirror()).definition)
    assert json.loads(shape(Mirror(nulls="json")).definition)["nulls"] == {"*": "json"}
    assert json.loads(shape(Mirror(), nulls={"tags": "flag"}).definition)["nulls"] == {
        "tags": "flag"
    }


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (
            lambda: check_types(SourceTable("shop.t", key="id", nulls="zero"), Mirror()),
            ConfigError,
            "'zero', which is not one of: empty, flag, json, refuse",
        ),
        (
            lambda: check_types(SourceTable("shop.t", key="id"), Mirror(nulls={"tags": 3})),
            ConfigError,
            "has 3, which is not one of",
        ),
        (lambda: shape(Mirror(nulls={"tagz": "json"})), SchemaError, "'tagz', which it does not"),
        (
            lambda: check_table_nulls(
                SourceTable("shop.t", key="id", nulls={"tagz": "json"}), FIELDS
            ),
            SchemaError,
            "'shop.t': nulls names the column 'tagz', which it does not have; .* id, tags, v",
        ),
        (
            lambda: check_table_nulls(
                SourceTable("shop.t", key="id", nulls={"id": "flag"}), FIELDS
            ),
            SchemaError,
            "'id', which is long: ClickHouse",
        ),
        (
            lambda: check_types(
                SourceTable("shop.t", key="id"), Mirror(columns=["v"], nulls={"tags": "json"})
            ),
            ConfigError,
            "'tags', which it leaves out; correct the name, or carry",
        ),
        (
            lambda: check_types(
                SourceTable("shop.t", key="id"), Mirror(exclude=["tags"], nulls={"tags": "json"})
            ),
            ConfigError,
            "'tags', which it leaves out",
        ),
        (
            lambda: shape(Mirror(nulls={"id": "json"})),
            SchemaError,
            "'id', which is long: ClickHouse",
        ),
        (
            lambda: shape(Mirror(nulls="json", types={"tags": "Array(UUID)"})).stored_types,
            SchemaError,
            r"nulls='json'; leave out one of them",
        ),
        (
            lambda: shape(Vector("v", dimension=2, nulls={"v": "json"})).stored_types,
            SchemaError,
            "the graph needs an array",
        ),
    ],
)
def test_what_is_refused(make, error, said):
    with pytest.raises(error, match=said):
        make()
