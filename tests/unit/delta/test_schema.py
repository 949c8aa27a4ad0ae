"""The schema of the log as values, and which changes of it readers see."""

import json
from dataclasses import replace

import pytest

from iscp_dagster.delta.checks import check_columns
from iscp_dagster.delta.log.columns import get_visible_columns
from iscp_dagster.model.declared.schema import (
    Array,
    Decimal,
    DeltaField,
    Map,
    Primitive,
    Struct,
    parse_schema,
    to_schema_json,
)
from iscp_dagster.model.errors import KeyColumnError, SchemaError
from support.errors import raises_naming

LONG, TEXT = Primitive("long"), Primitive("string")


def make_node(name, type_, *, nullable=True, **metadata):
    return {"name": name, "type": type_, "nullable": nullable, "metadata": metadata}


def schema(*fields):
    return json.dumps({"type": "struct", "fields": list(fields)})


@pytest.mark.parametrize(
    ("declared", "padded"),
    [
        ("char(5)", True),
        ("varchar(5)", False),
        ("struct<a:varchar(2),b:char(5)>", True),
        ("array<varchar(5)>", False),
        (None, False),
    ],
)
def test_spark_pads_columns_of_the_type_char(declared, padded):
    metadata = {"__CHAR_VARCHAR_TYPE_STRING": declared} if declared else {}
    (field,) = parse_schema(schema(make_node("c", "string", **metadata)))
    assert field.padded is padded


@pytest.mark.parametrize(
    ("node", "type_", "text"),
    [
        ("string", Primitive("string"), "string"),
        ("timestamp_ntz", Primitive("timestamp_ntz"), "timestamp_ntz"),
        ("decimal(10,2)", Decimal(10, 2), "decimal(10,2)"),
        (
            {"type": "array", "elementType": "long", "containsNull": False},
            Array(element=LONG, nullable=False),
            "array<long>",
        ),
        (
            {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True},
            Map(key=Primitive("string"), value=LONG),
            "map<string,long>",
        ),
        (
            {"type": "struct", "fields": [make_node("a b", "long", nullable=False)]},
            Struct((DeltaField(name="a b", type=LONG, nullable=False, physical="a b"),)),
            "struct<a b:long>",
        ),
    ],
)
def test_types_are_read_and_written(node, type_, text):
    written = schema(make_node("c", node))
    (column,) = parse_schema(written)
    assert column.type == type_
    assert str(column.type) == text
    assert to_schema_json([column]) == json.loads(written)


def test_a_column_has_its_metadata():
    metadata = {"comment": "the price", "delta.columnMapping.physicalName": "col-1"}
    node = make_node("c", "long", nullable=False, **metadata)
    assert parse_schema(schema(node)) == (
        DeltaField(name="c", type=LONG, nullable=False, comment="the price", physical="col-1"),
    )


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "JSONDecodeError"),
        ("{}", "KeyError"),
        ('"long"', "long"),
        ('{"type":"struct","fields":[{}]}', "KeyError"),
    ],
)
def test_what_is_no_schema_is_refused(text, cause):
    with raises_naming(SchemaError, "schemaString", cause):
        parse_schema(text)


@pytest.mark.parametrize("nested", [False, True])
def test_a_nul_in_a_name_that_the_log_has_is_refused(nested):
    odd = DeltaField(name="a\0b", type=Primitive("string"), physical="a\0b")
    field = DeltaField(name="s", type=Struct((odd,)), physical="s") if nested else odd
    with raises_naming(SchemaError, "NUL", repr(field.name), "lake/t"):
        check_columns("lake/t", [field], keys=[], columns=[])
    mapped = DeltaField(name="a\0b", type=Primitive("string"), physical="col-1")
    check_columns("lake/t", [mapped], keys=[], columns=["a\0b"])


@pytest.mark.parametrize(
    "type_",
    [
        Struct((DeltaField(name="a", type=LONG),)),
        Array(element=LONG, nullable=True),
        Map(key=LONG, value=LONG, nullable=True),
        Primitive("variant"),
    ],
    ids=str,
)
def test_a_key_of_a_type_with_parts_is_refused(type_):
    field = DeltaField(name="k", type=type_, nullable=False)
    with raises_naming(KeyColumnError, "'k'", "lake/t", type_):
        check_columns("lake/t", [field], keys=["k"])
    check_columns("lake/t", [field], keys=[])


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
