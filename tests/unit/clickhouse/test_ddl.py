"""The DDL of every index kind, as text."""

import pytest

from iscp_dagster import FullText, Mirror, SourceTable, Vector
from iscp_dagster.clickhouse.connect.barrier import Barrier
from iscp_dagster.clickhouse.connect.quoting import quote_identifier, quote_string
from iscp_dagster.clickhouse.tables.ddl import VIRTUAL_COLUMNS, IndexShape
from iscp_dagster.clickhouse.types.default_types import to_clickhouse_type
from iscp_dagster.model.declared.schema import Array, Decimal, DeltaField, Map, Primitive, Struct
from iscp_dagster.model.errors import SchemaError
from runtime_support.growth import SLACK, time_growth
from support.errors import raises_naming
from support.paths import GOLDEN

TABLE = GOLDEN / "ddl.txt"
FIELDS = (
    DeltaField(name="tenant", type=Primitive("string")),
    DeltaField(name="k`ey", type=Primitive("long")),
    DeltaField(name="body", type=Primitive("string"), comment="the reader's text"),
    DeltaField(name="embedding", type=Array(element=Primitive("float"))),
)
INDEXES = (
    Mirror(),
    FullText("body", tokenizer="ngrams(3)"),
    Vector("embedding", dimension=3, metric="l2", quantization="f32"),
)


def shape(index, fields=FIELDS, **changes):
    source = SourceTable("shop.notes", **{"key": "k`ey", "tenant": "tenant", **changes})
    return IndexShape(source=source, index=index, fields=fields)


def test_ddl_is_as_the_golden_file_says():
    shapes = [*map(shape, INDEXES), shape(Mirror(name="all"), tenant=None)]
    statements = []
    for table in shapes:
        statements += table.render_create_statements(Barrier(epoch=7, floor=7))
        statements += [table.render_staging_table("r1"), *table.render_view_statements()]
    assert ";\n".join(statements) + ";\n" == TABLE.read_text()


def test_many_columns_take_no_longer_each():
    def describe(columns):
        wide = [DeltaField(name=f"c{n}", type=Primitive("long")) for n in range(columns)]
        table = shape(Mirror(), (*FIELDS, *wide))
        types = [table.get_column_types()[field.name] for field in wide]
        return [*table.render_create_statements(), *types]

    assert time_growth(describe, 200, 1_600) < 8 * SLACK


@pytest.mark.parametrize("name", ["_version", "_timestamp", "_deleted", *VIRTUAL_COLUMNS])
def test_a_column_named_like_a_system_column_is_refused(name):
    with raises_naming(SchemaError, "'shop.notes'", f"'{name}'"):
        shape(Mirror(), (*FIELDS, DeltaField(name=name, type=Primitive("long"))))


@pytest.mark.parametrize(
    ("type_", "nullable", "expected"),
    [
        (Primitive("byte"), True, "Nullable(Int8)"),
        (Primitive("timestamp"), False, "DateTime64(6, 'UTC')"),
        (Decimal(38, 9), True, "Nullable(Decimal(38, 9))"),
        (Array(element=Primitive("string")), True, "Array(Nullable(String))"),
        (Array(element=Primitive("string"), nullable=False), True, "Array(String)"),
        (
            Map(key=Primitive("string"), value=Primitive("double")),
            True,
            "Map(String, Nullable(Float64))",
        ),
        (
            Struct((DeltaField(name="a b", type=Primitive("date")),)),
            True,
            "Tuple(`a b` Nullable(Date32))",
        ),
    ],
)
def test_every_type_has_one_that_holds_its_values(type_, nullable, expected):
    assert to_clickhouse_type(type_, nullable=nullable, column="c") == expected


TEXT = Primitive("string")


@pytest.mark.parametrize(
    ("whole", "part"),
    [
        (Struct((DeltaField(name="x", type=TEXT),)), "s.x"),
        (Array(element=Struct((DeltaField(name="x", type=TEXT),))), "s.x"),
        (Map(key=TEXT, value=TEXT), "s.keys"),
        (Map(key=TEXT, value=Struct((DeltaField(name="x", type=TEXT),))), "s.values.x"),
    ],
    ids=str,
)
def test_a_column_named_like_a_part_of_another_is_refused(whole, part):
    own, beside = DeltaField(name="s", type=whole), DeltaField(name=part, type=TEXT)
    with raises_naming(SchemaError, "'s'", f"'{part}'", "'shop.notes'"):
        shape(Mirror(), (*FIELDS, own, beside)).render_create_statements()
    unlike = DeltaField(name=f"{part}.null", type=TEXT)
    assert shape(Mirror(), (*FIELDS, own, unlike)).render_create_statements()


def test_a_field_named_like_the_nulls_of_a_struct_is_refused():
    struct = Struct((DeltaField(name="null", type=TEXT),))
    for whole in (struct, Array(element=struct)):
        with raises_naming(SchemaError, "'s'", "'shop.notes'", "'null'"):
            shape(Mirror(), (*FIELDS, DeltaField(name="s", type=whole))).render_create_statements()


def test_an_unsupported_type_is_named_with_its_column():
    field = DeltaField(name="at", type=Array(element=Primitive("interval day")))
    with raises_naming(SchemaError, "'at[]'", "interval day"):
        shape(Mirror(), (*FIELDS, field)).render_create_statements()


def test_a_vector_that_is_no_array_of_floats_is_refused():
    with raises_naming(SchemaError, "shop.notes.body", "string"):
        shape(Vector("body", dimension=3)).render_create_statements()


def test_the_nearest_view_has_a_distance_of_its_own_beside_a_column_of_that_name():
    own = DeltaField(name="distance", type=Primitive("double"))
    (nearest, distances, _) = shape(INDEXES[2], (*FIELDS, own)).render_view_statements()
    selects = shape(INDEXES[2]).render_view_selects(["distance"])
    assert [text.count("AS `_distance` FROM") for text in selects.values()] == [1, 1, 0]
    assert "`distance`, L2Distance(" in nearest
    assert "AS `_distance` FROM" in nearest
    assert "ORDER BY `_distance`, `k\\`ey` LIMIT" in nearest
    assert "AS `_distance` FROM" in distances


def test_names_and_texts_are_quoted():
    assert quote_identifier("a`b", "c\\d") == "`a\\`b`.`c\\\\d`"
    assert quote_string("it's\n") == "'it\\'s\\n'"
