"""Every cell of docs/types.md on the real engine: kept to the last bit, or refused by name."""

import itertools
import json
import struct
from math import isnan

import pyarrow as pa
import pytest
from hypothesis import Phase, event, given, settings
from hypothesis import strategies as st

from iscp_dagster import Mirror, SourceTable
from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.clickhouse.tables.ddl import IndexTable
from iscp_dagster.clickhouse.tables.generations import IndexData
from iscp_dagster.clickhouse.tables.indexes import IndexStore
from iscp_dagster.clickhouse.types.texts import (
    format_ipv6,
    is_ipv6,
    is_json,
    normalize_json,
    normalize_json_columns,
)
from iscp_dagster.clickhouse.types.wire import decode_rows, render_select_item, respell_column
from iscp_dagster.clickhouse.write.inserts import INSERT_SETTINGS
from iscp_dagster.delta.arrow import to_arrow_type
from iscp_dagster.model.declared.schema import SYSTEM_COLUMNS, Array, DeltaField, Map, Struct
from iscp_dagster.model.errors import FeedGoneError, SchemaError
from support.lake import row_writer
from support.lake.row_writer import built, check_staged, count, put_in_place
from support.lake.type_cells import CASES, DATE, LONG, POINT, STAMP, STRING, UUID, at, day

pytestmark = pytest.mark.slow

NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def endpoint(clickhouse_url):
    endpoint = Endpoint.parse(clickhouse_url)
    endpoint.get_client().command("CREATE DATABASE IF NOT EXISTS types")
    return endpoint


def arrow(type_):
    """Return the Arrow type in which Spark passes a column of this type."""
    if isinstance(type_, Struct):
        return pa.struct([(f.name, arrow(f.type)) for f in type_.fields])
    if isinstance(type_, Map):
        return pa.map_(arrow(type_.key), arrow(type_.value))
    if isinstance(type_, Array):
        return pa.list_(arrow(type_.element))
    return pa.string() if str(type_) == "variant" else to_arrow_type(type_)


def array(values, type_):
    """Make an Arrow array; texts may be given as bytes, even if they are not UTF-8."""
    if arrow(type_) == pa.string():
        encoded = [v.encode("utf-8") if isinstance(v, str) else v for v in values]
        return pa.array(encoded, pa.binary()).view(pa.string())
    return pa.array(values, arrow(type_))


def store_of(endpoint, cases, nulls="empty"):
    fields = [
        DeltaField(name="id", type=LONG),
        *(DeltaField(name=f"c{n}", type=c.source) for n, c in enumerate(cases)),
    ]
    types = {f"c{n}": c.asked for n, c in enumerate(cases) if c.asked}
    source = SourceTable(f"types.t{next(NUMBERS)}", key="id")
    return built(endpoint, source, Mirror(types=types, nulls=nulls), fields)


def rows_of(cases, values):
    """Return rows of the columns in `values`, with shorter columns repeated."""
    count = max(map(len, values))
    table = pa.table({"id": pa.array(range(count), pa.int64())})
    for n, (case, column) in enumerate(zip(cases, values, strict=True)):
        filled = list(itertools.islice(itertools.cycle(column), count))
        table = table.append_column(f"c{n}", array(filled, case.source))
    return table


def write(store, table, *, deleted=False, staged=False, since=0):
    """Write as a Spark task does: changes after version `since`, or a snapshot."""
    system = [since + 1, 0, deleted]
    for name, value in zip(SYSTEM_COLUMNS, system, strict=True):
        table = table.append_column(name, pa.array([value] * table.num_rows))
    return row_writer.write(
        store, table, staged=staged, since=since, upto=since + 1, rows_per_chunk=100_000
    )


def served(store, schema):
    """Return the view's rows in the source's types."""
    shape = store.shape
    columns = ", ".join(render_select_item(name, each) for name, each in shape.stored_types.items())
    query = f"SELECT {columns} FROM {shape.qualify_name(shape.view)} ORDER BY id"
    settings = {"output_format_arrow_string_as_string": 0}
    return decode_rows(store.endpoint.get_client().query_arrow(query, settings=settings), schema)


def stored_rows(store):
    query = f"SELECT count() FROM {store.shape.qualify_name(store.shape.rows)}"
    return store.endpoint.get_client().query(query).result_rows[0][0]


def exact(column):
    """Return values that compare with the sign of zero, and with all NaN equal."""
    return [
        _exact(each.cast(pa.binary()).as_py() if pa.types.is_string(each.type) else each.as_py())
        for each in column
    ]


def _exact(value):
    if isinstance(value, float):
        return "nan" if isnan(value) else struct.pack(">d", value)
    if isinstance(value, dict):
        return {name: _exact(each) for name, each in value.items()}
    return list(map(_exact, value)) if isinstance(value, list | tuple) else value


GROUPS = {
    str(key): list(group)
    for key, group in itertools.groupby(
        sorted((c for c in CASES if "JSON" not in (c.asked or "")), key=lambda c: str(c.source)),
        key=lambda c: c.source,
    )
}


@pytest.mark.parametrize("source", GROUPS)
def test_what_is_held_comes_back_to_the_last_bit(endpoint, source):
    cases = GROUPS[source]
    store = store_of(endpoint, cases)
    store.ensure()
    table = rows_of(cases, [case.held for case in cases])
    (receipt,) = write(store, table)
    assert receipt.code == 0, receipt.message
    found = served(store, table.schema)
    for n, case in enumerate(cases):
        wanted = respell_column(table[f"c{n}"], store.shape.stored_types[f"c{n}"])
        assert exact(found[f"c{n}"]) == exact(wanted), case.name


@pytest.mark.parametrize("source", {str(c.source): 0 for c in CASES})
def test_what_is_not_held_is_named_and_nothing_is_written(endpoint, source):
    cases = [case for case in CASES if str(case.source) == source]
    store = store_of(endpoint, cases, nulls="refuse")
    for n, case in enumerate(cases):
        for wrong in case.refused:
            values = [list(each.held[:1]) * 8 for each in cases]
            values[n][5] = wrong
            (receipt,) = write(store, rows_of(cases, values))
            assert receipt.code == SchemaError.code, (case.name, wrong)
            assert f"column 'c{n}' is " in receipt.message
            assert "in row {'id': 5}, but" in receipt.message
    assert stored_rows(store) == 0


def test_json_comes_back_as_the_same_value(endpoint):
    cases = [case for case in CASES if "JSON" in (case.asked or "")]
    store = store_of(endpoint, cases)
    table = rows_of(cases, [case.held for case in cases])
    (receipt,) = write(store, table)
    assert receipt.code == 0, receipt.message
    names = [f"c{n}" for n, _ in enumerate(cases)]
    for found, held in zip(
        *(
            normalize_json_columns(each, names).select(names)
            for each in (served(store, table.schema), table)
        ),
        strict=True,
    ):
        assert found.to_pylist() == held.to_pylist()
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
@settings(max_examples=25, phases=UNSHRUNK, derandomize=True)
def test_whatever_json_is_held_comes_back_as_the_same_value(endpoint, values):
    texts = [text for text in map(json.dumps, values) if is_json(text)]
    column = pa.table({"c": pa.array(texts, pa.string())})
    client, table = endpoint.get_client(), "types.json"
    client.command(
        f"CREATE OR REPLACE TABLE {table} (n UInt64, c JSON) ENGINE = MergeTree ORDER BY n"
    )
    client.insert_arrow(
        table, column.append_column("n", pa.array(range(len(texts)))), settings=INSERT_SETTINGS
    )
    found = client.query(f"SELECT toString(c) FROM {table} ORDER BY n").result_rows
    event(f"{len(texts)} held")
    assert [normalize_json(text) for (text,) in found] == [normalize_json(text) for text in texts]


@pytest.mark.parametrize("other", ['[{"b": 1}]', "[{}]", "[[1]]", "[[{}]]"])
@pytest.mark.parametrize("nulls", ["[null]", "[null, null]", "[[null]]", "[[], [null]]"])
def test_an_array_of_nulls_would_take_the_type_of_another_rows(nulls, other):
    texts = [f'{{"a": {each}}}' for each in (other, nulls)]
    assert [is_json(text) for text in texts] == [True, False]


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
    ((held,),) = client.query(f"SELECT toString(c) FROM {table} WHERE n = 1").result_rows
    assert normalize_json(held) != normalize_json(rows[1]), "ClickHouse holds it by now"
    assert [is_json(row) for row in rows] == [True, False]
    assert is_json('{"a": 9007199254740993}')


@given(st.lists(st.one_of(st.integers(0, 2**128 - 1), st.integers(0, 2**49)), min_size=20))
@settings(max_examples=10, phases=UNSHRUNK)
def test_an_address_is_in_its_shortest_form_when_clickhouse_writes_it_so(endpoint, numbers):
    sparse = [number & (0xFFFF << 16 * (number % 8)) for number in numbers]
    packed = [number.to_bytes(16, "big") for number in [*numbers, *sparse]]
    query = "SELECT arrayMap(x -> IPv6NumToString(toFixedString(unhex(x), 16)), {n:Array(String)})"
    found = endpoint.get_client().query(query, parameters={"n": [each.hex() for each in packed]})
    assert list(found.result_rows[0][0]) == list(map(format_ipv6, packed))
    assert all(map(is_ipv6, found.result_rows[0][0]))


KEYS = [
    (STRING, "UUID", UUID, "x"),
    (STRING, "LowCardinality(String)", "it's", None),
    (STRING, "FixedString(3)", "abc", "abcd"),
    (STRING, "IPv4", "1.2.3.4", "x"),
    (STRING, "IPv6", "::1", "x"),
    (STRING, "Enum8('it\\'s' = 1, ',)(' = 2)", "it's", "x"),
    (LONG, "UInt8", 255, 256),
    (LONG, "Int256", -5, None),
    (LONG, "Decimal(40, 2)", 5, None),
    (DATE, "Date", day(2020), day(9999)),
    (DATE, "String", day(9999), None),
    (STAMP, "DateTime('Asia/Tokyo')", at(2020, 1, 1), at(9999, 1, 1)),
    (STAMP, "DateTime64(3, 'UTC')", at(2020, 1, 1), at(9999, 1, 1)),
    (STAMP, "Int64", at(9999, 1, 1), None),
]


def keyed(endpoint, types, *, tenant=None):
    names = list(types)
    fields = [DeltaField(name=name, type=kind) for name, (kind, _) in types.items()]
    keys = [name for name in names if name not in {tenant, "n"}]
    source = SourceTable(f"types.t{next(NUMBERS)}", key=keys, tenant=tenant)
    asked = {name: text for name, (_, text) in types.items()}
    return built(endpoint, source, Mirror(types=asked), fields)


@pytest.mark.parametrize(("kind", "asked", "value", "strange"), KEYS, ids=[k[1] for k in KEYS])
def test_a_key_is_looked_up_and_deleted_as_it_is_kept(endpoint, kind, asked, value, strange):
    store = keyed(endpoint, {"k": (kind, asked)})
    row = pa.table({"k": array([value], kind)})
    assert write(store, row)[0].code == 0
    fresh = row.append_column("_fresh", pa.array([True]))
    with pytest.raises(FeedGoneError, match="was inserted while it existed"):
        write(store, fresh, since=1)
    if strange is not None:
        never = pa.table({"k": array([strange], kind)})
        assert write(store, never.append_column("_fresh", pa.array([True])), since=1)[0].code
        held = stored_rows(store)
        assert write(store, never, deleted=True, since=1)[0].code == 0
        assert stored_rows(store) == held
    assert write(store, row, deleted=True, since=2)[0].deleted == 1
    assert count(store, "default") == 0


@pytest.mark.parametrize(
    ("kind", "asked", "value"),
    [
        (STRING, "LowCardinality(String)", "it's \\ `odd`"),
        (STRING, "UUID", UUID),
        (LONG, "UInt64", 7),
        (LONG, "LowCardinality(Int16)", -7),
    ],
)
def test_a_tenant_is_replaced_and_dropped_as_it_is_kept(endpoint, kind, asked, value):
    store = keyed(endpoint, {"t": (kind, asked), "k": (LONG, "Int64")}, tenant="t")
    rows = pa.table({"t": array([value] * 2, kind), "k": pa.array([1, 2])})
    store.stage()
    (receipt,) = write(store, rows, staged=True)
    assert (receipt.code, receipt.tenant, receipt.inserted) == (0, str(value), 2), receipt.message
    check_staged(store, str(value), version=1, rows=2)
    put_in_place(store, str(value), rows=2, version=1)
    assert count(store, str(value)) == 2
    data = IndexData(endpoint=endpoint, database="types", view=store.shape.view)
    data.drop_tenants("t", [str(value)])
    assert count(store, str(value)) == 0


def test_a_tenants_uuid_is_in_lower_case(endpoint):
    store = keyed(endpoint, {"t": (STRING, "UUID"), "k": (LONG, "Int64")}, tenant="t")
    rows = pa.table({"t": [UUID.upper()], "k": [1]})
    (receipt,) = write(store, rows)
    assert receipt.code == SchemaError.code
    assert "column 't' is " in receipt.message
    assert "a tenant's UUID must be in lower case" in receipt.message
    assert write(store, rows, deleted=True)[0].code == 0
    assert stored_rows(store) == 0


def test_a_deleted_row_is_deleted_whatever_its_last_values_were(endpoint):
    """A value that did not fit had stopped the index; its deletion lets the index go on."""
    kept = [(LONG, "UInt8", 1, 256), (STRING, "UUID", UUID, "x"), (STRING, "Enum8('a')", "a", "b")]
    kept += [(STRING, "FixedString(2)", "ab", "x"), (Array(element=LONG), None, [1], None)]
    kept += [(POINT, "Point", {"x": 0.0, "y": 0.0}, None), (STRING, "JSON", "{}", "[")]
    kept += [
        (DATE, None, day(2020), day(9999)),
        (STRING, "IPv4", "1.2.3.4", ""),
        (STRING, "IPv6", "::", ""),
    ]
    for nullable in (True, False):
        fields = [DeltaField(name="id", type=LONG)]
        fields += [
            DeltaField(name=f"c{n}", type=each[0], nullable=nullable) for n, each in enumerate(kept)
        ]
        types = {f"c{n}": each[1] for n, each in enumerate(kept) if each[1]}
        source = SourceTable(f"types.t{next(NUMBERS)}", key="id")
        store = built(endpoint, source, Mirror(types=types), fields)
        good, bad = (
            pa.table(
                {"id": [1, 2]}
                | {f"c{n}": array([each[at]] * 2, each[0]) for n, each in enumerate(kept)}
            )
            for at in (2, 3)
        )
        assert write(store, good)[0].inserted == 2
        (receipt,) = write(store, bad.slice(1), deleted=True, since=1)
        assert (receipt.code, receipt.deleted) == (0, 1), receipt.message
        assert count(store, "default") == 1


def test_a_column_becomes_a_wider_type_and_no_other(endpoint):
    def store(**types):
        fields = [DeltaField(name=n, type=STRING if n == "e" else LONG) for n in ("id", *types)]
        source = SourceTable("types.altered", key="id")
        shape = IndexTable(source=source, index=Mirror(types=types), fields=fields)
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
    found = endpoint.get_client().query("SELECT n, e, new FROM types.altered_mirror").result_rows
    assert found == [(-1, "b", 7)]
    with pytest.raises(
        SchemaError, match="has become Nullable\\(UInt8\\), and index 'mirror' holds"
    ):
        store(n="UInt8").ensure()


def test_tenants_before_and_after_a_renamed_field_have_their_values_in_one_table(endpoint):
    def store(name):
        inner = Struct(fields=(DeltaField(name=name, type=LONG), DeltaField(name="y", type=LONG)))
        fields = [DeltaField(name="id", type=LONG), DeltaField(name="tenant", type=STRING)]
        nested = Map(key=STRING, value=Array(element=inner))
        fields += [DeltaField(name="s", type=inner), DeltaField(name="m", type=nested)]
        source = SourceTable("types.renamed", key="id", tenant="tenant")
        shape = IndexTable(source=source, index=Mirror(), fields=fields)
        return IndexStore(endpoint=endpoint, shape=shape)

    def row(made, tenant, value):
        types = {field.name: field.type for field in made.shape.fields}
        held = dict(zip((f.name for f in types["s"].fields), (value, -value), strict=True))
        values = {"id": value, "tenant": tenant, "s": held, "m": [("k", [held])]}
        return pa.table({name: array([values[name]], type_) for name, type_ in types.items()})

    def check(made, *whose):
        columns = ", ".join(
            render_select_item(name, each) for name, each in made.shape.stored_types.items()
        )
        query = f"SELECT {columns} FROM types.renamed_mirror WHERE id = {whose[-1]}"
        found = endpoint.get_client().query_arrow(query, use_strings=True)
        assert found.to_pylist() == row(made, *whose).to_pylist()

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
    found = endpoint.get_client().query(
        "SELECT s.z, s.x, s.y FROM types.renamed_mirror ORDER BY id"
    )
    assert found.result_rows == [(None, 1, -1), (2, None, -2), (None, 3, -3)]


def test_what_a_change_feed_may_have_replaced_is_left_to_a_snapshot(endpoint):
    nested = Map(key=LONG, value=Array(element=STRING))
    store = keyed(endpoint, {"k": (LONG, "Int64"), "n": (nested, "Map(Int64, Array(String))")})
    for text, refused in (("x", False), ("a\ufffdb", True)):
        rows = pa.table({"k": [1], "n": array([[(1, [None, text])]], nested)})
        if refused:
            with pytest.raises(FeedGoneError, match=r"Column 'n' has the character U\+FFFD"):
                write(store, rows)
        else:
            assert write(store, rows)[0].code == 0
    assert stored_rows(store) == 1
