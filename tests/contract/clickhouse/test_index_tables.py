"""Index tables on the real engine: written, replayed, replaced, searched."""

import json
from dataclasses import replace
from decimal import Decimal as Exact

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp_dagster import Changes, FullText, Mirror, SourceTable, Vector
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.connect.failures import ClickHouseBusyError, LostRowsError
from iscp_dagster.clickhouse.connect.quoting import quote_identifier, quote_string
from iscp_dagster.clickhouse.tables.ddl import VIRTUAL_COLUMNS, IndexShape
from iscp_dagster.clickhouse.tables.index_store import IndexStore
from iscp_dagster.model.declared.images import IMAGE_FIELDS
from iscp_dagster.model.declared.schema import Array, Decimal, Primitive
from iscp_dagster.model.errors import (
    FeedGoneError,
    KeyColumnError,
    SchemaError,
    UnavailableError,
)
from iscp_dagster.sync.executors.writer import TaskWriter
from support.errors import assert_names, raises_naming
from support.lake.row_writer import (
    MICROS,
    add_system_columns,
    build_store,
    check_staged,
    count_stored,
    make_fields,
    make_scan,
    make_source,
    put_in_place,
    query,
    write,
)
from support.services.fault_proxy import faulty

FIELDS = make_fields(tenant="string", id="long", body="string", v=Array(element=Primitive("float")))


@pytest.fixture
def make(endpoint):
    """Give a function that makes the tables of an index, and one to stage rows in."""

    def build(index, *, tenant="tenant", fields=FIELDS):
        store = build_store(endpoint, make_source("contract", tenant=tenant), index, fields)
        store.create_staging_table()
        return store

    return build


@pytest.fixture
def store(make):
    """Make a mirror's tables."""
    return make(Mirror())


def rows(ids, *, tenant="a", version=1, deleted=False, body="some words", vector=(1.0, 0.0)):
    ids = list(ids)
    table = {
        "tenant": pa.array([tenant] * len(ids), pa.string()),
        "id": pa.array(ids, pa.int64()),
        "body": pa.array([body] * len(ids), pa.string()),
        "v": pa.array([vector] * len(ids), pa.list_(pa.float32())),
    }
    return add_system_columns(table, version=version, micros=MICROS + version, deleted=deleted)


def read_view(store, where="1"):
    """Return tenant, id and body of the rows that the view serves."""
    return sorted(query(store, f"SELECT tenant, id, body FROM {{view}} WHERE {where}"))


def read_ids(store, where="1"):
    return [id_ for _, id_, _ in read_view(store, where)]


def test_a_replayed_chunk_is_dropped_by_its_token_and_a_changed_one_is_written(store):
    receipts = [receipt for _ in range(2) for receipt in write(store, rows(range(25)))]
    assert [(r.inserted, r.chunks, r.code) for r in receipts] == [(25, 3, 0)] * 2
    assert count_stored(store) == 25
    # A changed chunk under the same range is not swallowed.
    write(store, rows(range(25), body="other"))
    assert {body for _, _, body in read_view(store)} == {"other"}
    # The view hides deleted rows and system columns.
    (receipt,) = write(store, rows([1, 2], version=2, deleted=True), upto=2)
    assert (receipt.inserted, receipt.deleted) == (0, 2)
    assert read_ids(store) == [0, *range(3, 25)]
    columns = query(store, "DESCRIBE TABLE {view}")
    assert [name for name, *_ in columns] == ["tenant", "id", "body", "v"]
    # The delete of a row that had no key is passed over.
    keyless = set_value(rows([30], deleted=True), "id", None)
    (receipt,) = write(store, pa.concat_tables([keyless, rows([31])]))
    assert (receipt.code, receipt.inserted, receipt.deleted) == (0, 1, 0), receipt.message
    assert write(store, keyless) == []


def test_a_table_of_very_many_columns_is_made_widened_and_served(endpoint):
    names = [f"{'a column with a long name, ' * 40}{number}" for number in range(300)]
    fields = (*FIELDS, *make_fields(**dict.fromkeys(names, "string")))
    store = build_store(endpoint, make_source("contract"), Mirror(), fields)
    store.create_staging_table()
    wider = (*fields, *make_fields(later="long"))
    replace(store, shape=replace(store.shape, fields=wider)).ensure()
    columns = ", ".join(map(quote_identifier, [*names, "later"]))
    assert len(columns) > 256 << 10
    assert query(store, f"SELECT {columns} FROM {{view}}") == []


def test_the_latest_change_of_a_tenants_key_is_served(store):
    write(store, rows([1], version=9, body="new"), upto=9)
    write(store, rows([1], version=3, body="old"), upto=3)
    write(store, rows([1], tenant="b", version=5))
    assert read_view(store) == [("a", 1, "new"), ("b", 1, "some words")]
    micros = query(store, "SELECT max(toUnixTimestamp64Micro(_timestamp)) FROM {rows}")
    assert micros == [(MICROS + 9,)], "to the microsecond"


def test_a_staged_tenant_replaces_the_served_one_whole(store):
    write(store, rows(range(5)))
    write(store, rows([1], tenant="b"))
    write(store, rows([7, 8], version=2), staged=True)
    assert len(read_view(store)) == 6, "staging is not served"
    check_staged(store, "a", version=2, rows=2)
    put_in_place(store, "a", rows=2, version=1)
    assert read_ids(store, "tenant = 'a'") == [7, 8]
    # One that became empty is replaced by nothing.
    store = replace(store, attempt="next")
    store.create_staging_table()
    check_staged(store, "a", version=2, rows=0)
    put_in_place(store, "a", rows=0, version=1)
    assert read_view(store) == [("b", 1, "some words")]


@pytest.mark.parametrize(
    ("more", "later"),
    [({}, {"came": "string"}), ({"n": "float"}, {"n": "double"})],
    ids=["added", "widened"],
)
@pytest.mark.parametrize(
    "index", [Mirror(), Vector("v", dimension=2), Changes()], ids=lambda index: index.name
)
def test_what_is_staged_while_the_columns_change_is_staged_again(make, index, more, later):
    """Another tenant's iteration may give the served table a column meanwhile."""
    fields = (*FIELDS, *(IMAGE_FIELDS if isinstance(index, Changes) else ()))
    store = make(index, fields=(*fields, *make_fields(**more)))
    shape = replace(store.shape, fields=(*fields, *make_fields(**later)))
    wider = replace(store, shape=shape, attempt="next")
    wider.ensure()
    with raises_naming(ClickHouseBusyError, 122):
        put_in_place(store, "a", rows=0, version=1)
    wider.create_staging_table()
    put_in_place(wider, "a", rows=0, version=1)


def test_a_table_without_tenants_has_one_partition(make):
    store = make(Mirror(), tenant=None)
    write(store, rows(range(3)), staged=True)
    check_staged(store, "default", version=1, rows=3)
    put_in_place(store, "default", rows=3, version=1)
    assert len(read_view(store)) == 3
    store = replace(store, attempt="next")
    store.create_staging_table()
    put_in_place(store, "default", rows=0, version=1)
    assert read_view(store) == []


def test_tenants_are_asked_about_together_and_unknown_ones_have_no_rows(store):
    everyone = pa.concat_tables([rows([1, 2], tenant=tenant, version=3) for tenant in "abc"])
    write(store, everyone)
    write(store, rows([3], tenant="b", version=1))
    assert store.find_replaced_tenants(["a", "b", "nobody"], 2) == {"a"}
    assert store.find_replaced_tenants([], 2) == frozenset()
    assert store.find_filled_columns(["gone", "body"], ["a", "nobody"]) == {"a": "body"}
    assert store.find_filled_columns(["body"], ["nobody"]) == {}
    assert store.find_filled_columns(["body"], []) == {}
    # A generation whose tenants are in another column may have their rows.
    columns = (("tenant", "a"), ("tenant", "nobody"), ("org", "nobody"))
    answers = [store.data.has_rows(0, column, [tenant]) for column, tenant in columns]
    assert answers == [True, False, True]


@pytest.mark.parametrize(("nulls", "filled"), [("flag", {"a": "v"}), ("empty", {})])
def test_an_empty_array_is_a_value_where_a_flag_tells_it_from_null(make, nulls, filled):
    store = make(Mirror(nulls=nulls))
    write(store, set_value(rows([1]), "v", []))
    assert store.find_filled_columns(["v"], ["a"]) == filled


def test_staged_rows_that_are_lost_left_behind_or_repeated_are_noticed(store):
    write(store, rows([1], version=1), staged=True)
    with raises_naming(LostRowsError, store.staging, "'a'"):
        check_staged(store, "a", version=2, rows=1)
    with raises_naming(LostRowsError, store.staging, "'a'", 2, 1):
        check_staged(store, "a", version=1, rows=2)
    store = replace(store, attempt="next")
    store.create_staging_table()
    write(store, rows([2], version=2), staged=True)
    check_staged(store, "a", version=2, rows=1)
    store = replace(store, attempt="repeats")
    store.create_staging_table()
    write(store, rows([4, 5, 5], version=2), staged=True)
    with raises_naming(KeyColumnError, store.shape.source.name, "{'id': 5}", "2 rows"):
        check_staged(store, "a", version=2, rows=3)


def set_value(table, column, value):
    """Return the rows with this value in a column."""
    at = table.schema.get_field_index(column)
    values = pa.array([value] * table.num_rows, table.schema.types[at])
    return table.set_column(at, table.schema.field(at), values)


def mark_fresh(table):
    """Mark the rows as inserts, whose keys must not exist."""
    return table.append_column("_fresh", pa.array([True] * table.num_rows))


@pytest.mark.parametrize("tenant", ["tenant", None])
def test_a_fresh_key_that_is_served_already_is_refused_and_nothing_is_written(make, tenant):
    store = make(Mirror(), tenant=tenant)
    write(store, rows(range(25)))
    with raises_naming(FeedGoneError, "{'id': 7}"):
        write(store, mark_fresh(rows([30, 7], version=3)), since=2, upto=3)
    # Nor is one that came in twice.
    twice = rows([33], version=3).append_column("_repeats", pa.array([True]))
    with raises_naming(FeedGoneError, "{'id': 33}"):
        write(store, twice, since=2, upto=3)
    assert count_stored(store) == 25


def test_a_fresh_key_is_one_that_is_not_served_now(store):
    write(store, rows(range(5)))
    write(store, rows([3], version=2, deleted=True), since=1, upto=2)
    tables = [rows([3, 9], version=3)] * 2 + [rows([4], version=3, tenant="b"), rows([], version=3)]
    receipts = [r for each in tables for r in write(store, mark_fresh(each), since=2, upto=3)]
    assert read_ids(store) == [0, 1, 2, 3, 4, 9, 4]
    assert [(r.code, r.inserted) for r in receipts] == [(0, 2), (0, 2), (0, 1)]


@pytest.mark.parametrize("kept", ["String", "LowCardinality(String)"])
def test_a_decimal_key_kept_as_text_has_one_form_whatever_its_scale(endpoint, kept):
    """Its column may be widened without a rebuild, and its rows be changed and deleted then."""
    source = make_source("contract", key="k", tenant=None)

    def make_store(precision, scale):
        fields = make_fields(k=Decimal(precision, scale))
        return build_store(endpoint, source, Mirror(types={"k": kept}), fields)

    def make_rows(type_, texts, **named):
        return add_system_columns({"k": pa.array(list(map(Exact, texts)), type_)}, **named)

    texts = ["1.50", "0.00", "-0.10", "100.00", "0.05"]
    write(make_store(5, 2), make_rows(pa.decimal128(5, 2), texts))
    wide, type_ = make_store(20, 4), pa.decimal128(20, 4)
    write(wide, make_rows(type_, texts[:2], version=2), since=1, upto=2)
    keys = "SELECT k FROM {view} ORDER BY toFloat64(k)"
    assert query(wide, keys) == [("-0.1",), ("0",), ("0.05",), ("1.5",), ("100",)]
    write(wide, make_rows(type_, texts, version=3, deleted=True), since=2, upto=3)
    assert query(wide, keys) == []


@pytest.mark.parametrize(
    ("column", "value", "error", "named"),
    [
        ("id", None, KeyColumnError, ["'id'"]),
        ("tenant", None, KeyColumnError, ["'tenant'"]),
        ("v", [], SchemaError, ["'v'", "{'id': 3}", "0 floats", 2]),
        ("v", None, SchemaError, ["'v'", "{'id': 3}", "nulls='refuse'"]),
        ("v", [1.0], SchemaError, ["'v'", "{'id': 3}", "1 floats", 2]),
    ],
)
def test_rows_that_do_not_fit_are_named_and_nothing_is_written(make, column, value, error, named):
    store = make(Vector("v", dimension=2, nulls="refuse"))
    (receipt,) = write(store, set_value(rows([3]), column, value))
    assert receipt.code == error.code
    assert_names(receipt.message, *named)
    assert count_stored(store) == 0


def test_json_text_of_appended_rows_is_the_same_when_a_chunk_comes_again(endpoint):
    source = make_source("contract", key=())
    store = build_store(endpoint, source, Mirror(append=True, nulls="json"), FIELDS)
    table = pa.concat_tables([rows(range(5), vector=each) for each in (None, [], [0.5, None])])
    for _ in range(2):
        assert not any(receipt.code for receipt in write(store, table))
    counts = query(store, "SELECT v, count() FROM {view} GROUP BY v ORDER BY v")
    assert counts == [("[0.5,null]", 5), ("[]", 5), (None, 5)]


def test_one_failing_target_leaves_the_others_whole(make):
    good, bad = make(Mirror()), make(Mirror())
    scans = [make_scan(bad, columns=("tenant", "id", "nowhere")), make_scan(good)]
    table = rows(range(25)).append_column("nowhere", pa.array([1] * 25))
    writer = TaskWriter(scans=scans, rows_per_chunk=10)
    receipts = {receipt.target: receipt for receipt in writer(0, table.to_batches())}
    failure, success = (receipts[scan.name] for scan in scans)
    assert failure.code >= 10_000
    assert_names(failure.message, "nowhere")
    assert success.inserted == len(read_view(good)) == 25


def test_words_use_the_text_index(make):
    store = make(FullText("body"))
    write(store, rows(range(10), body="Common text"))
    write(store, rows([99], body="a RARE bird", version=2), upto=2)
    sql = "SELECT id FROM {view} WHERE hasAllTokens(body, 'rare')"
    assert query(store, sql) == [(99,)]
    plan = [line.strip() for (line,) in query(store, f"EXPLAIN indexes = 1 {sql}")]
    assert "Name: body_text" in plan


def test_views_that_were_made_otherwise_are_made_anew(make):
    store = make(Vector("v", dimension=2, metric="l2"))
    write(store, rows([1]))
    shape, command = store.shape, store.endpoint.get_client().command
    views = read_views(store)
    assert len(views) == 3
    # As an earlier version made them: without a comment, and one view fewer.
    nearest, distances = (
        shape.qualify_name(shape.format_view_name(end)) for end in ("nearest", "distances")
    )
    as_before = f"CREATE OR REPLACE VIEW {nearest} AS SELECT id FROM {shape.final}"
    command(as_before)
    command(f"DROP VIEW {distances}")
    assert store.renew_views() is True
    assert read_views(store) == views
    assert store.renew_views() is False
    command(as_before)
    store.ensure()
    assert read_views(store) == views


def test_a_vector_index_of_before_there_were_rows_without_a_vector_goes_on(make, endpoint):
    store = make(Vector("v", dimension=2))
    write(store, rows([1]))
    client, name = endpoint.get_client(), store.shape.qualify_name
    view, table = name(store.shape.view), name(store.shape.rows)
    for each in store.shape.views:
        client.command(f"DROP VIEW IF EXISTS {name(each)}")
    client.command(f"ALTER TABLE {table} DROP COLUMN _no_vector")
    comment = json.dumps({"index": store.shape.owner})
    client.command(
        f"CREATE VIEW {view} AS SELECT tenant, id, body, v FROM {table} COMMENT '{comment}'"
    )
    assert store.renew_views() is False, "it waits for the column"
    assert len(read_view(store)) == 1
    store.ensure()
    write(store, rows([2], version=2, vector=None), upto=2)
    assert query(store, "SELECT id, v FROM {view} ORDER BY id") == [(1, [1.0, 0.0]), (2, [])]


def read_views(store):
    """Return name, SELECT and comment of each of the index's views."""
    sql = (
        "SELECT name, as_select, comment FROM system.tables "
        "WHERE database = 'contract' AND name IN {names:Array(String)}"
    )
    return sorted(query(store, sql, names=list(store.shape.views)))


def test_an_index_can_be_dropped_and_made_again(make):
    store = make(Vector("v", dimension=2))
    write(store, rows([1]))
    store.data.drop_index()
    store.data.drop_index()
    store.data.drop_tenants("tenant", ["a"])
    store.ensure()
    assert count_stored(store) == 0


@pytest.mark.parametrize("tenant", ["tenant", None])
def test_one_tenant_of_an_index_can_be_dropped(make, tenant):
    store = make(Mirror(), tenant=tenant)
    write(store, rows([1, 2], tenant="it's"))
    write(store, rows([3], tenant="other"))
    for _ in range(2):
        store.data.drop_tenants(tenant, ["it's"])
    assert read_ids(store) == ([3] if tenant else [])


def test_an_index_that_was_built_before_the_drop_of_it_lands_stays(store, clickhouse_url):
    store.drop_staging_table()
    view = f"DROP VIEW IF EXISTS {store.shape.qualify_name(store.shape.view)}"
    write(store, rows([1, 2]))
    with faulty(clickhouse_url) as proxy:
        behind = replace(store.data, endpoint=ClickHouseEndpoint.parse(proxy.url))
        for late in ([view], ["DROP TABLE IF EXISTS", "RENAME"]):
            proxy.late_statements[:] = late
            with pytest.raises(UnavailableError):
                behind.drop_index()
        proxy.late_statements.clear()
        # The next run drops the leftovers.
        store.ensure()
        store.take_over({"a"}, list)
        write(store, rows([3]))
        answers = proxy.land()
    assert answers[0] == ""
    assert_names(answers[1], "UNKNOWN_TABLE")
    # A late DROP of a view loses no rows.
    store.ensure()
    assert read_ids(store) == [1, 2, 3]
    assert store.data.list_staging_tables() == []


def test_a_server_that_is_not_there_is_named_without_its_password():
    endpoint = ClickHouseEndpoint.parse("http://reader:hidden@127.0.0.1:9")
    with raises_naming(UnavailableError, "http://127.0.0.1:9") as caught:
        endpoint.connect()
    assert "hidden" not in str(caught.value)
    assert "hidden" not in repr(endpoint)


def test_what_another_index_owns_is_left_alone(make):
    owner = make(Mirror(name="b_c"))
    source = owner.shape.source
    write(owner, rows([1]))
    longer = SourceTable(f"{source.name}_b", key="id", tenant="tenant")
    for generation in (0, 1):
        shape = IndexShape(
            source=longer, index=Mirror(name="c"), fields=FIELDS, generation=generation
        )
        assert shape.view == owner.shape.view
        with raises_naming(SchemaError, f"{longer.name}/c", f"{source.name}/b_c"):
            IndexStore(endpoint=owner.endpoint, shape=shape).ensure()
    assert count_stored(owner) == 1


@pytest.mark.parametrize(
    ("suffix", "statement", "engine"),
    [
        ("", "VIEW {} AS SELECT 1 AS id", "View"),
        ("", "TABLE {} (id Int8) ENGINE = Memory", "Memory"),
        ("__rows_3", "TABLE {} (id Int8) ENGINE = Memory COMMENT '[not ours'", "Memory"),
    ],
    ids=["view", "table", "generation"],
)
def test_what_somebody_else_owns_is_left_alone(endpoint, suffix, statement, engine):
    source = make_source("contract")
    name = f"{source.table}_x{suffix}"
    client = endpoint.get_client()
    client.command("CREATE DATABASE IF NOT EXISTS contract")
    client.command("CREATE " + statement.format(f"contract.{name}"))
    shape = IndexShape(source=source, index=Mirror(name="x"), fields=FIELDS)
    with raises_naming(SchemaError, f"{source.name}/x", name, engine):
        IndexStore(endpoint=endpoint, shape=shape).ensure()


@settings(max_examples=20)
@given(names=st.lists(st.text(min_size=1), min_size=1, unique=True))
def test_any_name_is_one_column_and_any_text_one_literal(endpoint, names):
    columns = ", ".join(f"{quote_string(name)} AS {quote_identifier(name)}" for name in names)
    answer = endpoint.get_client().query(f"SELECT {columns}")
    assert list(answer.column_names) == names
    assert answer.result_rows == [tuple(names)]


def test_names_with_any_characters_are_only_names(store):
    assert quote_identifier("x`; DROP TABLE y") == "`x\\`; DROP TABLE y`"
    tenant = "it's \\ `odd`"
    write(store, rows([1], tenant=tenant), staged=True)
    check_staged(store, tenant, version=1, rows=1)
    put_in_place(store, tenant, rows=1, version=1)
    assert read_view(store) == [(tenant, 1, "some words")]
    columns = ", ".join(VIRTUAL_COLUMNS)
    assert len(query(store, f"SELECT {columns} FROM {{rows}}")) == 1, "the names that are refused"
