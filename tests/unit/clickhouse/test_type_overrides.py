"""The types of a declaration: parsed, allowed or refused, and documented."""

import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp_dagster import Mirror, SourceTable, Vector
from iscp_dagster.clickhouse.kinds.index_kind import resolve_index
from iscp_dagster.clickhouse.tables.ddl import IndexShape
from iscp_dagster.clickhouse.types.cells import CELLS, find_cell, get_family
from iscp_dagster.clickhouse.types.storage import DYNAMIC_TYPES, resolve_stored_type
from iscp_dagster.clickhouse.types.type_parser import GEO, ClickHouseType, TypeTextError, parse_type
from iscp_dagster.clickhouse.types.widening import can_widen, is_same_type, keep_old_fields
from iscp_dagster.clickhouse.types.wire import respell_column
from iscp_dagster.model.declared.schema import Array, Decimal, DeltaField, Map, Primitive, Struct
from iscp_dagster.model.errors import ConfigError, SchemaError
from iscp_dagster.model.specs import ConsumerInfo
from support.errors import raises_naming
from support.lake.type_cells import (
    CASES,
    DOUBLE,
    FLOAT,
    LONG,
    NTZ,
    POINT,
    STRING,
    UUID,
    VARIANT,
    field,
)
from support.lake.types_page import render_type_table
from support.paths import DOCS

PAGE = DOCS / "types.md"
NAMES = st.text(min_size=1, max_size=5)


def test_a_value_that_does_not_fit_is_left_unchanged_for_the_comparison():
    """Rows of dead letters are missing in the index; the comparison shows no other fault."""
    tree = Struct((field("k", Map(key=STRING, value=Array(element=STRING))),))
    declared = "Tuple(k Map(UUID, Array(UUID)))"
    stored = resolve_stored_type(tree, declared, nullable=False, column="c", nulls="refuse")
    others = [None, {"k": None}, {"k": []}]
    rows = [{"k": [(UUID.upper(), [UUID.upper(), None, "X"]), ("X", None)]}, *others]
    expected = [{"k": [(UUID, [UUID, None, "X"]), ("X", None)]}, *others]
    texts = pa.map_(pa.string(), pa.list_(pa.string()))
    column = pa.chunked_array([pa.array(rows, pa.struct([("k", texts)]))])
    for start in (0, 1):
        assert respell_column(column.slice(start), stored).to_pylist() == expected[start:]


def leaves():
    numbers = st.integers(-128, 127)
    enums = st.dictionaries(NAMES, numbers, min_size=1).filter(
        lambda members: len(set(members.values())) == len(members)
    )
    return st.one_of(
        st.sampled_from(["Int8", "UInt256", "String", "JSON", "Point"]).map(parse_type),
        st.builds(lambda n: ClickHouseType(name="FixedString", numbers=(n,)), st.integers(1, 99)),
        st.builds(lambda z: ClickHouseType(name="DateTime64", numbers=(6,), zone=z), st.text()),
        enums.map(make_enum),
    )


def make_enum(members):
    numbered = sorted((number, name) for name, number in members.items())
    numbers, names = zip(*numbered, strict=True)
    return ClickHouseType(name="Enum8", names=names, numbers=numbers)


def tuples(inner):
    return st.dictionaries(NAMES, inner, min_size=1, max_size=3).map(
        lambda fields: ClickHouseType(
            name="Tuple", names=tuple(fields), parts=tuple(fields.values())
        )
    )


TREES = st.recursive(
    leaves(),
    lambda inner: st.one_of(
        st.builds(lambda part: ClickHouseType(name="Array", parts=(part,)), inner),
        st.builds(lambda *parts: ClickHouseType(name="Map", parts=parts), inner, inner),
        tuples(inner),
    ),
    max_leaves=6,
)


@given(TREES)
def test_a_type_is_read_as_it_is_written(type_):
    assert parse_type(str(type_)) == type_
    assert pickle.loads(pickle.dumps(type_)) == type_


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Decimal32(2)", "Decimal(9, 2)"),
        ("Decimal256( 5 )", "Decimal(76,5)"),
        ("Decimal(5)", "Decimal(5, 0)"),
        ("DateTime64", "DateTime64(3)"),
        ("Enum('b' = 2, 'a')", "Enum8('b'=2,'a'=3)"),
        ("Enum('a' = 1000)", "Enum16('a' = 1000)"),
        ("Enum8('it\\'s' = 1)", "Enum8('it''s' = 1)"),
        ("Tuple(`a b` Int8)", 'Tuple("a b" Int8)'),
        ("Tuple(a Int8)", "Tuple(`a` Int8)"),
        ("Variant(String, Int64)", "Variant(Int64, String)"),
        ("Nested(a Int8)", "Nested(`a` Int8)"),
    ],
)
def test_two_texts_of_one_type_are_the_same(one, other):
    assert parse_type(one) == parse_type(other)
    assert is_same_type(one, other)
    assert not is_same_type(one, "Int8")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", ["name", "end"]),
        ("Array(Int8", ["','", "')'", "end"]),
        ("Array(Int8))", ["end", "')'"]),
        ("Int8 x", ["end", "'x'"]),
        ("Array(Int8,,)", ["name", "','"]),
        ("Enum8()", ["Enum"]),
        ("Enum8('a', 'a')", ["Enum", "unique"]),
        ("Enum8('a' = 'b')", ["number", "\"'b'\""]),
        ("Tuple(a Int8, Int8)", ["Tuple"]),
        ("Int8; DROP TABLE x", ["mark", "';'"]),
        ("JSON(a UInt8)", ["'='", "'UInt8'"]),
    ],
)
def test_the_wrong_part_of_a_type_is_named(text, values):
    with raises_naming(TypeTextError, *values):
        parse_type(text)


@pytest.mark.parametrize(
    ("nullable", "source", "declared", "stored"),
    [
        (True, LONG, "UInt8", "Nullable(UInt8)"),
        (True, LONG, "Nullable(UInt8)", "Nullable(UInt8)"),
        (True, STRING, "LowCardinality(String)", "LowCardinality(Nullable(String))"),
        (True, LONG, "Dynamic", "Dynamic"),
        (True, LONG, "Variant(String, Int64)", "Variant(Int64, String)"),
        (True, STRING, "JSON", "Nullable(JSON)"),
        (True, Array(element=LONG), "Array(UInt8)", "Array(Nullable(UInt8))"),
        (True, Array(element=LONG, nullable=False), "Array(UInt8)", "Array(UInt8)"),
        (True, Map(key=STRING, value=LONG), "Map(UUID, Int8)", "Map(UUID, Nullable(Int8))"),
        (True, POINT, "Point", "Point"),
        (True, Array(element=POINT), "Ring", "Ring"),
        (True, POINT, "Tuple(Float32, BFloat16)", "Tuple(Nullable(Float32), Nullable(BFloat16))"),
        (
            *(True, Array(element=POINT)),
            "Nested(x Float32, y Float64)",
            "Nested(`x` Nullable(Float32), `y` Nullable(Float64))",
        ),
        (False, LONG, "UInt8", "UInt8"),
        (False, STRING, *["LowCardinality(Nullable(String))"] * 2),
    ],
)
def test_nullable_is_added_only_where_the_source_has_nulls(nullable, source, declared, stored):
    assert str(resolve_stored_type(source, declared, nullable=nullable, column="c").type) == stored


@pytest.mark.parametrize(
    ("source", "declared", "values"),
    [
        (LONG, "UUID", ["hold"]),
        (LONG, "Array(Int64)", ["hold"]),
        (STRING, "UInt8", ["hold"]),
        (STRING, "Strin", ["hold"]),
        (STRING, "FixedString", [1, "numeric"]),
        (STRING, "JSON(SKIP a)", ["'='", "'a'"]),
        (STRING, "JSON(x=1)", ["max_dynamic_paths"]),
        (Array(element=STRING), "Array(JSON)", ["within"]),
        (DOUBLE, "LowCardinality(Float64)", ["LowCardinality does", "Float64"]),
        (LONG, "Variant(UInt64, String)", ["Int64", "members"]),
        (NTZ, "DateTime64(6, 'Asia/Tokyo')", ["zone", "'UTC'"]),
        (NTZ, "DateTime", ["zone", "'UTC'"]),
        (Array(element=LONG), "Map(Int64, Int64)", ["parts"]),
        (Array(element=LONG), "Ring", ["Point", "hold"]),
        (POINT, "Tuple(Float64)", ["parts"]),
        (POINT, "Map(Float64, Float64)", ["parts"]),
        (POINT, "Tuple(y Float64, x Float64)", ["x, y"]),
        (Struct((DeltaField(name="x", type=STRING),)), "Tuple(UInt8)", ["UInt8", "hold"]),
        (STRING, "Enum8(", ["end"]),
    ],
)
def test_a_type_that_does_not_fit_is_refused_with_those_that_do(source, declared, values):
    with raises_naming(SchemaError, "'state'", source, repr(declared), *values) as caught:
        resolve_stored_type(source, declared, nullable=True, column="state")
    assert str(caught.value).count(f"{source} ") == 2, "the remedy names its types"


def test_a_column_that_no_type_can_keep_is_to_be_left_out():
    with raises_naming(SchemaError, "'state'", "interval day", "'Int64'", "exclude=[...]"):
        resolve_stored_type(Primitive("interval day"), "Int64", nullable=True, column="state")


def shape(index, *fields, **changes):
    named = [DeltaField(name="id", type=LONG), DeltaField(name="t", type=STRING), *fields]
    source = SourceTable("shop.notes", **{"key": "id", "tenant": "t", **changes})
    return IndexShape(source=source, index=index, fields=named)


@pytest.mark.parametrize(
    ("column", "declared", "values"),
    [
        ("id", "Dynamic", ["'Dynamic'", "key"]),
        ("id", "Nullable(Int64)", ["'Nullable(Int64)'", "key"]),
        ("t", "LowCardinality(Nullable(String))", ["'LowCardinality(Nullable(String))'", "key"]),
        ("t", "FixedString(3)", ["tenant", "'shop.notes'", "'FixedString(3)'"]),
        ("other", "UInt8", ["shop.notes.mirror", "id, t"]),
    ],
)
def test_a_type_for_a_key_a_tenant_or_an_unknown_column_is_refused(column, declared, values):
    with raises_naming(SchemaError, f"'{column}'", *values):
        shape(Mirror(types={column: declared})).render_create_statements()


def test_a_number_for_a_tenant_that_is_a_date_is_refused():
    day = DeltaField(name="d", type=Primitive("date"))
    table = shape(Mirror(types={"d": "Int32"}), day, tenant="d")
    with raises_naming(SchemaError, "'d'", "'Int32'", "date", "String"):
        table.render_create_statements()


def test_a_vector_keeps_floats():
    floats = DeltaField(name="v", type=Array(element=FLOAT))
    index = Vector("v", dimension=2, types={"v": "Array(BFloat16)"})
    assert shape(index, floats).get_column_types()["v"] == "Array(BFloat16)"
    with raises_naming(SchemaError, "'v'", "'Array(String)'", "Array(T)"):
        shape(Vector("v", dimension=2, types={"v": "Array(String)"}), floats).get_column_types()


@pytest.mark.parametrize("types", [["a"], {"a": 1}, "a"])
def test_types_are_texts_by_column(types):
    with raises_naming(ConfigError, f"types={types!r}"):
        Mirror(types=types)


def test_a_job_s_options_have_types():
    source = SourceTable("shop.notes", key="id", indexes=[Mirror(types={"id": "UInt8"})])
    info = ConsumerInfo(type="mirror", db="shop", table="notes", job="mirror")
    assert resolve_index(source, info).types == {"id": "UInt8"}
    options = {"types": {"id": "UInt16"}}
    info = ConsumerInfo(type="mirror", db="shop", table="notes", job="m", options=options)
    stored = ConsumerInfo.from_json(info.to_json())
    assert resolve_index(source, stored).types == {"id": "UInt16"}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("Int32", "Int64", True),
        ("Int64", "Int32", False),
        ("UInt8", "Int16", True),
        ("Int8", "UInt16", False),
        ("UInt64", "Int64", False),
        ("UInt64", "UInt256", True),
        ("Float32", "Float64", True),
        ("BFloat16", "Float64", True),
        ("Float64", "Float32", False),
        ("Int8", "Nullable(Int8)", True),
        ("Nullable(Int8)", "Int8", False),
        ("Nullable(Int8)", "Nullable(Int16)", True),
        ("LowCardinality(Nullable(String))", "Nullable(String)", True),
        ("LowCardinality(Nullable(String))", "String", False),
        ("Decimal(9, 2)", "Decimal(20, 2)", True),
        ("Decimal(5, 2)", "Decimal(20, 4)", True),
        ("Decimal(9, 2)", "Decimal(10, 3)", True),
        ("Decimal(9, 2)", "Decimal(9, 3)", False),
        ("Decimal(9, 2)", "Decimal(20, 1)", False),
        ("Int32", "Decimal(10, 0)", True),
        ("Int32", "Decimal(10, 1)", False),
        ("Int64", "Decimal(20, 0)", True),
        ("Int64", "Decimal(18, 0)", False),
        ("UInt64", "Decimal(19, 0)", False),
        ("Int8", "Decimal(12, 2)", True),
        ("Int32", "Float64", True),
        ("Int64", "Float64", False),
        ("Int16", "Float32", False),
        ("Date32", "DateTime64(6, 'UTC')", True),
        ("Date32", "DateTime64(9, 'UTC')", False),
        ("Date32", "DateTime64(6)", False),
        ("Array(Nullable(Int32))", "Array(Nullable(Int64))", True),
        ("Array(Nullable(Int32))", "Array(Int64)", False),
        ("Map(Int32, Nullable(Int8))", "Map(Int64, Nullable(Float64))", True),
        ("Map(String, Int64)", "Map(String, Int32)", False),
        ("Tuple(a Int32, b Tuple(c Date32))", "Tuple(a Int64, b Tuple(c Date32))", True),
        ("Tuple(a Int32)", "Tuple(a Int32, b Nullable(String))", True),
        ("Array(Tuple(a Int32))", "Array(Tuple(b Nullable(String), a Int32))", True),
        ("Tuple(a Int32)", "Tuple(a Int32, b Array(String))", True),
        ("Tuple(a Int32)", "Tuple(a Int32, b Int32)", False),
        ("Tuple(a Int32, b Int32)", "Tuple(a Int32)", False),
        ("Tuple(a Int32)", "Tuple(b Int32)", False),
        ("Tuple(Int32)", "Tuple(Int64)", False),
        ("Enum8('a' = 1)", "Enum8('a' = 1, 'b' = 2)", True),
        ("Enum8('a' = 1)", "Enum16('a' = 1, 'b' = 2000)", True),
        ("Enum16('a' = 1)", "Enum8('a' = 1)", False),
        ("Enum8('a' = 1)", "Enum8('a' = 2)", False),
        ("Date", "Date32", True),
        ("Date32", "Date", False),
        ("String", "UUID", False),
        ("FixedString(2)", "String", False),
        ("AggregateFunction(sum, (Int8))", "Int8", False),
    ],
)
def test_a_column_may_become_a_wider_type(old, new, expected):
    assert can_widen(old, new) is expected


@pytest.mark.parametrize(
    ("old", "new", "merged"),
    [
        ("Tuple(a Int32)", "Tuple(b Int32)", "Tuple(b Nullable(Int32), a Nullable(Int32))"),
        ("Tuple(b Nullable(Int32), a Nullable(Int32))", "Tuple(b Int32)", None),
        ("Tuple(a Int8, b Int8)", "Tuple(b Int8, a Int8)", "Tuple(b Int8, a Int8)"),
        (
            "Array(Map(String, Tuple(a Array(Int8))))",
            "Array(Map(String, Tuple(b Array(Int8))))",
            "Array(Map(String, Tuple(b Array(Int8), a Array(Int8))))",
        ),
        (
            "Tuple(a Tuple(b LowCardinality(String)))",
            "Tuple(a Tuple(c Tuple(d Int8)))",
            "Tuple(a Tuple(c Tuple(d Int8), b LowCardinality(Nullable(String))))",
        ),
    ],
)
def test_a_structure_keeps_the_fields_that_the_source_renamed_or_dropped(old, new, merged):
    result = keep_old_fields(old, new)
    assert is_same_type(result, merged or old)
    assert can_widen(old, result)
    assert is_same_type(keep_old_fields(result, new), result)
    # A run that still reads the version before finds the fields that it needs.
    earlier = keep_old_fields(result, old)
    assert parse_type(earlier).fields.keys() == parse_type(result).fields.keys()
    assert can_widen(result, earlier)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Tuple(a Int32)", "Tuple(a String)"),
        ("Tuple(a Int32, b String)", "Tuple(a String, b Int32)"),
        ("Map(Tuple(a Int32), Int8)", "Map(Tuple(b Int32), Int8)"),
        ("Tuple(a Tuple(b Int8))", "Tuple(a Array(Tuple(b Int8)))"),
    ],
)
def test_a_field_of_another_type_and_keys_of_other_fields_cannot_be_merged(old, new):
    assert not can_widen(old, keep_old_fields(old, new))


@pytest.mark.parametrize("new", ["Int64", "Tuple(Int32)", "Array(Int8)", "Map(Int8, Int8)"])
def test_a_type_without_fields_replaces_the_old_one(new):
    assert keep_old_fields("Tuple(a Int32)", new) == new
    assert keep_old_fields(None, new) == new


def test_the_page_has_the_code_s_table_of_types():
    assert f"\n\n{render_type_table()}\n" in PAGE.read_text()


def test_every_cell_is_tested_on_the_engine():
    tested = set()
    for case in CASES:
        stored = resolve_stored_type(case.source, case.asked, nullable=True, column="c").type.bare
        tested.add((get_family(case.source), stored.name))
    pairs = {
        (family, name) for family, cells in CELLS.items() for cell in cells for name in cell.names
    }
    # Both names of an integer's sign and width reach the same code.
    assert {name for _, name in pairs - tested if "Int" not in name} == set()
    names = {name for _, name in tested}
    assert names >= {*DYNAMIC_TYPES, *GEO, "Nested", "Tuple", "Map", "Array"}
    assert names >= {name for family, name in pairs if family == "integer"}


def test_the_page_has_the_domain_of_every_tested_type():
    for case in CASES:
        stored = resolve_stored_type(case.source, case.asked, nullable=True, column="c").type.bare
        cell = find_cell(case.source, stored)
        assert cell is None or cell.domain in render_type_table()
    assert get_family(Decimal(3, 1)) == "decimal"
    assert get_family(Primitive("interval day")) is None
    assert get_family(VARIANT) == "variant"
