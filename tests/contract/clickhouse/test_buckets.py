"""Tenants that share partitions, held against tenants with partitions of their own."""

from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_index_tables import FIELDS, read_view, rows

from iscp_dagster import FullText, Mirror, Vector
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.connect.failures import ClickHouseError
from iscp_dagster.clickhouse.connect.quoting import quote_string
from iscp_dagster.clickhouse.tables.buckets import compute_bucket
from iscp_dagster.clickhouse.tables.staging import make_attempt_id
from iscp_dagster.model.errors import FeedGoneError, SchemaError, UnavailableError
from support.errors import raises_naming
from support.lake.row_writer import (
    build_store,
    count_stored,
    make_source,
    put_in_place,
    query,
    write,
)
from support.services.fault_proxy import faulty

TENANTS = ["a", "b", "c", "it's"]
NAMES = ["", "ü", "a longer name of a tenant", "x" * 100]


def make_store(endpoint, *, buckets=2, index=None, **shape):
    source = make_source("contract", buckets=buckets)
    return build_store(endpoint, source, index or Mirror(), FIELDS, **shape)


@pytest.fixture
def store(endpoint):
    return make_store(endpoint)


def build(store, contents, *, version, publish=None, run="run"):
    """Stage these ids of each tenant, and publish the tenants named, by default all."""
    store = replace(store.refresh_epochs(), attempt=make_attempt_id(run))
    store.create_staging_table()
    staged = [rows(ids, tenant=tenant, version=version) for tenant, ids in contents.items()]
    write(store, pa.concat_tables(staged), staged=True, upto=version)
    for tenant in contents if publish is None else publish:
        put_in_place(store, tenant, rows=len(contents[tenant]), version=version)
    return store


def read_ids(store, tenant):
    return [id_ for name, id_, _ in read_view(store) if name == tenant]


def list_partitions(store):
    return {id_ for (id_,) in query(store, "SELECT DISTINCT _partition_id FROM {rows}")}


def test_tenants_share_the_partition_of_their_hash(store):
    for tenant in TENANTS:
        write(store, rows([1, 2], tenant=tenant))
    placed = query(store, "SELECT DISTINCT tenant, _bucket, cityHash64(tenant) % 2 FROM {rows}")
    assert sorted(tenant for tenant, *_ in placed) == TENANTS
    assert all(bucket == hashed for _, bucket, hashed in placed)
    # Dagster computes it without ClickHouse.
    assert {tenant: compute_bucket(tenant, 2) for tenant in TENANTS} == {
        tenant: bucket for tenant, bucket, _ in placed
    }
    for name in NAMES:
        asked = f"SELECT cityHash64({quote_string(name)}) % 1024"
        assert query(store, asked) == [(compute_bucket(name, 1024),)]
    assert list_partitions(store) == {str(bucket) for _, bucket, _ in placed}
    columns = query(store, "DESCRIBE TABLE {view}")
    assert [name for name, *_ in columns] == ["tenant", "id", "body", "v"]


def test_a_rebuilt_tenant_has_the_staged_rows_only_and_others_stay(store):
    for tenant in TENANTS:
        write(store, rows([1, 2, 3], tenant=tenant))
    store = build(store, {"a": [2, 9]}, version=5)
    for _ in range(2):
        assert read_ids(store, "a") == [2, 9]
        assert [read_ids(store, tenant) for tenant in TENANTS[1:]] == [[1, 2, 3]] * 3
        # It is found in place, though older rows are still stored.
        assert store.find_replaced_tenants(["a", "b"], 4) == {"a"}
        assert count_stored(store) > len(read_view(store))
        # A publication that is repeated changes nothing.
        put_in_place(store, "a", rows=2, version=5)
    write(store, rows([2], version=6, deleted=True), since=5, upto=6)
    assert read_ids(store, "a") == [9]
    build(store, {"a": []}, version=7)
    assert read_ids(store, "a") == []
    write(store, rows([2], version=8), since=7, upto=8)
    assert read_ids(store, "a") == [2]


def test_only_the_tenants_named_are_published_also_twice(store):
    write(store, rows([7], tenant="b"))
    store = build(store, {"a": [1], "b": [2], "c": [3]}, version=4, publish=["a", "c"] * 2)
    assert read_view(store) == [
        ("a", 1, "some words"),
        ("b", 7, "some words"),
        ("c", 3, "some words"),
    ]
    assert store.data.list_staging_tables() == [store.staging]


def test_a_build_cannot_replace_rows_of_a_later_version(store):
    write(store, rows([1], version=9), upto=9)
    with raises_naming(SchemaError, f"{store.shape.source.name}/mirror", "'a'", "9", "3"):
        build(store, {"a": [1]}, version=3)
    assert read_ids(store, "a") == [1]


def test_a_tenant_that_is_dropped_is_gone_and_can_come_back(store):
    for tenant in TENANTS:
        write(store, rows([1, 2], tenant=tenant))
    for _ in range(2):
        store.data.drop_tenants("tenant", ["it's", "nobody"])
    assert {tenant for tenant, *_ in read_view(store)} == set(TENANTS) - {"it's"}
    build(store, {"it's": [2]}, version=1)
    assert read_ids(store, "it's") == [2]
    assert len(store.data.list_staging_tables()) == 1


@pytest.mark.parametrize(
    ("buckets", "late"),
    [(2, ["ATTACH PARTITION"]), (None, ["DROP PARTITION", "REPLACE PARTITION"])],
)
def test_what_was_built_before_the_drop_of_a_tenant_lands_stays(
    endpoint, clickhouse_url, buckets, late
):
    store = make_store(endpoint, buckets=buckets)
    write(store, rows([1, 2]))
    with faulty(clickhouse_url) as proxy:
        proxy.late_statements[:] = late
        behind = replace(store.data, endpoint=ClickHouseEndpoint.parse(proxy.url))
        with pytest.raises(UnavailableError):
            behind.drop_tenants("tenant", ["a"])
        write(store, rows([3]))
        assert len(proxy.land()) == 1
    assert read_ids(store, "a") == [1, 2, 3]
    assert store.data.list_staging_tables() == []


def test_a_run_that_was_overtaken_publishes_nothing_and_one_beside_is_not_disturbed(store):
    write(store, rows([1]))
    zombie = build(store, {"a": [5], "b": [6]}, version=2, publish=[], run="zombie")
    beside = build(store, {"b": [7]}, version=2, publish=[], run="beside")
    store.take_over({"a"}, lambda: ["zombie", "beside"])
    with pytest.raises(ClickHouseError):
        put_in_place(zombie, "b", rows=1, version=2)
    assert read_view(store) == [("a", 1, "some words")]
    put_in_place(beside, "b", rows=1, version=2)
    assert read_ids(store, "b") == [7]


def test_rebuilding_often_adds_no_partition(store):
    for version in range(1, 12):
        tenant = TENANTS[version % 4]
        build(store, {tenant: range(version % 3)}, version=version)
    assert list_partitions(store) <= {"0", "1"}
    assert Counter(tenant for tenant, *_ in read_view(store)) == {
        TENANTS[version % 4]: version % 3 for version in range(8, 12) if version % 3
    }


@pytest.mark.parametrize(
    "index", [FullText("body"), Vector("v", dimension=2)], ids=lambda index: index.name
)
def test_every_kind_serves_the_tenants_of_a_bucket(endpoint, index):
    store = make_store(endpoint, buckets=1, index=index)
    build(store, {"a": [1, 2], "b": [3]}, version=3)
    build(store, {"a": [2]}, version=4)
    assert query(store, "SELECT tenant, id FROM {view} ORDER BY ALL") == [("a", 2), ("b", 3)]


def test_a_graph_of_many_tenants_is_not_made(endpoint):
    store = make_store(endpoint, index=Vector("v", dimension=2))
    name = {"table": store.shape.rows}
    indexes = "SELECT count() FROM system.data_skipping_indices WHERE table = {table:String}"
    assert query(store, indexes, **name) == [(0,)]
    build(store, {tenant: range(3) for tenant in TENANTS}, version=1)
    nearest = store.shape.qualify_name(f"{store.shape.view}_nearest")
    found = query(store, f"SELECT id FROM {nearest}(tenant='b', query=[1, 0], k=10)")
    assert sorted(found) == [(0,), (1,), (2,)]


def test_another_number_of_buckets_needs_a_rebuild(store):
    for buckets in (None, 3):
        other = replace(store.shape.source, buckets=buckets)
        with raises_naming(SchemaError, "buckets", "2", "job rebuild"):
            replace(store, shape=replace(store.shape, source=other)).ensure()


IDS = st.sets(st.integers(0, 5))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("tail"), st.sampled_from(TENANTS), IDS, st.booleans()),
        st.tuples(
            st.just("build"),
            st.dictionaries(st.sampled_from(TENANTS), IDS, min_size=1),
            st.sets(st.sampled_from(TENANTS)),
        ),
        st.tuples(st.just("drop"), st.sampled_from(TENANTS)),
    ),
    min_size=4,
    max_size=10,
)


@settings(max_examples=6)
@given(steps=STEPS)
def test_tenants_read_the_same_in_buckets_as_in_partitions_of_their_own(endpoint, steps):
    stores = [make_store(endpoint, buckets=buckets) for buckets in (2, None)]
    for version, step in enumerate(steps, start=1):
        for store in stores:
            take_step(store, version, *step)
        shared, own = map(read_view, stores)
        assert shared == own


def take_step(store, version, what, *args):
    if what == "tail":
        tenant, ids, deleted = args
        if ids:
            table = rows(sorted(ids), tenant=tenant, version=version, deleted=deleted)
            write(store, table, since=version - 1, upto=version)
    elif what == "build":
        contents, published = args
        contents = {tenant: sorted(ids) for tenant, ids in contents.items()}
        build(store, contents, version=version, publish=published & contents.keys())
    else:
        store.data.drop_tenants("tenant", args)


@pytest.mark.parametrize(("id_", "refused"), [(2, False), (1, True)], ids=["gone", "served"])
def test_a_key_that_a_rebuild_took_away_is_fresh_again(store, id_, refused):
    build(store, {"a": [1, 2]}, version=3)
    store = build(store, {"a": [1]}, version=4)
    table = rows([id_], version=5)
    marked = table.append_column("_fresh", pa.array([True] * table.num_rows))
    if refused:
        with raises_naming(FeedGoneError, store.shape.source.name, str(id_)):
            write(store, marked, since=4, upto=5)
        return
    write(store, marked, since=4, upto=5)
    assert read_ids(store, "a") == [1, 2]
