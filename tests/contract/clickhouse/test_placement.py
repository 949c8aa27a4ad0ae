"""On the real engine, rows lie on the shard where a Distributed table puts them.

The shards are databases of one server.
"""

import itertools
import random
from collections import Counter
from dataclasses import replace
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp_dagster import Mirror, Vector
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.connect.external import build_external_data
from iscp_dagster.clickhouse.connect.failures import ClickHouseError
from iscp_dagster.clickhouse.tables.ddl import IndexShape
from iscp_dagster.clickhouse.tables.index_store import IndexStore
from iscp_dagster.clickhouse.types.wire import encode_column
from iscp_dagster.clickhouse.write.ambiguous_changes import FRESH
from iscp_dagster.clickhouse.write.letters import DeadLetters
from iscp_dagster.clickhouse.write.shard_selection import render_hash
from iscp_dagster.model.declared.schema import Array, Primitive
from iscp_dagster.model.declared.sharding import FUNCTIONS
from iscp_dagster.model.declared.tables import expand_shards
from iscp_dagster.model.errors import FeedGoneError, KeyColumnError, SchemaError, UnavailableError
from iscp_dagster.sync.executors.writer import TaskWriter
from support.errors import assert_names, raises_naming
from support.lake.row_writer import (
    add_system_columns,
    count,
    make_fields,
    make_scan,
    make_source,
    query,
    write,
)
from support.services.clickhouse_servers import Server

pytestmark = pytest.mark.slow

SHARDS = 3
# Nobody answers there, so rows that a Distributed table sends to a shard stay in files.
CLUSTER = "".join(
    "<shard><replica><host>127.0.0.1</host><port>1</port></replica></shard>" for _ in range(SHARDS)
)
TYPES = {
    # name: Delta type, ClickHouse type, values
    "s": ("string", None, ["", "x", "é", "\0", "long " * 40, *map(str, range(60))]),
    "low": ("string", "LowCardinality(String)", [f"g{n}" for n in range(40)]),
    "by": ("byte", None, [-128, -1, 0, 1, 127]),
    "i": ("integer", None, [-(2**31), -1, 0, 7, 2**31 - 1, *range(50, 90)]),
    "l": ("long", None, [-(2**63), -1, 0, 7, 2**63 - 1, *range(-50, -10)]),
    "u": ("long", "UInt16", [0, 1, 65_535, *range(100, 140)]),
    "uuid": ("string", "UUID", [str(UUID(int=n * 7**40)) for n in range(40)]),
    "fixed": ("string", "FixedString(3)", [f"{n:03}" for n in range(40)]),
    "day": ("date", None, [f"{year}-02-03" for year in range(1930, 1970)]),
}
KEYS = [
    *((name, ("s",)) for name in FUNCTIONS if not name.startswith("intHash")),
    *((name, ("l",)) for name in FUNCTIONS if not name.startswith("CRC")),
    *((name, ("u", "s")) for name in ("cityHash64", "murmurHash3_32")),
    *(("cityHash64", (column,)) for column in TYPES),
    *(("javaHash", (column,)) for column in ("by", "i", "uuid", "day")),
    *(("intHash32", (column,)) for column in ("by", "u", "day")),
]
KEYS = list(dict.fromkeys(KEYS))
IDS = [f"{function}({', '.join(columns)})" for function, columns in KEYS]
NAMES = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Run a server that has a cluster of three shards besides those that the tests make."""
    config = f"<remote_servers><three>{CLUSTER}</three></remote_servers>"
    folder = tmp_path_factory.mktemp("placement")
    server = Server(folder, config, allowed_paths=(folder / "data" / "store",))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def client(server):
    return server.endpoint.get_client()


def declare_stores(server, index, *, shards=SHARDS, key="id", fields=("tenant", "id"), types=None):
    """Return the store of each shard, for an index of these columns."""
    source = make_source("placed", key=key, indexes=[index])
    types = {"tenant": "string", "id": "long", "n": "long", **(types or {})}
    delta_fields = make_fields(**{name: types[name] for name in fields})
    stores = []
    for shard, shard_index in enumerate(expand_shards(source, shards).indexes):
        endpoint = ClickHouseEndpoint.parse(f"{server.url}/?database=placed_{shard}")
        shape = IndexShape(
            source=source, index=shard_index, fields=delta_fields, database=endpoint.database
        )
        stores.append(IndexStore(endpoint=endpoint, shape=shape))
    return stores


def build_stores(server, index, **named):
    """Declare the stores, and make their tables and views."""
    stores = declare_stores(server, index, **named)
    for store in stores:
        store.ensure()
        store.ensure_views()
    return stores


def make_typed_rows(columns, number):
    """Make rows with random values of the columns' types, numbered by `n`."""
    chance = random.Random(0)
    values = {name: [chance.choice(TYPES[name][2]) for _ in range(number)] for name in columns}
    arrow = {"byte": pa.int8(), "integer": pa.int32(), "long": pa.int64(), "string": pa.string()}
    arrays = {
        name: pa.array(values[name], pa.string()).cast(pa.date32())
        if TYPES[name][0] == "date"
        else pa.array(values[name], arrow[TYPES[name][0]])
        for name in columns
    }
    return pa.table({**arrays, "n": pa.array(range(number), pa.int64())})


def place_by_distributed(client, placement, rows):
    """Return the `n` of the rows on each shard, as a real Distributed table places them."""
    table, columns = f"d{next(NAMES)}", list(placement.stored_types)
    types = [*(str(placement.stored_types[each].type) for each in columns), "Int64"]
    declared = ", ".join(f"`{c}` {t}" for c, t in zip([*columns, "n"], types, strict=True))
    hashed = f"{placement.sharding.hash_function}({', '.join(columns)})"
    settings = {"allow_suspicious_low_cardinality_types": 1}
    engine = f"Distributed(three, default, nowhere, {hashed})"
    client.command(f"CREATE TABLE {table} ({declared}) ENGINE = {engine}", settings=settings)
    client.command(f"SYSTEM STOP DISTRIBUTED SENDS {table}")
    client.command(
        f"INSERT INTO {table} SELECT * FROM sent",
        external_data=build_external_data("sent", encode_rows(placement, rows), types),
        settings={"distributed_foreground_insert": 0, **settings},
    )
    paths = client.query(f"SELECT data_paths[1] FROM system.tables WHERE name = '{table}'")
    ((path,),) = paths.result_rows
    waiting = client.query(
        f"SELECT {', '.join(columns)}, n, toUInt32(extract(_path, 'shard([0-9]+)_')) - 1 AS shard "
        f"FROM file('{path}*/*.bin', 'Distributed')"
    )
    numbers = {shard: [] for shard in range(SHARDS)}
    for *_, n, shard in waiting.result_rows:
        numbers[shard].append(n)
    client.command(f"DROP TABLE {table} SYNC")
    return {shard: sorted(each) for shard, each in numbers.items()}


def encode_rows(placement, rows):
    """Return the rows with the columns of the sharding key as they are sent."""
    for name, kept in placement.stored_types.items():
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, name, encode_column(rows[name], kept))
    return rows


@pytest.mark.parametrize(("function", "columns"), KEYS, ids=IDS)
def test_rows_are_where_a_distributed_table_puts_them(server, client, function, columns):
    kept = {name: TYPES[name][1] for name in columns if TYPES[name][1]}
    index = Mirror(sharding={"hash_function": function, "key": columns}, types=kept)
    types = {name: TYPES[name][0] for name in columns}
    stores = declare_stores(server, index, key=columns, fields=("tenant", *columns), types=types)
    placements = [store.placement for store in stores]
    rows = make_typed_rows(columns, 300)
    numbers = {
        shard: each.select_rows(rows)["n"].to_pylist() for shard, each in enumerate(placements)
    }
    assert numbers == place_by_distributed(client, placements[0], rows)
    assert sum(map(len, numbers.values())) == 300
    if len(set(map(tuple, rows.select(columns).to_pylist()))) > 30:
        assert all(numbers.values())


def test_a_distributed_table_stands_over_the_views(client):
    """Follows docs/shards.md; the cluster's servers do not exist, so nothing is read."""
    client.command("CREATE DATABASE shop")
    client.command("CREATE TABLE shop.rows (id Int64, s String) ENGINE = Memory")
    client.command("CREATE VIEW shop.tickets_mirror AS SELECT * FROM shop.rows")
    client.command(
        "CREATE TABLE shop.tickets_all AS shop.tickets_mirror "
        "ENGINE = Distributed(three, shop, tickets_mirror, cityHash64(id))"
    )
    columns = client.query(
        "SELECT name FROM system.columns WHERE table = 'tickets_all' ORDER BY position"
    )
    assert columns.result_rows == [("id",), ("s",)]


def rows(ids, *, version=1, deleted=False, **columns):
    ids = list(ids)
    table = {
        "tenant": pa.array(["a"] * len(ids), pa.string()),
        "id": pa.array(ids, pa.int64()),
        **{name: pa.array(values) for name, values in columns.items()},
    }
    return add_system_columns(table, version=version, deleted=deleted)


def count_misplaced(store, column):
    """Count the rows that belong to another shard by the expression of their hash."""
    sharding = store.placement.sharding
    hashed = f"assumeNotNull({render_hash(sharding, [column])} % {SHARDS})"
    sql = f"SELECT count() FROM {{view}} WHERE {column} IS NOT NULL AND {hashed}"
    return query(store, f"{sql} != {sharding.shard}")[0][0]


@pytest.mark.parametrize("function", ["murmurHash3_32", "intHash32"])
def test_each_shard_says_of_its_rows_what_the_expression_says(server, function):
    column = "id" if function.startswith("intHash") else "word"
    index = Mirror(sharding={"hash_function": function, "key": [column]})
    fields, types = ("tenant", "id", "word"), {"word": "string"}
    stores = build_stores(server, index, key=["id", "word"], fields=fields, types=types)
    table = rows(range(100), word=[f"w{n}" for n in range(100)])
    ids = []
    for store in stores:
        (receipt,) = write(store, table, rows_per_chunk=32)
        assert receipt.code == 0, receipt.message
        assert count_misplaced(store, column) == 0
        ids += query(store, "SELECT id FROM {view}")
    assert sorted(ids) == [(id_,) for id_ in range(100)]


BY_ID = {"hash_function": "cityHash64", "key": ["id"]}


@settings(max_examples=5)
@given(
    ids=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=40, unique=True),
    cut=st.integers(1, 40),
    seed=st.integers(),
)
def test_placement_knows_neither_order_nor_chunks(server, ids, cut, seed):
    placements = [store.placement for store in declare_stores(server, Mirror(sharding=BY_ID))]
    whole = [set(each.select_rows(rows(ids))["id"].to_pylist()) for each in placements]
    mixed = random.Random(seed).sample(ids, len(ids))
    pieces = [mixed[at : at + cut] for at in range(0, len(mixed), cut)]
    for each, mine in zip(placements, whole, strict=True):
        # Rows keep the order of their arrival.
        selected = [each.select_rows(rows(piece))["id"].to_pylist() for piece in pieces]
        assert selected == [[id_ for id_ in piece if id_ in mine] for piece in pieces]
    assert set.union(*whole) == set(ids)
    assert sum(map(len, whole)) == len(ids)


def test_a_row_without_a_hash_is_the_first_shards(server):
    index = Mirror(sharding=BY_ID, types={"id": "UInt16"}, errors="dead_letter")
    stores = build_stores(server, index)
    table = rows([1, 2, 70_000, 3, -1])
    table = pa.concat_tables(
        [table, table.slice(0, 1).set_column(1, "id", pa.nulls(1, pa.int64()))]
    )
    receipts = [receipt for store in stores for receipt in write(store, table)]
    assert not any(receipt.code for receipt in receipts), receipts
    letters = [
        DeadLetters(endpoint=store.endpoint, database=store.shape.database).list_letters()
        for store in stores
    ]
    assert [len(each) for each in letters] == [3, 0, 0]
    assert {letter.code for letter in letters[0]} == {SchemaError.code, KeyColumnError.code}
    assert sum(receipt.inserted for receipt in receipts) == 3


def test_rows_without_a_key_lie_where_any_of_their_columns_says(server):
    """One tenant's rows are spread too; a row with a null lies on the first shard."""
    index = Mirror(sharding={"hash_function": "cityHash64", "key": ["n"]}, append=True)
    stores = build_stores(server, index, key=(), fields=("tenant", "id", "n"))
    table = rows(range(60), n=[None if id_ % 10 == 0 else id_ for id_ in range(60)])
    ids = []
    for shard, store in enumerate(stores):
        assert {receipt.code for receipt in write(store, table)} == {0}
        assert count_misplaced(store, "n") == 0
        stored = query(store, "SELECT id, n FROM {rows}")
        assert shard == 0 or all(n is not None for _, n in stored)
        ids += [id_ for id_, _ in stored]
    assert len(stores) == SHARDS
    assert sorted(ids) == list(range(60))


def test_a_row_that_does_not_fit_stops_its_own_shard_alone(server):
    index = Mirror(sharding=BY_ID, types={"n": "UInt8"})
    stores = build_stores(server, index, fields=("tenant", "id", "n"))
    table = rows(range(30), n=[300 if id_ == 7 else 1 for id_ in range(30)])
    codes = [write(store, table)[0].code for store in stores]
    (stopped,) = [shard for shard, code in enumerate(codes) if code]
    assert stores[stopped].placement.select_rows(rows([7])).num_rows == 1


def test_each_shard_has_its_own_rows_and_their_deletes_and_keys(server):
    stores = build_stores(server, Mirror(sharding=BY_ID))
    receipts = [write(store, rows([500]), rows_per_chunk=1) for store in stores]
    assert sorted(len(each) for each in receipts) == [0, 0, 1], "no chunk without its rows"
    totals = Counter()
    for store in stores:
        for _ in range(2):
            (before,) = write(store, rows(range(45)), rows_per_chunk=20)
        # Without FINAL: the repeated chunks were dropped by their tokens.
        ((number, distinct),) = query(store, "SELECT count(), uniqExact(id) FROM {rows}")
        assert number == distinct > 0
        (after,) = write(store, rows(range(0, 45, 3), version=2, deleted=True), since=1, upto=2)
        totals.update(inserted=before.inserted, deleted=after.deleted, count=count(store, "a"))
    assert totals == {"inserted": 45, "deleted": 15, "count": 31}
    scans = [make_scan(store, since=2, upto=3) for store in stores]
    writer = TaskWriter(scans=scans, keys=("id",), sleep=lambda _: None)
    fresh = rows(range(44, 50), version=3).append_column(FRESH, pa.array([True] * 6))
    with raises_naming(FeedGoneError, "{'id': 44}"):
        writer(0, fresh.to_batches())
    receipts = writer(0, fresh.slice(1).to_batches())
    assert sum(receipt.inserted for receipt in receipts) == 5


def test_a_shard_that_is_down_fails_alone(server, tmp_path):
    scans = [make_scan(store) for store in build_stores(server, Mirror(sharding=BY_ID))]
    nowhere = Server(tmp_path).endpoint
    consumer = scans[1].consumer
    placement = replace(consumer.placement, endpoint=nowhere)
    scans[1] = replace(scans[1], consumer=replace(consumer, endpoint=nowhere, placement=placement))
    writer = TaskWriter(scans=scans, keys=("id",), sleep=lambda _: None)
    codes = {each.target: each.code for each in writer(0, rows(range(50)).to_batches())}
    assert [codes[scan.name] for scan in scans] == [0, UnavailableError.code, 0]


def test_a_function_that_does_not_take_the_key_stops_the_job_by_name(server):
    store, *_ = build_stores(server, Mirror(sharding={"hash_function": "CRC32", "key": ["id"]}))
    (receipt,) = write(store, rows(range(3)))
    assert receipt.code == ClickHouseError.code
    name = f"{store.shape.source.name}/mirror_shard_0"
    assert_names(receipt.message, name, "Int64", "CRC32", 43)


def test_floats_do_not_say_where_a_row_is(server):
    index = Mirror(sharding={"hash_function": "cityHash64", "key": ["f"]})
    store, *_ = declare_stores(
        server, index, key="f", fields=("tenant", "f"), types={"f": "double"}
    )
    with raises_naming(SchemaError, store.shape.source.name, "'f'", "Float64"):
        store.ensure()


def test_an_index_that_is_spread_otherwise_is_refused_with_the_remedy(server):
    first, second, _ = build_stores(server, Mirror(sharding=BY_ID))
    fewer, *_ = expand_shards(first.shape.source, 2).indexes
    for index, values in (
        (fewer, ["'shards': 3", "'shards': 2", "iscp job rebuild"]),
        (second.shape.index, ["'shard': 0", "'shard': 1"]),
    ):
        with raises_naming(SchemaError, *values):
            replace(first, shape=replace(first.shape, index=index)).ensure()
    # What an earlier declaration had built more often.
    later = replace(first, shape=replace(first.shape, generation=2))
    later.ensure()
    later.ensure_views()
    with raises_naming(SchemaError, "generation 2", 0, "iscp job rebuild"):
        first.ensure()


def test_one_server_is_one_shard_and_asks_nothing(server):
    (store,) = build_stores(server, Mirror(sharding=BY_ID), shards=1)
    write(store, rows(range(40)))
    assert count(store, "a") == 40
    assert store.shape.view == f"{store.shape.source.table}_mirror"
    table = rows(range(3))
    assert store.placement.select_rows(table) is table


def test_a_vector_index_is_placed_too(server):
    index = Vector("v", dimension=2, sharding=BY_ID)
    types = {"v": Array(element=Primitive("float"))}
    stores = build_stores(server, index, fields=("tenant", "id", "v"), types=types)
    vectors = pa.array([[1.0, float(n)] for n in range(60)], pa.list_(pa.float32()))
    receipts = [receipt for store in stores for receipt in write(store, rows(range(60), v=vectors))]
    assert [receipt.code for receipt in receipts] == [0, 0, 0], receipts
    assert sum(count(store, "a") for store in stores) == 60
