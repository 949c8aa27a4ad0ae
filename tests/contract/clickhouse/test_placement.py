"""On real servers, rows lie on the shard where a Distributed table puts them."""

import random
from collections import Counter
from dataclasses import replace
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iscp_dagster import Mirror, SourceTable, Vector
from iscp_dagster.clickhouse.connect.external import build_external_data
from iscp_dagster.clickhouse.connect.failures import ClickHouseError
from iscp_dagster.clickhouse.tables.ddl import IndexTable
from iscp_dagster.clickhouse.tables.indexes import IndexStore
from iscp_dagster.clickhouse.write.letters import DeadLetters
from iscp_dagster.clickhouse.write.placement import render_hash
from iscp_dagster.model.declared.schema import DeltaField, parse_type
from iscp_dagster.model.declared.sharding import FUNCTIONS
from iscp_dagster.model.declared.tables import expand_shards
from iscp_dagster.model.errors import FeedGoneError, KeyColumnError, SchemaError, UnavailableError
from iscp_dagster.sync.executors.writer import TaskWriter
from support.lake.row_writer import count, shipped, write
from support.services.clickhouse_servers import Server, running_servers

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
STRINGS = ("s", "low", "fixed")
NUMBERS = ("by", "i", "l", "u")
KEYS = [
    *((name, ("s",)) for name in FUNCTIONS if not name.startswith("intHash")),
    *((name, ("l",)) for name in FUNCTIONS if not name.startswith("CRC")),
    *((name, ("u", "s")) for name, each in FUNCTIONS.items() if each.several),
    *(("cityHash64", (column,)) for column in TYPES),
    *(("javaHash", (column,)) for column in ("low", "by", "i", "uuid", "fixed", "day")),
    *(("intHash32", (column,)) for column in (*NUMBERS, "day")),
    *(("CRC32", (column,)) for column in STRINGS),
]

KEYS = list(dict.fromkeys(KEYS))
IDS = [f"{function}({', '.join(columns)})" for function, columns in KEYS]


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    with running_servers(tmp_path_factory.mktemp("placement"), SHARDS) as found:
        yield found


@pytest.fixture(scope="module")
def distributing(tmp_path_factory):
    """Run a server that has a cluster of three shards; give its client."""
    config = f"<remote_servers><three>{CLUSTER}</three></remote_servers>"
    folder = tmp_path_factory.mktemp("distributing")
    server = Server(folder, config, allowed_paths=(folder / "data" / "store",))
    server.start()
    yield server.endpoint.get_client()
    server.stop()


def stores(servers, index, *, key="id", fields=("tenant", "id"), types=None):
    """Return the store of each shard, for an index of these columns."""
    source = SourceTable(f"placed{next(NAMES)}.t", key=key, tenant="tenant", indexes=[index])
    found = []
    for shard, each in enumerate(expand_shards(source, len(servers)).indexes):
        shape = IndexTable(source=source, index=each, fields=delta_fields(fields, types))
        store = IndexStore(endpoint=servers[shard].endpoint, shape=shape)
        found.append(store)
    return found


NAMES = iter(range(10**6))


def delta_fields(names, types=None):
    types = {"tenant": "string", "id": "long", "n": "long", **(types or {})}
    return [DeltaField(name=name, type=parse_type(types[name])) for name in names]


def made(found):
    for store in found:
        store.ensure()
        store.ensure_views()
    return found


def typed(columns, count, seed=0):
    """Make rows with random values of the columns' types."""
    picked = random.Random(seed)
    values = {name: [picked.choice(TYPES[name][2]) for _ in range(count)] for name in columns}
    arrow = {"byte": pa.int8(), "integer": pa.int32(), "long": pa.int64(), "string": pa.string()}
    arrays = {
        name: pa.array(values[name], pa.string()).cast(pa.date32())
        if TYPES[name][0] == "date"
        else pa.array(values[name], arrow[TYPES[name][0]])
        for name in columns
    }
    return pa.table({**arrays, "n": pa.array(range(count), pa.int64())})


def placements(servers, function, columns):
    kept = {name: TYPES[name][1] for name in columns if TYPES[name][1]}
    index = Mirror(sharding={"hash_function": function, "key": columns}, types=kept)
    delta = {name: TYPES[name][0] for name in columns}
    found = stores(servers, index, key=columns, fields=("tenant", *columns), types=delta)
    return [store.placement for store in found]


def distributed(client, placement, rows):
    """Return the `n` of the rows on each shard, as a real Distributed table places them."""
    table, columns = f"d{next(NAMES)}", list(placement.stored_types)
    types = [str(placement.stored_types[each].type) for each in columns]
    declared = ", ".join(
        f"`{c}` {t}" for c, t in zip([*columns, "n"], [*types, "Int64"], strict=True)
    )
    called = f"{placement.sharding.hash_function}({', '.join(columns)})"
    settings = {"allow_suspicious_low_cardinality_types": 1}
    engine = f"Distributed(three, default, nowhere, {called})"
    client.command(f"CREATE TABLE {table} ({declared}) ENGINE = {engine}", settings=settings)
    client.command(f"SYSTEM STOP DISTRIBUTED SENDS {table}")
    client.command(
        f"INSERT INTO {table} SELECT * FROM sent",
        external_data=build_external_data("sent", rows, [*types, "Int64"]),
        settings={"distributed_foreground_insert": 0, **settings},
    )
    paths = client.query(f"SELECT data_paths[1] FROM system.tables WHERE name = '{table}'")
    ((path,),) = paths.result_rows
    waiting = client.query(
        f"SELECT {', '.join(columns)}, n, toUInt32(extract(_path, 'shard([0-9]+)_')) - 1 AS shard "
        f"FROM file('{path}*/*.bin', 'Distributed')"
    )
    found = {shard: [] for shard in range(SHARDS)}
    for *_, n, shard in waiting.result_rows:
        found[shard].append(n)
    client.command(f"DROP TABLE {table} SYNC")
    return {shard: sorted(numbers) for shard, numbers in found.items()}


@pytest.mark.parametrize(("function", "columns"), KEYS, ids=IDS)
def test_rows_are_where_a_distributed_table_puts_them(servers, distributing, function, columns):
    rows = typed(columns, 300)
    found = placements(servers, function, columns)
    mine = {shard: each.select_rows(rows)["n"].to_pylist() for shard, each in enumerate(found)}
    assert mine == distributed(distributing, found[0], sent_as_kept(found[0], rows))
    assert sum(map(len, mine.values())) == 300
    if len(set(map(tuple, rows.select(columns).to_pylist()))) > 30:
        assert all(mine.values())


def test_a_distributed_table_stands_over_the_views(distributing):
    """Follows docs/shards.md; the cluster's servers do not exist, so nothing is read."""
    distributing.command("CREATE DATABASE shop")
    distributing.command("CREATE TABLE shop.rows (id Int64, s String) ENGINE = Memory")
    distributing.command("CREATE VIEW shop.tickets_mirror AS SELECT * FROM shop.rows")
    distributing.command(
        "CREATE TABLE shop.tickets_all AS shop.tickets_mirror "
        "ENGINE = Distributed(three, shop, tickets_mirror, cityHash64(id))"
    )
    columns = distributing.query(
        "SELECT name FROM system.columns WHERE table = 'tickets_all' ORDER BY position"
    )
    assert columns.result_rows == [("id",), ("s",)]


def sent_as_kept(placement, rows):
    from iscp_dagster.clickhouse.types.wire import encode_column

    for name, kept in placement.stored_types.items():
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, name, encode_column(rows[name], kept))
    return rows


@pytest.mark.parametrize("function", sorted(FUNCTIONS))
def test_each_shard_says_of_its_rows_what_the_expression_says(servers, function):
    column = "id" if function.startswith("intHash") else "word"
    index = Mirror(sharding={"hash_function": function, "key": [column]})
    fields, types = ("tenant", "id", "word"), {"word": "string"}
    found = made(stores(servers, index, key=["id", "word"], fields=fields, types=types))
    table = rows(range(200)).append_column("word", pa.array([f"w{n}" for n in range(200)]))
    for store in found:
        (receipt,) = write(store, table, rows_per_chunk=64)
        assert receipt.code == 0, receipt.message
    held = []
    for shard, store in enumerate(found):
        client, view = store.endpoint.get_client(), store.shape.qualify_name(store.shape.view)
        hashed = render_hash(store.placement.sharding, [column])
        strange = client.query(f"SELECT count() FROM {view} WHERE {hashed} % {SHARDS} != {shard}")
        assert strange.result_rows == [(0,)]
        held += [id_ for (id_,) in client.query(f"SELECT id FROM {view}").result_rows]
    assert sorted(held) == list(range(200))


def rows(ids, *, version=1, deleted=(), tenant="a", **columns):
    ids = list(ids)
    return pa.table(
        {
            "tenant": pa.array([tenant] * len(ids), pa.string()),
            "id": pa.array(ids, pa.int64()),
            **{name: pa.array(values) for name, values in columns.items()},
            "_version": pa.array([version] * len(ids), pa.int64()),
            "_timestamp": pa.array([1_700_000_000_000_000] * len(ids), pa.int64()),
            "_deleted": pa.array([id_ in deleted for id_ in ids], pa.bool_()),
        }
    )


BY_ID = {"hash_function": "cityHash64", "key": ["id"]}


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ids=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=60, unique=True),
    cut=st.integers(1, 60),
    seed=st.integers(),
)
def test_placement_knows_neither_order_nor_chunks(servers, ids, cut, seed):
    found = [store.placement for store in stores(servers, Mirror(sharding=BY_ID))]
    whole = [set(each.select_rows(rows(ids))["id"].to_pylist()) for each in found]
    mixed = random.Random(seed).sample(ids, len(ids))
    pieces = [mixed[at : at + cut] for at in range(0, len(mixed), cut)]
    for each, mine in zip(found, whole, strict=True):
        # Rows keep the order of their arrival.
        kept = [each.select_rows(rows(piece))["id"].to_pylist() for piece in pieces]
        assert kept == [[id_ for id_ in piece if id_ in mine] for piece in pieces]
    assert set.union(*whole) == set(ids)
    assert sum(map(len, whole)) == len(ids)


def test_a_row_without_a_hash_is_the_first_shards(servers):
    index = Mirror(sharding=BY_ID, types={"id": "UInt16"}, errors="dead_letter")
    found = made(stores(servers, index))
    table = rows([1, 2, 70_000, 3, -1])
    table = pa.concat_tables(
        [table, table.slice(0, 1).set_column(1, "id", pa.nulls(1, pa.int64()))]
    )
    receipts = [write(store, table) for store in found]
    assert [r.code for each in receipts for r in each] == [0] * sum(map(len, receipts))
    letters = [letters_of(store) for store in found]
    assert [len(each) for each in letters] == [3, 0, 0]
    assert {each.code for each in letters[0]} == {SchemaError.code, KeyColumnError.code}
    assert sum(r.inserted for each in receipts for r in each) == 3


def test_rows_without_a_key_lie_where_any_of_their_columns_says(servers):
    """One tenant's rows are spread too; a row with a null lies on the first shard."""
    index = Mirror(sharding={"hash_function": "cityHash64", "key": ["n"]}, append=True)
    found = made(stores(servers, index, key=(), fields=("tenant", "id", "n")))
    numbers = [None if id_ % 10 == 0 else id_ for id_ in range(60)]
    table = rows(range(60), n=numbers)
    for store in found:
        assert {receipt.code for receipt in write(store, table)} == {0}
    held = []
    for shard, store in enumerate(found):
        query = f"SELECT id, n FROM {store.shape.qualify_name(store.shape.rows)}"
        its = store.endpoint.get_client().query(query).result_rows
        wrong = f"assumeNotNull(cityHash64(assumeNotNull(n)) % {SHARDS}) != {shard}"
        name = store.shape.qualify_name(store.shape.rows)
        count = f"SELECT count() FROM {name} WHERE n IS NOT NULL AND "
        assert store.endpoint.get_client().query(count + wrong).first_row == (0,)
        assert shard == 0 or all(n is not None for _, n in its)
        held += its
    assert len(found) == SHARDS
    assert sorted(id_ for id_, _ in held) == list(range(60))


def letters_of(store):
    database = store.shape.database
    return DeadLetters(endpoint=store.endpoint, database=database).list_letters()


def test_a_row_that_does_not_fit_stops_its_own_shard_alone(servers):
    index = Mirror(sharding=BY_ID, types={"n": "UInt8"})
    found = made(stores(servers, index, fields=("tenant", "id", "n")))
    table = rows(range(30), n=[300 if id_ == 7 else 1 for id_ in range(30)])
    codes = [write(store, table)[0].code for store in found]
    (stopped,) = [shard for shard, code in enumerate(codes) if code]
    assert found[stopped].placement.select_rows(rows([7])).num_rows == 1


def test_only_a_shards_own_rows_are_counted_and_their_deletes(servers):
    found = made(stores(servers, Mirror(sharding=BY_ID)))
    first = [write(store, rows(range(90)))[0] for store in found]
    gone = rows(range(0, 90, 3), version=2, deleted=range(90))
    second = [write(store, gone, since=1, upto=2)[0] for store in found]
    counted = Counter()
    for store, before, after in zip(found, first, second, strict=True):
        held = count(store, "a")
        assert before.inserted - after.deleted == held
        counted.update(inserted=before.inserted, deleted=after.deleted, count=held)
    assert counted == {"inserted": 90, "deleted": 30, "count": 60}


def test_a_chunk_without_a_row_of_the_shard_is_no_chunk(servers):
    found = made(stores(servers, Mirror(sharding=BY_ID)))
    receipts = [write(store, rows([5]), rows_per_chunk=1) for store in found]
    assert sorted(len(each) for each in receipts) == [0, 0, 1]


def test_a_replay_sends_the_same_chunks_under_the_same_tokens(servers):
    found = made(stores(servers, Mirror(sharding=BY_ID)))
    for store in found:
        for _ in range(2):
            write(store, rows(range(200)), rows_per_chunk=30)
        query = f"SELECT count(), uniqExact(id) FROM {store.shape.qualify_name(store.shape.rows)}"
        (counts,) = store.endpoint.get_client().query(query).result_rows
        # Without FINAL: the repeated chunk was dropped by its token.
        assert counts[0] == counts[1]


def test_each_shard_is_asked_for_the_keys_that_it_served(servers):
    from iscp_dagster.clickhouse.write.ambiguous_changes import FRESH

    found = made(stores(servers, Mirror(sharding=BY_ID)))
    for store in found:
        write(store, rows(range(20)))
    fresh = rows(range(19, 25), version=2)
    fresh = fresh.append_column(FRESH, pa.array([True] * 6))
    both = [shipped(store, since=1, upto=2) for store in found]
    with pytest.raises(FeedGoneError, match="'id': 19"):
        TaskWriter(shares=both, keys=("id",), sleep=lambda _: None)(0, fresh.to_batches())
    receipts = TaskWriter(shares=both, keys=("id",), sleep=lambda _: None)(
        0, fresh.slice(1).to_batches()
    )
    assert sum(each.inserted for each in receipts) == 5


def test_a_shard_that_is_down_fails_alone(servers, tmp_path):
    found = made(stores(servers, Mirror(sharding=BY_ID)))
    nowhere = Server(tmp_path).endpoint
    down = IndexStore(endpoint=nowhere, shape=found[1].shape)
    both = [shipped(each) for each in found]
    gone = replace(both[1].consumer, endpoint=nowhere, placement=down.placement)
    both[1] = replace(both[1], consumer=gone)
    receipts = TaskWriter(shares=both, keys=("id",), sleep=lambda _: None)(
        0, rows(range(50)).to_batches()
    )
    codes = {each.target: each.code for each in receipts}
    assert codes[both[1].name] == UnavailableError.code
    assert {codes[both[0].name], codes[both[2].name]} == {0}


def test_a_function_that_does_not_take_the_key_stops_the_job_by_name(servers):
    index = Mirror(sharding={"hash_function": "CRC32", "key": ["id"]})
    found = made(stores(servers, index))
    (receipt,) = write(found[0], rows(range(3)))
    assert receipt.code == ClickHouseError.code
    assert f"place rows of {found[0].shape.source.name}/mirror_shard_0" in receipt.message
    assert "Illegal type Int64 of argument of function CRC32" in receipt.message


def test_floats_do_not_say_where_a_row_is(servers):
    index = Mirror(sharding={"hash_function": "cityHash64", "key": ["f"]})
    found = stores(servers, index, key="f", fields=("tenant", "f"), types={"f": "double"})
    with pytest.raises(SchemaError, match="0 and -0 are one key with two hashes"):
        found[0].ensure()


def test_an_index_that_is_spread_otherwise_is_refused_with_the_remedy(servers):
    found = made(stores(servers, Mirror(sharding=BY_ID)))
    shape = found[0].shape
    two = expand_shards(shape.source, 2).indexes[0]
    otherwise = IndexTable(source=shape.source, index=two, fields=shape.fields)
    with pytest.raises(SchemaError, match=r"sharding was .*: 3.* is .*: 2.*job rebuild"):
        IndexStore(endpoint=found[0].endpoint, shape=otherwise).ensure()


def test_servers_that_are_named_in_another_order_are_refused(servers):
    first, second, _ = made(stores(servers, Mirror(sharding=BY_ID)))
    with pytest.raises(SchemaError, match=r"sharding was .*'shard': 0.* is .*'shard': 1"):
        IndexStore(endpoint=first.endpoint, shape=second.shape).ensure()


def test_what_an_earlier_declaration_had_built_more_often_is_refused(servers):
    first, *_ = made(stores(servers, Mirror(sharding=BY_ID)))
    later = IndexStore(endpoint=first.endpoint, shape=replace(first.shape, generation=2))
    later.ensure()
    later.ensure_views()
    with pytest.raises(
        SchemaError, match=r"serves generation 2, but the ISCP log has 0: .*iscp job rebuild"
    ):
        first.ensure()


def test_one_server_is_one_shard_and_asks_nothing(servers):
    (store,) = made(stores(servers[:1], Mirror(sharding=BY_ID)))
    write(store, rows(range(40)))
    assert count(store, "a") == 40
    assert store.shape.view == "t_mirror"
    table = rows(range(3))
    assert store.placement.select_rows(table) is table


def test_a_vector_index_is_placed_too(servers):
    index = Vector("v", dimension=2, sharding=BY_ID)
    types = {"v": {"type": "array", "elementType": "float", "containsNull": True}}
    found = made(stores(servers, index, fields=("tenant", "id", "v"), types=types))
    table = rows(range(60), v=[[1.0, float(n)] for n in range(60)])
    table = table.set_column(2, "v", table["v"].cast(pa.list_(pa.float32())))
    for store in found:
        (receipt,) = write(store, table)
        assert receipt.code == 0, receipt.message
    assert sum(count(store, "a") for store in found) == 60
