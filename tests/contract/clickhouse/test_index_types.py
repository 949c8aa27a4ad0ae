"""Every cell of docs/types.md on the real engine: kept to the last bit, or refused by name."""

import itertools
import json
import struct
from decimal import Decimal as Exact
from math import isnan

import pyarrow as pa
import pytest
from hypothesis import Phase, event, given, settings
from hypothesis import strategies as st

from iscp_dagster import Mirror, SourceTable
from iscp_dagster.clickhouse.tables.ddl import IndexShape
from iscp_dagster.clickhouse.tables.index_store import IndexStore
from iscp_dagster.clickhouse.types.texts import (
    format_ipv6,
    is_canonical_ipv6,
    is_lossless_json,
    normalize_json,
    normalize_json_columns,
)
from iscp_dagster.clickhouse.types.wire import decode_rows, render_select_item, respell_column
from iscp_dagster.clickhouse.write.inserts import INSERT_SETTINGS
from iscp_dagster.delta.arrow import to_arrow_type
from iscp_dagster.model.declared.schema import Array, Decimal, DeltaField, Map, Primitive, Struct
from iscp_dagster.model.errors import FeedGoneError, SchemaError
from iscp_dagster.sync.executors.writer import TaskWriter
from support.errors import assert_names, raises_naming
from support.lake import row_writer
from support.lake.row_writer import (
    add_system_columns,
    build_store,
    check_staged,
    count,
    count_stored,
    make_fields,
    make_source,
    put_in_place,
    query,
)
from support.lake.type_cells import (
    BINARY,
    CASES,
    DATE,
    DOUBLE,
    LONG,
    POINT,
    STAMP,
    STRING,
    UUID,
    at,
    day,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def endpoint(endpoint):
    endpoint.get_client().command("CREATE DATABASE IF NOT EXISTS types")
    return endpoint


def find_arrow_type(type_):
    """Return the Arrow type in which Spark passes a column of this type."""
    if isinstance(type_, Struct):
        return pa.struct([(f.name, find_arrow_type(f.type)) for f in type_.fields])
    if isinstance(type_, Map):
        return pa.map_(find_arrow_type(type_.key), find_arrow_type(type_.value))
    if isinstance(type_, Array):
        return pa.list_(find_arrow_type(type_.element))
    return pa.string() if str(type_) == "variant" else to_arrow_type(type_)


def make_array(values, type_):
    """Make an Arrow array; texts may be given as bytes, even if they are not UTF-8."""
    if find_arrow_type(type_) == pa.string():
        encoded = [v.encode("utf-8") if isinstance(v, str) else v for v in values]
        return pa.array(encoded, pa.binary()).view(pa.string())
    return pa.array(values, find_arrow_type(type_))


def make_store(endpoint, columns, *, tenant=None, key="id", nulls="empty", nullable=True):
    """Make a mirror of these columns: Delta type and ClickHouse type (None: the default)."""
    fields = [
        DeltaField(name=name, type=kind, nullable=nullable or name == key)
        for name, (kind, _) in columns.items()
    ]
    source = make_source("types", key=key, tenant=tenant)
    types = {name: kept for name, (_, kept) in columns.items() if kept}
    return build_store(endpoint, source, Mirror(types=types, nulls=nulls), fields)


def make_store_of_cases(endpoint, cases, nulls="empty"):
    """Make a mirror with a column for each case."""
    columns = {f"c{n}": (case.source, case.asked) for n, case in enumerate(cases)}
    return make_store(endpoint, {"id": (LONG, None), **columns}, nulls=nulls)


def make_rows(cases, values):
    """Return rows of the columns in `values`, with shorter columns repeated."""
    number = max(map(len, values))
    table = pa.table({"id": pa.array(range(number), pa.int64())})
    for n, (case, column) in enumerate(zip(cases, values, strict=True)):
        filled = list(itertools.islice(itertools.cycle(column), number))
        table = table.append_column(f"c{n}", make_array(filled, case.source))
    return table


def write(store, table, *, deleted=False, staged=False, since=0):
    """Write as a Spark task does: changes after version `since`, or a snapshot."""
    table = add_system_columns(table, version=since + 1, deleted=deleted)
    return row_writer.write(
        store, table, staged=staged, since=since, upto=since + 1, rows_per_chunk=100_000
    )


def read_view(store, schema):
    """Return the view's rows in the source's types."""
    shape = store.shape
    columns = ", ".join(render_select_item(name, each) for name, each in shape.stored_types.items())
    sql = f"SELECT {columns} FROM {shape.qualify_name(shape.view)} ORDER BY id"
    settings = {"output_format_arrow_string_as_string": 0}
    return decode_rows(store.endpoint.get_client().query_arrow(sql, settings=settings), schema)


def list_exact_values(column):
    """Return values that compare with the sign of zero, and with all NaN equal."""
    return [
        _as_exact(each.cast(pa.binary()).as_py() if pa.types.is_string(each.type) else each.as_py())
        for each in column
    ]


def _as_exact(value):
    if isinstance(value, float):
        return "nan" if isnan(value) else struct.pack(">d", value)
    if isinstance(value, dict):
        return {name: _as_exact(each) for name, each in value.items()}
    return list(map(_as_exact, value)) if isinstance(value, list | tuple) else value


GROUPS = {
    str(key): list(group)
    for key, group in itertools.groupby(
        sorted((c for c in CASES if "JSON" not in (c.asked or "")), key=lambda c: str(c.source)),
        key=lambda c: c.source,
    )
}


@pytest.mark.parametrize("source", GROUPS)
def test_what_a_type_holds_comes_back_to_the_last_bit(endpoint, source):
    cases = GROUPS[source]
    store = make_store_of_cases(endpoint, cases)
    store.ensure()
    table = make_rows(cases, [case.held for case in cases])
    (receipt,) = write(store, table)
    assert receipt.code == 0, receipt.message
    stored = read_view(store, table.schema)
    for n, case in enumerate(cases):
        wanted = respell_column(table[f"c{n}"], store.shape.stored_types[f"c{n}"])
        assert list_exact_values(stored[f"c{n}"]) == list_exact_values(wanted), case.name


@pytest.mark.parametrize("source", {str(c.source): 0 for c in CASES})
def test_what_a_type_does_not_hold_is_named_and_nothing_is_written(endpoint, source):
    cases = [case for case in CASES if str(case.source) == source]
    store = make_store_of_cases(endpoint, cases, nulls="refuse")
    scan = row_writer.make_scan(store)
    writer = TaskWriter(scans=[scan], keys=scan.consumer.target.keys, sleep=lambda _: None)
    for n, case in enumerate(cases):
        for wrong in case.refused:
            values = [list(each.held[:1]) * 8 for each in cases]
            values[n][5] = wrong
            (receipt,) = writer(0, add_system_columns(make_rows(cases, values)).to_batches())
            assert receipt.code == SchemaError.code, (case.name, wrong)
            assert_names(receipt.message, f"'c{n}'", "{'id': 5}")
    assert count_stored(store) == 0


def test_json_comes_back_as_the_same_value(endpoint):
    cases = [case for case in CASES if "JSON" in (case.asked or "")]
    store = make_store_of_cases(endpoint, cases)
    table = make_rows(cases, [case.held for case in cases])
    (receipt,) = write(store, table)
    assert receipt.code == 0, receipt.message
    names = [f"c{n}" for n, _ in enumerate(cases)]
    stored, sent = (
        normalize_json_columns(each, names).select(names).to_pydict()
        for each in (read_view(store, table.schema), table)
    )
    assert stored == sent
    other = table.set_column(1, "c0", pa.array(['{"z":1}'] * table.num_rows))
    assert normalize_json_columns(other, names) != normalize_json_columns(table, names)


UNSHRUNK = (Phase.explicit, Phase.generate)
TIMES = st.from_regex(r"[12][09][0-9]{2}[-/:. ]?[0-3]?[0-9][-/.:]?[0-3][0-9]([T ][0-9:.]{0,12})?Z?")
MEMBERS = st.one_of(
    *(st.none(), st.booleans(), st.integers(-(2**65), 2**65), st.floats()),
    *(st.text(), TIMES, st.dates().map(str)),
)
VALUES = st.recursive(
    MEMBERS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.text(max_size=3), VALUES, max_size=3), min_size=20))
@settings(max_examples=10, phases=UNSHRUNK, derandomize=True)
def test_whatever_json_the_type_holds_comes_back_as_the_same_value(endpoint, values):
    texts = [text for text in map(json.dumps, values) if is_lossless_json(text)]
    column = pa.table({"c": pa.array(texts, pa.string())})
    client, table = endpoint.get_client(), "types.json"
    client.command(
        f"CREATE OR REPLACE TABLE {table} (n UInt64, c JSON) ENGINE = MergeTree ORDER BY n"
    )
    client.insert_arrow(
        table, column.append_column("n", pa.array(range(len(texts)))), settings=INSERT_SETTINGS
    )
    stored = client.query(f"SELECT toString(c) FROM {table} ORDER BY n").result_rows
    event(f"{len(texts)} fit")
    assert [normalize_json(text) for (text,) in stored] == [normalize_json(text) for text in texts]


@pytest.mark.parametrize("other", ['[{"b": 1}]', "[{}]", "[[1]]", "[[{}]]"])
@pytest.mark.parametrize("nulls", ["[null]", "[null, null]", "[[null]]", "[[], [null]]"])
def test_an_array_of_nulls_would_take_the_type_of_another_rows(nulls, other):
    texts = [f'{{"a": {each}}}' for each in (other, nulls)]
    assert [is_lossless_json(text) for text in texts] == [True, False]


@pytest.mark.parametrize(
    "text", ["[9007199254740993, 1]", "[9007199254740993, null]", "[[18446744073709551615]]"]
)
def test_whole_numbers_in_an_array_would_be_rounded_as_another_rows_doubles(endpoint, text):
    client, table = endpoint.get_client(), "types.rounded"
    client.command(f"CREATE OR REPLACE TABLE {table} (n UInt8, c JSON) ENGINE = Memory")
    doubles = "[[1.5]]" if text.startswith("[[") else "[1.5, 2]"
    rows = [f'{{"a": {each}}}' for each in (doubles, text)]
    column = pa.table({"n": pa.array([0, 1], pa.uint8()), "c": pa.array(rows, pa.string())})
    client.insert_arrow(table, column, settings=INSERT_SETTINGS)
    ((stored,),) = client.query(f"SELECT toString(c) FROM {table} WHERE n = 1").result_rows
    assert normalize_json(stored) != normalize_json(rows[1]), "ClickHouse holds it by now"
    assert [is_lossless_json(row) for row in rows] == [True, False]
    assert is_lossless_json('{"a": 9007199254740993}')


@given(st.lists(st.one_of(st.integers(0, 2**128 - 1), st.integers(0, 2**49)), min_size=20))
@settings(max_examples=5, phases=UNSHRUNK)
def test_an_address_is_in_its_shortest_form_when_clickhouse_writes_it_so(endpoint, numbers):
    sparse = [number & (0xFFFF << 16 * (number % 8)) for number in numbers]
    packed = [number.to_bytes(16, "big") for number in [*numbers, *sparse]]
    sql = "SELECT arrayMap(x -> IPv6NumToString(toFixedString(unhex(x), 16)), {n:Array(String)})"
    answer = endpoint.get_client().query(sql, parameters={"n": [each.hex() for each in packed]})
    ((texts,),) = answer.result_rows
    assert list(texts) == list(map(format_ipv6, packed))
    assert all(map(is_canonical_ipv6, texts))


KEYS = [
    (STRING, "UUID", UUID, "x"),
    (STRING, "LowCardinality(String)", "it's", None),
    (STRING, "FixedString(3)", "abc", "abcd"),
    (STRING, "IPv4", "1.2.3.4", "x"),
    (STRING, "IPv6", "::1", "x"),
    (STRING, "Enum8('it\\'s' = 1, ',)(' = 2)", "it's", "x"),
    (LONG, "UInt8", 255, 256),
    (LONG, "Decimal(40, 2)", 5, None),
    (DATE, "Date", day(2020), day(9999)),
    (STAMP, "DateTime('Asia/Tokyo')", at(2020, 1, 1), at(9999, 1, 1)),
    (STAMP, "DateTime64(3, 'UTC')", at(2020, 1, 1), at(9999, 1, 1)),
    (STAMP, "Int64", at(9999, 1, 1), None),
    *((BINARY, None, b"\xff\x00", None), (DOUBLE, None, 0.5, None)),
    *((DATE, None, day(2024), None), (STAMP, None, at(2023, 11, 14), None)),
    *((Decimal(20, 3), None, Exact("-1.25"), None), (Primitive("integer"), None, -3, None)),
]
KEY = "a key"


@pytest.mark.parametrize(
    ("kind", "kept", "value", "strange"), KEYS, ids=[kept or str(kind) for kind, kept, *_ in KEYS]
)
def test_a_key_is_looked_up_and_deleted_as_it_is_kept(endpoint, kind, kept, value, strange):
    store = make_store(endpoint, {KEY: (kind, kept)}, key=KEY)
    row = pa.table({KEY: make_array([value], kind)})
    assert write(store, row)[0].code == 0
    fresh = row.append_column("_fresh", pa.array([True]))
    with raises_naming(FeedGoneError, store.shape.source.name, repr(KEY)):
        write(store, fresh, since=1)
    if strange is not None:
        never = pa.table({KEY: make_array([strange], kind)})
        assert write(store, never.append_column("_fresh", pa.array([True])), since=1)[0].code
        before = count_stored(store)
        assert write(store, never, deleted=True, since=1)[0].code == 0
        assert count_stored(store) == before
    assert write(store, row, deleted=True, since=2)[0].deleted == 1
    assert count(store, "default") == 0


@pytest.mark.parametrize(
    ("kind", "kept", "value"),
    [
        (STRING, "LowCardinality(String)", "it's \\ `odd`"),
        (STRING, "UUID", UUID),
        (LONG, "UInt64", 7),
        (LONG, "LowCardinality(Int16)", -7),
    ],
)
def test_a_tenant_is_replaced_and_dropped_as_it_is_kept(endpoint, kind, kept, value):
    columns = {"t": (kind, kept), "k": (LONG, "Int64")}
    store = make_store(endpoint, columns, key="k", tenant="t")
    rows = pa.table({"t": make_array([value] * 2, kind), "k": pa.array([1, 2])})
    store.create_staging_table()
    (receipt,) = write(store, rows, staged=True)
    assert (receipt.code, receipt.tenant, receipt.inserted) == (0, str(value), 2), receipt.message
    check_staged(store, str(value), version=1, rows=2)
    put_in_place(store, str(value), rows=2, version=1)
    assert count(store, str(value)) == 2
    store.data.drop_tenants("t", [str(value)])
    assert count(store, str(value)) == 0


def test_a_tenants_uuid_is_in_lower_case(endpoint):
    columns = {"t": (STRING, "UUID"), "k": (LONG, "Int64")}
    store = make_store(endpoint, columns, key="k", tenant="t")
    rows = pa.table({"t": [UUID.upper()], "k": [1]})
    (receipt,) = write(store, rows)
    assert receipt.code == SchemaError.code
    assert_names(receipt.message, "'t'", UUID.upper())
    assert write(store, rows, deleted=True)[0].code == 0
    assert count_stored(store) == 0


@pytest.mark.parametrize("nullable", [True, False])
def test_a_deleted_row_is_deleted_whatever_its_last_values_were(endpoint, nullable):
    """A value that did not fit had stopped the index; its deletion lets the index go on."""
    values = [
        *((LONG, "UInt8", 1, 256), (STRING, "UUID", UUID, "x"), (STRING, "Enum8('a')", "a", "b")),
        *((STRING, "FixedString(2)", "ab", "x"), (Array(element=LONG), None, [1], None)),
        *((POINT, "Point", {"x": 0.0, "y": 0.0}, None), (STRING, "JSON", "{}", "[")),
        *((DATE, None, day(2020), day(9999)), (STRING, "IPv4", "1.2.3.4", "")),
        (STRING, "IPv6", "::", ""),
    ]
    columns = {f"c{n}": (kind, kept) for n, (kind, kept, *_) in enumerate(values)}
    store = make_store(endpoint, {"id": (LONG, None), **columns}, nullable=nullable)
    good, bad = (
        pa.table(
            {"id": [1, 2]}
            | {f"c{n}": make_array([each[at]] * 2, each[0]) for n, each in enumerate(values)}
        )
        for at in (2, 3)
    )
    assert write(store, good)[0].inserted == 2
    (receipt,) = write(store, bad.slice(1), deleted=True, since=1)
    assert (receipt.code, receipt.deleted) == (0, 1), receipt.message
    assert count(store, "default") == 1


def test_a_column_becomes_a_wider_type_and_no_other(endpoint):
    def store(**types):
        fields = make_fields(id=LONG, **{n: STRING if n == "e" else LONG for n in types})
        source = SourceTable("types.altered", key="id")
        shape = IndexShape(source=source, index=Mirror(types=types), fields=fields)
        return IndexStore(endpoint=endpoint, shape=shape)

    first = store(n="UInt8", e="Enum8('a' = 1)", d="Decimal32(0)")
    first.ensure()
    row = pa.table({"id": [1], "n": [255], "e": ["a"], "d": [5]})
    assert write(first, row)[0].code == 0
    first.ensure_views()
    first.ensure()
    wider = store(n="Int16", e="Enum8('b' = 2, 'a' = 1)", d="Decimal(76, 0)", new="UInt8")
    wider.ensure()
    row = row.append_column("new", pa.array([7])).set_column(1, "n", pa.array([-1]))
    assert write(wider, row.set_column(2, "e", pa.array(["b"])), since=1)[0].code == 0
    assert query(wider, "SELECT n, e, new FROM {view}") == [(-1, "b", 7)]
    with raises_naming(SchemaError, "'n'", "types.altered", "Nullable(UInt8)", "Nullable(Int16)"):
        store(n="UInt8").ensure()


def test_tenants_before_and_after_a_renamed_field_have_their_values_in_one_table(endpoint):
    def store(name):
        inner = Struct(fields=make_fields(**{name: LONG, "y": LONG}))
        nested = Map(key=STRING, value=Array(element=inner))
        fields = make_fields(id=LONG, tenant=STRING, s=inner, m=nested)
        source = SourceTable("types.renamed", key="id", tenant="tenant")
        shape = IndexShape(source=source, index=Mirror(), fields=fields)
        return IndexStore(endpoint=endpoint, shape=shape)

    def row(store, tenant, value):
        types = {field.name: field.type for field in store.shape.fields}
        inner = dict(zip((f.name for f in types["s"].fields), (value, -value), strict=True))
        values = {"id": value, "tenant": tenant, "s": inner, "m": [("k", [inner])]}
        return pa.table({name: make_array([values[name]], type_) for name, type_ in types.items()})

    def check(store, tenant, value):
        columns = ", ".join(
            render_select_item(name, each) for name, each in store.shape.stored_types.items()
        )
        sql = f"SELECT {columns} FROM types.renamed_mirror WHERE id = {value}"
        found = endpoint.get_client().query_arrow(sql, use_strings=True)
        assert found.to_pylist() == row(store, tenant, value).to_pylist()

    before, after = store("x"), store("z")
    before.ensure()
    before.ensure_views()
    assert write(before, row(before, "a", 1))[0].code == 0
    after.ensure()
    assert write(after, row(after, "b", 2))[0].code == 0
    # A run of the version before goes on, and takes nothing from who is ahead.
    before.ensure()
    assert write(before, row(before, "a", 3))[0].code == 0
    for each in ((before, "a", 1), (after, "b", 2), (before, "a", 3)):
        check(*each)
    fields = query(after, "SELECT s.z, s.x, s.y FROM {view} ORDER BY id")
    assert fields == [(None, 1, -1), (2, None, -2), (None, 3, -3)]


def test_what_a_change_feed_may_have_replaced_is_left_to_a_snapshot(endpoint):
    nested = Map(key=LONG, value=Array(element=STRING))
    columns = {"k": (LONG, "Int64"), "n": (nested, "Map(Int64, Array(String))")}
    store = make_store(endpoint, columns, key="k")
    whole, replaced = (
        pa.table({"k": [1], "n": make_array([[(1, [None, text])]], nested)})
        for text in ("x", "a\ufffdb")
    )
    assert write(store, whole)[0].code == 0
    with raises_naming(FeedGoneError, "'n'", "U+FFFD"):
        write(store, replaced)
    assert count_stored(store) == 1
