"""Index tables on the real engine: written, replayed, replaced, searched."""

import itertools
import json
from dataclasses import replace
from decimal import Decimal as Exact

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp_dagster import Changes, FullText, Mirror, SourceTable, Vector
from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.clickhouse.connect.failures import ClickHouseBusyError, LostRowsError
from iscp_dagster.clickhouse.connect.quoting import quote_identifier, quote_string
from iscp_dagster.clickhouse.tables.ddl import VIRTUAL_COLUMNS, IndexTable
from iscp_dagster.clickhouse.tables.generations import IndexData
from iscp_dagster.clickhouse.tables.indexes import IndexStore
from iscp_dagster.model.declared.images import IMAGE_FIELDS
from iscp_dagster.model.declared.schema import Array, Decimal, DeltaField, Primitive
from iscp_dagster.model.errors import (
    FeedGoneError,
    KeyColumnError,
    SchemaError,
    UnavailableError,
)
from iscp_dagster.sync.executors.writer import TaskWriter
from support.lake.row_writer import built, check_staged, put_in_place, shipped, write
from support.services.fault_proxy import faulty

SYSTEM = ("_version", "_timestamp", "_deleted")
FIELDS = (
    DeltaField(name="tenant", type=Primitive("string")),
    DeltaField(name="id", type=Primitive("long")),
    DeltaField(name="body", type=Primitive("string")),
    DeltaField(name="v", type=Array(element=Primitive("float"))),
)
NUMBERED = (*FIELDS, DeltaField(name="n", type=Primitive("float")))
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def endpoint(clickhouse_url):
    return Endpoint.parse(clickhouse_url)


@pytest.fixture
def make(endpoint):
    def build(index, *, tenant="tenant", fields=FIELDS):
        source = SourceTable(f"contract.t{next(NUMBERS)}", key="id", tenant=tenant)
        store = built(endpoint, source, index, fields)
        store.stage()
        return store

    return build


@pytest.fixture
def store(make):
    """Make a mirror's tables."""
    return make(Mirror())


def rows(ids, *, tenant="a", version=1, deleted=False, body="some words", vector=(1.0, 0.0)):
    ids = list(ids)
    return pa.table(
        {
            "tenant": pa.array([tenant] * len(ids), pa.string()),
            "id": pa.array(ids, pa.int64()),
            "body": pa.array([body] * len(ids), pa.string()),
            "v": pa.array([vector] * len(ids), pa.list_(pa.float32())),
            "_version": pa.array([version] * len(ids), pa.int64()),
            "_timestamp": pa.array([1_700_000_000_000_000 + version] * len(ids), pa.int64()),
            "_deleted": pa.array([deleted] * len(ids), pa.bool_()),
        }
    )


def served(store, where="1"):
    query = (
        f"SELECT tenant, id, body FROM {store.shape.qualify_name(store.shape.view)} WHERE {where}"
    )
    return sorted(store.endpoint.get_client().query(query).result_rows)


def stored(store):
    query = f"SELECT count() FROM {store.shape.qualify_name(store.shape.rows)}"
    return store.endpoint.get_client().query(query).result_rows[0][0]


def test_a_replay_of_the_same_chunks_is_dropped_by_its_tokens(store):
    first = write(store, rows(range(25)))
    again = write(store, rows(range(25)))
    assert [(r.inserted, r.chunks, r.code) for r in first + again] == [(25, 3, 0)] * 2
    assert stored(store) == 25


def test_a_changed_chunk_under_the_same_range_is_not_swallowed(store):
    write(store, rows(range(5)))
    write(store, rows(range(5), body="other"))
    assert {body for _, _, body in served(store)} == {"other"}


def test_the_view_hides_deleted_rows_and_system_columns(store):
    write(store, rows(range(4)))
    (receipt,) = write(store, rows([1, 2], version=2, deleted=True), upto=2)
    assert (receipt.inserted, receipt.deleted) == (0, 2)
    assert [key for _, key, _ in served(store)] == [0, 3]
    described = store.endpoint.get_client().query(
        f"DESCRIBE TABLE {store.shape.qualify_name(store.shape.view)}"
    )
    assert [row[0] for row in described.result_rows] == ["tenant", "id", "body", "v"]


def test_a_table_of_very_many_columns_is_made_widened_and_served(endpoint):
    names = [f"{'a column with a long name, ' * 40}{number}" for number in range(300)]
    more = [DeltaField(name=name, type=Primitive("string")) for name in names]
    source = SourceTable(f"contract.t{next(NUMBERS)}", key="id", tenant="tenant")

    def of(*fields):
        return IndexStore(
            endpoint=endpoint, shape=IndexTable(source=source, index=Mirror(), fields=fields)
        )

    store = of(*FIELDS, *more)
    store.ensure()
    store.ensure_views()
    store.stage()
    of(*FIELDS, *more, DeltaField(name="later", type=Primitive("long"))).ensure()
    every = ", ".join(map(quote_identifier, [*names, "later"]))
    assert len(every) > 256 << 10
    query = f"SELECT {every} FROM {store.shape.qualify_name(store.shape.view)}"
    assert store.endpoint.get_client().query(query).result_rows == []


def test_an_older_change_that_comes_late_does_not_win(store):
    write(store, rows([1], version=9, body="new"), upto=9)
    write(store, rows([1], version=3, body="old"), upto=3)
    assert served(store) == [("a", 1, "new")]


def test_the_same_key_in_two_tenants_is_two_rows(store):
    write(store, rows([1], tenant="a"))
    write(store, rows([1], tenant="b", version=5))
    assert [(tenant, key) for tenant, key, _ in served(store)] == [("a", 1), ("b", 1)]


def test_a_delete_of_a_row_that_had_no_key_is_passed_over(store):
    gone = broken("id", None)
    at = gone.schema.get_field_index("_deleted")
    gone = gone.set_column(at, "_deleted", pa.array([True]))
    (receipt,) = write(store, pa.concat_tables([gone, rows([4])]))
    assert (receipt.code, receipt.inserted, receipt.deleted) == (0, 1, 0), receipt.message
    assert write(store, gone) == []


def test_timestamps_are_stored_to_the_microsecond(store):
    write(store, rows([1]))
    name = store.shape.qualify_name(store.shape.rows)
    query = f"SELECT toUnixTimestamp64Micro(_timestamp) FROM {name}"
    assert store.endpoint.get_client().query(query).result_rows == [(1_700_000_000_000_001,)]


def test_a_staged_tenant_replaces_the_served_one_whole(store):
    write(store, rows(range(5)))
    write(store, rows([1], tenant="b"))
    write(store, rows([7, 8], version=2), staged=True)
    assert len(served(store)) == 6, "staging is not served"
    check_staged(store, "a", version=2, rows=2)
    put_in_place(store, "a", rows=2, version=1)
    assert [key for _, key, _ in served(store, "tenant = 'a'")] == [7, 8]
    assert len(served(store, "tenant = 'b'")) == 1


def test_a_tenant_that_became_empty_is_replaced_by_nothing(store):
    write(store, rows(range(5)))
    check_staged(store, "a", version=2, rows=0)
    put_in_place(store, "a", rows=0, version=1)
    assert served(store) == []


WIDER = (*FIELDS, DeltaField(name="came", type=Primitive("string")))
LONGER = tuple(
    replace(each, type=Primitive("double")) if each.name == "n" else each for each in NUMBERED
)


@pytest.mark.parametrize("later", [WIDER, LONGER], ids=["added", "widened"])
@pytest.mark.parametrize(
    "index",
    [Mirror(), FullText("body"), Vector("v", dimension=2), Changes()],
    ids=lambda index: index.name,
)
def test_what_is_staged_while_the_columns_change_is_staged_again(make, index, later):
    """Another tenant's iteration may give the served table a column meanwhile."""
    more = IMAGE_FIELDS if isinstance(index, Changes) else ()
    store = make(index, fields=(*(FIELDS if later is WIDER else NUMBERED), *more))
    wider = replace(store, shape=replace(store.shape, fields=(*later, *more)), attempt="next")
    wider.ensure()
    with pytest.raises(ClickHouseBusyError, match="code 122"):
        put_in_place(store, "a", rows=0, version=1)
    wider.stage()
    put_in_place(wider, "a", rows=0, version=1)


def test_a_table_without_tenants_has_one_partition(make):
    store = make(Mirror(), tenant=None)
    write(store, rows(range(3)), staged=True)
    check_staged(store, "default", version=1, rows=3)
    put_in_place(store, "default", rows=3, version=1)
    assert len(served(store)) == 3
    store = replace(store, attempt="next")
    store.stage()
    put_in_place(store, "default", rows=0, version=1)
    assert served(store) == []


def test_tenants_are_asked_about_together_and_nobody_s_rows_are_nothing(store):
    everyone = pa.concat_tables([rows([1, 2], tenant=tenant, version=3) for tenant in "abc"])
    write(store, everyone)
    write(store, rows([3], tenant="b", version=1))
    assert store.find_replaced_tenants(["a", "b", "nobody"], 2) == {"a"}
    assert store.find_filled_columns(["gone", "body"], ["a", "nobody"]) == {"a": "body"}
    assert (
        store.find_filled_columns(["body"], ["nobody"])
        == store.find_filled_columns(["body"], [])
        == {}
    )
    assert store.find_replaced_tenants([], 2) == frozenset()


@pytest.mark.parametrize(("nulls", "given"), [("flag", True), ("empty", False)])
def test_an_empty_array_is_a_value_where_a_flag_tells_it_from_null(make, nulls, given):
    store = make(Mirror(nulls=nulls))
    empty = pa.array([[]], pa.list_(pa.float32()))
    write(store, rows([1]).set_column(3, "v", empty))
    assert store.find_filled_columns(["v"], ["a"]) == ({"a": "v"} if given else {})


def test_a_generation_whose_tenants_are_in_another_column_may_have_their_rows(store):
    write(store, rows([1]))
    asked = (("tenant", "a"), ("tenant", "b"), ("org", "b"))
    shows = [store.data.has_rows(0, column, [tenant]) for column, tenant in asked]
    assert shows == [True, False, True]


def test_a_repeated_key_is_named(store):
    write(store, rows([4, 5, 5]), staged=True)
    with pytest.raises(KeyColumnError, match=r"key \{'id': 5\} occurs in 2 rows"):
        check_staged(store, "a", version=1, rows=3)


def test_rows_of_an_interrupted_synchronization_are_noticed_and_cleared(store):
    write(store, rows([1], version=1), staged=True)
    write(store, rows([2], version=2), staged=True)
    with pytest.raises(LostRowsError, match="1 of another version"):
        check_staged(store, "a", version=2, rows=1)
    store = replace(store, attempt="next")
    store.stage()
    write(store, rows([2], version=2), staged=True)
    check_staged(store, "a", version=2, rows=1)


def test_rows_that_were_sent_and_are_not_there_are_noticed(store):
    write(store, rows([1]), staged=True)
    with pytest.raises(LostRowsError, match="2 rows were sent, but it has 1,"):
        check_staged(store, "a", version=1, rows=2)


def broken(column, value):
    table = rows([3])
    at = table.schema.get_field_index(column)
    return table.set_column(at, table.schema.field(at), pa.array([value], table.schema.types[at]))


def fresh(ids, **changes):
    table = rows(ids, version=3, **changes)
    return table.append_column("_fresh", pa.array([True] * table.num_rows))


@pytest.mark.parametrize("tenant", ["tenant", None])
def test_a_fresh_key_that_is_served_already_is_refused_and_nothing_is_written(make, tenant):
    store = make(Mirror(), tenant=tenant)
    write(store, rows(range(25)))
    with pytest.raises(FeedGoneError, match=r"key \{'id': 7\} was inserted while it existed"):
        write(store, fresh([30, 7]), since=2, upto=3)
    assert stored(store) == 25


def test_a_key_that_came_in_twice_is_refused_and_nothing_is_written(store):
    twice = rows([3]).append_column("_repeats", pa.array([True]))
    with pytest.raises(FeedGoneError, match=r"key \{'id': 3\} was inserted while it existed"):
        write(store, twice)
    assert stored(store) == 0


def test_a_fresh_key_is_one_that_is_not_served_now(store):
    write(store, rows(range(5)))
    write(store, rows([3], version=2, deleted=True), since=1, upto=2)
    tables = [fresh([3, 9]), fresh([3, 9]), fresh([4], tenant="b"), fresh([])]
    receipts = [r for table in tables for r in write(store, table, since=2, upto=3)]
    assert [key for _, key, _ in served(store)] == [0, 1, 2, 3, 4, 9, 4]
    assert [(r.code, r.inserted) for r in receipts] == [(0, 2), (0, 2), (0, 1)]


def test_keys_of_every_type_are_looked_up(make, endpoint):
    kinds = [
        (Primitive("string"), pa.scalar("it's")),
        (Primitive("binary"), pa.scalar(b"\xff\x00")),
        (Primitive("integer"), pa.scalar(-3, pa.int32())),
        (Primitive("boolean"), pa.scalar(value=True)),
        (Primitive("date"), pa.scalar(20_000, pa.date32())),
        (Primitive("double"), pa.scalar(0.5)),
        (Decimal(20, 3), pa.scalar(-1.25).cast(pa.decimal128(20, 3))),
        (Primitive("timestamp"), pa.scalar(1_700_000_000_123_456, pa.timestamp("us", tz="UTC"))),
    ]
    names = tuple(f"k {number}" for number, _ in enumerate(kinds))
    fields = [DeltaField(name=n, type=kind) for n, (kind, _) in zip(names, kinds, strict=True)]
    source = SourceTable(f"contract.t{next(NUMBERS)}", key=names, tenant=None)
    store = built(endpoint, source, Mirror(), fields)
    table = rows([1]).select(list(SYSTEM))
    for name, (_, value) in zip(names, kinds, strict=True):
        table = table.append_column(name, pa.array([value.as_py()], value.type))
    changes = {"keys": names}
    write(store, table, **changes)
    table = table.append_column("_fresh", pa.array([True]))
    with pytest.raises(FeedGoneError, match="was inserted while it existed"):
        write(store, table, since=1, upto=2, **changes)


@pytest.mark.parametrize("kept", ["String", "LowCardinality(String)"])
def test_a_decimal_key_kept_as_text_has_one_form_whatever_its_scale(endpoint, kept):
    """Its column may be widened without a rebuild, and its rows be changed and deleted then."""
    number = next(NUMBERS)

    def store_of(precision, scale):
        field = DeltaField(name="k", type=Decimal(precision, scale))
        source = SourceTable(f"contract.t{number}", key="k", tenant=None)
        return built(endpoint, source, Mirror(types={"k": kept}), [field])

    def keys(type_, texts, **named):
        values = pa.array(list(map(Exact, texts)), type_)
        return rows(range(len(texts)), **named).select(list(SYSTEM)).append_column("k", values)

    texts = ["1.50", "0.00", "-0.10", "100.00", "0.05"]
    narrow = store_of(5, 2)
    write(narrow, keys(pa.decimal128(5, 2), texts))
    wide = store_of(20, 4)
    write(wide, keys(pa.decimal128(20, 4), texts[:2], version=2), since=1, upto=2)
    query = f"SELECT k FROM {wide.shape.qualify_name(wide.shape.view)} ORDER BY toFloat64(k)"
    held = [row[0] for row in endpoint.get_client().query(query).result_rows]
    assert held == ["-0.1", "0", "0.05", "1.5", "100"]
    write(wide, keys(pa.decimal128(20, 4), texts, version=3, deleted=True), since=2, upto=3)
    assert endpoint.get_client().query(query).result_rows == []


@pytest.mark.parametrize(
    ("table", "error", "said"),
    [
        (broken("id", None), KeyColumnError, "key column 'id' is null"),
        (broken("tenant", None), KeyColumnError, "key column 'tenant' is null"),
        (broken("v", []), SchemaError, "has 0 floats in row {'id': 3}, not 2"),
        (broken("v", None), SchemaError, "column 'v' is null in row {'id': 3}"),
        (broken("v", [1.0]), SchemaError, "has 1 floats in row {'id': 3}, not 2"),
    ],
)
def test_rows_that_do_not_fit_are_named_and_nothing_is_written(make, table, error, said):
    store = make(Vector("v", dimension=2, nulls="refuse"))
    (receipt,) = write(store, table)
    assert receipt.code == error.code
    assert said in receipt.message
    assert stored(store) == 0


def test_json_text_of_appended_rows_is_the_same_when_a_chunk_comes_again(endpoint):
    source = SourceTable(f"contract.t{next(NUMBERS)}", tenant="tenant")
    index = Mirror(append=True, nulls="json")
    store = built(endpoint, source, index, FIELDS)
    table = pa.concat_tables([rows(range(5), vector=each) for each in (None, [], [0.5, None])])
    for _ in range(2):
        assert not any(receipt.code for receipt in write(store, table))
    query = (
        f"SELECT v, count() FROM {store.shape.qualify_name(store.shape.view)} GROUP BY v ORDER BY v"
    )
    found = endpoint.get_client().query(query).result_rows
    assert found == [("[0.5,null]", 5), ("[]", 5), (None, 5)]


def test_one_failing_target_leaves_the_others_whole(make):
    good, bad = make(Mirror()), make(Mirror())
    both = [shipped(bad, columns=("tenant", "id", "nowhere")), shipped(good)]
    table = rows(range(25)).append_column("nowhere", pa.array([1] * 25))
    writer = TaskWriter(shares=both, rows_per_chunk=10)
    receipts = {r.target: r for r in writer(0, table.to_batches())}
    assert receipts[both[0].name].code >= 10_000
    assert "nowhere" in receipts[both[0].name].message
    assert receipts[both[1].name].inserted == 25
    assert len(served(good)) == 25


def test_words_use_the_text_index(make):
    store = make(FullText("body"))
    write(store, rows(range(10), body="Common text"))
    write(store, rows([99], body="a RARE bird", version=2), upto=2)
    view = store.shape.qualify_name(store.shape.view)
    query = f"SELECT id FROM {view} WHERE hasAllTokens(body, 'rare')"
    assert store.endpoint.get_client().query(query).result_rows == [(99,)]
    assert "Name: body_text" in explained(store, query)


def explained(store, sql, **parameters):
    found = store.endpoint.get_client().query(f"EXPLAIN indexes = 1 {sql}", parameters=parameters)
    return "\n".join(str(row[0]) for row in found.result_rows)


def nearest(store, query, k, tenant="a"):
    view = store.shape.qualify_name(store.shape.format_view_name("nearest"))
    sql = (
        f"SELECT id FROM {view}(query = {{query:Array(Float32)}}, "
        "tenant = {tenant:String}, k = {k:UInt32}) ORDER BY distance"
    )
    parameters = {"query": list(query), "k": k, "tenant": tenant}
    return sql, parameters


def test_meaning_stays_within_the_tenant(make):
    store = make(Vector("v", dimension=2, metric="l2"))
    for number in range(40):
        table = rows([number], vector=(float(number), 0.0))
        write(store, table)
    write(store, rows([1000], tenant="b", vector=(7.0, 0.0)))
    sql, parameters = nearest(store, (7.1, 0.0), 3)
    found = store.endpoint.get_client().query(sql, parameters=parameters)
    assert [row[0] for row in found.result_rows] == [7, 8, 6]


def test_meaning_never_finds_what_was_deleted_or_replaced(make):
    store = make(Vector("v", dimension=2, metric="l2"))
    vectors = pa.array([[float(n), 0.0] for n in range(300)], pa.list_(pa.float32()))
    table = rows(range(300))
    table = table.set_column(table.schema.get_field_index("v"), "v", vectors)
    write(store, table)
    write(
        store,
        rows(range(5, 12), version=2, deleted=True, vector=None),
        upto=2,
    )
    write(store, rows([4], version=3, vector=(200.5, 0.0)), upto=3)
    sql, parameters = nearest(store, (7.9, 0.0), 4)
    found = [
        row[0] for row in store.endpoint.get_client().query(sql, parameters=parameters).result_rows
    ]
    assert found == [12, 3, 13, 2]


def test_views_that_were_made_otherwise_are_made_anew(make):
    store = make(Vector("v", dimension=2, metric="l2"))
    write(store, rows([1]))
    shape, command = store.shape, store.endpoint.get_client().command
    made = views_of(store)
    assert len(made) == 3
    # As an earlier version made them: without a comment, and one view fewer.
    old = f"SELECT id FROM {shape.final}"
    command(
        f"CREATE OR REPLACE VIEW {shape.qualify_name(shape.format_view_name('nearest'))} AS {old}"
    )
    command(f"DROP VIEW {shape.qualify_name(shape.format_view_name('distances'))}")
    assert store.renew_views() is True
    assert views_of(store) == made
    assert store.renew_views() is False
    command(
        f"CREATE OR REPLACE VIEW {shape.qualify_name(shape.format_view_name('nearest'))} AS {old}"
    )
    store.ensure()
    assert views_of(store) == made


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
    assert len(served(store)) == 1
    store.ensure()
    write(store, rows([2], version=2, vector=None), upto=2)
    query = f"SELECT id, v FROM {view} ORDER BY id"
    assert client.query(query).result_rows == [(1, [1.0, 0.0]), (2, [])]


def views_of(store):
    query = (
        "SELECT name, as_select, comment FROM system.tables "
        "WHERE database = 'contract' AND name IN {names:Array(String)}"
    )
    found = store.endpoint.get_client().query(query, {"names": list(store.shape.views)})
    return sorted(found.result_rows)


def data_of(store):
    shape = store.shape
    return IndexData(endpoint=store.endpoint, database=shape.database, view=shape.view)


def test_an_index_can_be_dropped_and_made_again(make):
    store = make(Vector("v", dimension=2))
    write(store, rows([1]))
    data_of(store).drop_index()
    data_of(store).drop_index()
    data_of(store).drop_tenants("tenant", ["a"])
    store.ensure()
    assert stored(store) == 0


@pytest.mark.parametrize("tenant", ["tenant", None])
def test_one_tenant_of_an_index_can_be_dropped(make, tenant):
    store = make(Mirror(), tenant=tenant)
    write(store, rows([1, 2], tenant="it's"))
    write(store, rows([3], tenant="other"))
    for _ in range(2):
        data_of(store).drop_tenants(tenant, ["it's"])
    assert [row[1] for row in served(store)] == ([3] if tenant else [])


def test_what_was_built_before_the_drop_of_a_tenant_lands_stays(store, clickhouse_url):
    write(store, rows([1, 2]))
    with faulty(clickhouse_url) as proxy:
        proxy.late_statements[:] = ["DROP PARTITION", "REPLACE PARTITION"]
        with pytest.raises(UnavailableError):
            replace(data_of(store), endpoint=Endpoint.parse(proxy.url)).drop_tenants(
                "tenant", ["a"]
            )
        write(store, rows([3]))
        assert len(proxy.land()) == 1
    assert [row[1] for row in served(store)] == [1, 2, 3]
    assert data_of(store).list_staging_tables() == [store.staging]


def test_an_index_that_was_built_before_the_drop_of_it_lands_stays(store, clickhouse_url):
    store.drop_staging_table()
    view = f"DROP VIEW IF EXISTS {store.shape.qualify_name(store.shape.view)}"
    write(store, rows([1, 2]))
    with faulty(clickhouse_url) as proxy:
        behind = replace(data_of(store), endpoint=Endpoint.parse(proxy.url))
        for late in ([view], ["DROP TABLE IF EXISTS", "RENAME"]):
            proxy.late_statements[:] = late
            with pytest.raises(UnavailableError):
                behind.drop_index()
        proxy.late_statements.clear()
        # The next run drops the leftovers.
        store.ensure()
        store.take_over({"a"}, list)
        write(store, rows([3]))
        said = proxy.land()
    assert said[0] == ""
    assert "UNKNOWN_TABLE" in said[1]
    # A late DROP of a view loses no rows.
    store.ensure()
    assert [row[1] for row in served(store)] == [1, 2, 3]
    assert data_of(store).list_staging_tables() == []


def test_a_server_that_is_not_there_is_named_without_its_password():
    endpoint = Endpoint.parse("http://reader:hidden@127.0.0.1:9")
    with pytest.raises(UnavailableError, match=r"http://127\.0\.0\.1:9 did not answer") as caught:
        endpoint.connect()
    assert "hidden" not in str(caught.value)
    assert "hidden" not in repr(endpoint)


def test_what_another_index_or_somebody_else_owns_is_left_alone(make, endpoint):
    held = make(Mirror(name="b_c"))
    source = held.shape.source
    write(held, rows([1]))
    longer = SourceTable(f"{source.name}_b", key="id", tenant="tenant")
    for generation in (0, 1):
        shape = IndexTable(
            source=longer, index=Mirror(name="c"), fields=FIELDS, generation=generation
        )
        assert shape.view == held.shape.view
        with pytest.raises(SchemaError, match=rf"belongs to index {source.name}/b_c\. Give"):
            IndexStore(endpoint=endpoint, shape=shape).ensure()
    assert stored(held) == 1
    for name, what in (
        (f"{source.table}_x", "VIEW {} AS SELECT 1 AS id"),
        (f"{source.table}_y", "TABLE {} (id Int8) ENGINE = Memory"),
        (f"{source.table}_z__rows_3", "TABLE {} (id Int8) ENGINE = Memory COMMENT '[not ours'"),
    ):
        endpoint.get_client().command("CREATE " + what.format(held.shape.qualify_name(name)))
        index = Mirror(name=name.removeprefix(f"{source.table}_").removesuffix("__rows_3"))
        shape = IndexTable(source=source, index=index, fields=FIELDS)
        with pytest.raises(SchemaError, match="belongs to no index"):
            IndexStore(endpoint=endpoint, shape=shape).ensure()


@settings(max_examples=60)
@given(names=st.lists(st.text(min_size=1), min_size=1, unique=True))
def test_any_name_is_one_column_and_any_text_one_literal(endpoint, names):
    listed = ", ".join(f"{quote_string(name)} AS {quote_identifier(name)}" for name in names)
    found = endpoint.get_client().query(f"SELECT {listed}")
    assert list(found.column_names) == names
    assert found.result_rows == [tuple(names)]


def test_the_names_that_are_refused_are_virtual_columns(store, endpoint):
    write(store, rows([1]))
    listed = ", ".join(VIRTUAL_COLUMNS)
    endpoint.get_client().query(
        f"SELECT {listed} FROM {store.shape.qualify_name(store.shape.rows)}"
    )


def test_names_with_any_characters_are_only_names(make):
    assert quote_identifier("x`; DROP TABLE y") == "`x\\`; DROP TABLE y`"
    store = make(Mirror())
    write(store, rows([1], tenant="it's \\ `odd`"), staged=True)
    check_staged(store, "it's \\ `odd`", version=1, rows=1)
    put_in_place(store, "it's \\ `odd`", rows=1, version=1)
    assert served(store) == [("it's \\ `odd`", 1, "some words")]
