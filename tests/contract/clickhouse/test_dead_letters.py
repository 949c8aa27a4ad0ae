"""Rows that an index cannot take, on the real engine: each set aside, the rest delivered."""

import itertools
import json
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, datetime, timezone
from decimal import Decimal

import pyarrow as pa
import pytest

from iscp_dagster import Mirror, SourceTable, Vector
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.connect.failures import RefusedRowsError
from iscp_dagster.clickhouse.write.consumer import TooManyRefusedError
from iscp_dagster.clickhouse.write.inserts import ATTEMPTS
from iscp_dagster.clickhouse.write.letters import DeadLetters
from iscp_dagster.model.declared.schema import Array, Primitive
from iscp_dagster.model.errors import KeyColumnError, UnavailableError
from support.errors import assert_names
from support.lake.row_writer import (
    ANYWAY,
    MICROS,
    add_system_columns,
    build_store,
    count_stored,
    make_fields,
    put_in_place,
    query,
    write,
)
from support.services.fault_proxy import LATE

pytestmark = pytest.mark.slow

FIELDS = make_fields(tenant="string", id="long", n="long", v=Array(element=Primitive("float")))
NUMBERS = itertools.count()
UUIDS = ["61f0c404-5cb3-11e7-907b-a6006ad3dba0", "61f0c404-5cb3-11e7-907b-a6006ad3dba1"]
STAMP = datetime(2020, 1, 1, 12, tzinfo=timezone.utc)


@pytest.fixture
def make(endpoint):
    """Give a function that makes an index whose `n` must be below 100, in its own database."""

    def build(index, *, key="id", tenant="tenant", fields=FIELDS):
        source = SourceTable(f"dead{next(NUMBERS)}.t", key=key, tenant=tenant, indexes=[index])
        store = build_store(endpoint, source, index, fields)
        endpoint.get_client().command(
            f"ALTER TABLE {store.shape.qualify_name(store.shape.rows)} ADD CONSTRAINT small CHECK "
            "n < 100"
        )
        return store

    return build


def rows(values, *, version=1, tenant="a", deleted=False):
    """Return a row for each id and its `n`."""
    table = {
        "tenant": pa.array([tenant] * len(values), pa.string()),
        "id": pa.array(list(values), pa.int64()),
        "n": pa.array(list(values.values()), pa.int64()),
        "v": pa.array([[1.0, 0.0]] * len(values), pa.list_(pa.float32())),
    }
    return add_system_columns(table, version=version, deleted=deleted)


def read_view(store):
    """Return the `n` of each id that is served."""
    return dict(query(store, "SELECT id, n FROM {view} ORDER BY id"))


def open_letters(store):
    return DeadLetters(endpoint=store.endpoint, database=store.shape.database)


def list_letters(store):
    return open_letters(store).list_letters()


def list_letter_ids(store):
    """Return the ids of the rows that were set aside."""
    return [json.loads(letter.row)["id"] for letter in list_letters(store)]


@pytest.fixture
def store(make):
    return make(Mirror(errors="dead_letter"))


def test_refused_rows_are_set_aside_and_the_rest_is_delivered(store):
    values = {n: n for n in range(120)}
    (receipt,) = write(store, rows(values | {3: 333}), rows_per_chunk=100_000)
    refused = {3, *range(100, 120)}
    assert receipt.code == 0, receipt.message
    assert receipt.inserted == 120 - len(refused)
    assert set(read_view(store)) == set(values) - refused
    assert set(list_letter_ids(store)) == refused
    first = list_letters(store)[0]
    assert (first.index, first.tenant, first.registration) == (
        store.make_target(staged=False).name,
        "a",
        7,
    )
    assert (first.from_version, first.to_version, first.version, first.chunk) == (0, 1, 1, 0)
    assert first.code == RefusedRowsError.code
    assert_names(first.reason, "small")
    assert first.timestamp.timestamp() == MICROS / 1_000_000


def test_a_replay_sets_the_same_rows_aside_once(store):
    for _ in range(2):
        (receipt,) = write(store, rows({1: 1, 2: 200, 3: 3}))
        assert receipt.inserted == 2
    assert list_letter_ids(store) == [2]
    assert read_view(store) == {1: 1, 3: 3}


def test_no_older_row_is_served_for_one_that_is_set_aside(store):
    write(store, rows({1: 1, 2: 2}))
    write(store, rows({2: 200}, version=2), since=1, upto=2)
    assert read_view(store) == {1: 1}
    # A deleted row is not served either, even if the delete cannot be written.
    write(store, rows({1: 500}, version=3, deleted=True), since=2, upto=3)
    assert read_view(store) == {}
    marks = [(letter.version, letter.deleted) for letter in list_letters(store)]
    assert marks == [(2, False), (3, True)]


def test_the_key_of_a_row_that_does_not_fit_is_hidden_without_passing_over_the_table(make):
    store = make(Mirror(errors="dead_letter", types={"n": "UInt8"}))
    name = store.shape.qualify_name(store.shape.rows)
    store.endpoint.get_client().command(f"ALTER TABLE {name} DROP CONSTRAINT small")
    write(store, rows({1: 1, 2: 2}))
    write(store, rows({2: 300, 3: 300}, version=2), since=1, upto=2)
    assert read_view(store) == {1: 1}
    mutations = "SELECT table, command FROM system.mutations WHERE database = {db:String}"
    assert query(store, mutations, db=store.shape.database) == []
    # What is written later under the same version counts, as in a replay of the letter.
    write(store, rows({2: 5}, version=2), since=1, upto=2)
    assert read_view(store) == {1: 1, 2: 5}
    write(store, rows({2: 6, 3: 7}, version=3), since=2, upto=3)
    assert read_view(store) == {1: 1, 2: 6, 3: 7}


@pytest.mark.parametrize(
    ("kind", "kept", "values"),
    [
        ("string", "UUID", UUIDS),
        ("string", "LowCardinality(String)", ["it's \\ `odd`", "\n"]),
        ("date", "Int32", [date(2020, 1, 1), date(9999, 1, 2)]),
        ("timestamp", "DateTime64(6, 'UTC')", [STAMP, STAMP.replace(microsecond=1)]),
        ("decimal(9,2)", None, [Decimal("1.20"), Decimal("-1.20")]),
    ],
)
def test_a_key_of_any_type_is_not_served_on(make, kind, kept, values):
    fields = make_fields(k=kind, n="long")
    types = {"k": kept} if kept else {}
    store = make(Mirror(errors="dead_letter", types=types), key="k", tenant=None, fields=fields)
    for version, n, keys in ((1, 1, values), (2, 200, values[:1])):
        table = add_system_columns({"k": keys, "n": [n] * len(keys)}, version=version, micros=0)
        receipts = write(store, table, since=version - 1, upto=version)
        assert not any(receipt.code for receipt in receipts), receipts
    assert query(store, "SELECT n FROM {view}") == [(1,)]


def test_a_vector_index_serves_no_older_vector_either(make):
    store = make(Vector("v", dimension=2, errors="dead_letter"))
    write(store, rows({1: 1, 2: 2}))
    (receipt,) = write(store, rows({2: 200, 3: 3}, version=2), since=1, upto=2)
    assert (receipt.code, receipt.inserted) == (0, 1), receipt.message
    assert read_view(store) == {1: 1, 3: 3}


@pytest.mark.parametrize(
    ("values", "rows_per_chunk"),
    [([200, 200, 2], 10), ([200] * 3, 2), ([200, 5, 5, 5, 5, 5, 5, 300], 10)],
    ids=["in one chunk", "in two chunks", "pieces"],
)
def test_rows_that_are_alike_are_written_or_set_aside_each(make, values, rows_per_chunk):
    """Also the pieces that are left of a chunk, under tokens of their own."""
    store = make(Mirror(append=True, errors="dead_letter"), key=())
    table = pa.concat_tables([rows({1: n}) for n in values])
    fitting = [n for n in values if n < 100]
    for _ in range(2):
        receipts = write(store, table, rows_per_chunk=rows_per_chunk)
        assert sum(receipt.inserted for receipt in receipts) == count_stored(store) == len(fitting)
    assert query(store, "SELECT n FROM {view}") == [(n,) for n in fitting]
    assert list_letter_ids(store) == [1] * (len(values) - len(fitting))


def test_a_row_of_odd_bytes_or_without_a_key_is_set_aside_too(make):
    store = make(Mirror(errors="dead_letter"), fields=(*FIELDS, *make_fields(s="string")))
    odd = rows({1: 200}).append_column("s", pa.array([b"\xff"], pa.binary()).view(pa.string()))
    write(store, odd)
    (letter,) = list_letters(store)
    assert "ff" in letter.row.lower()
    both = rows({1: 1, 0: 5}, version=2).append_column("s", pa.array(["x", "y"]))
    keyless = both.set_column(1, "id", pa.array([1, None], pa.int64()))
    (receipt,) = write(store, keyless, since=1, upto=2)
    assert receipt.inserted == 1
    assert {letter.code for letter in list_letters(store)} == {
        RefusedRowsError.code,
        KeyColumnError.code,
    }


def test_without_dead_letters_the_row_is_named_and_the_job_stops(make):
    store = make(Mirror())
    (receipt,) = write(store, rows({n: n for n in range(90)} | {77: 200}))
    assert receipt.code == RefusedRowsError.code
    assert_names(receipt.message, store.make_target(staged=False).name, "{'id': 77}")
    assert list_letters(store) == []


def test_so_many_that_nobody_could_look_at_them_stop_the_job(store, monkeypatch):
    monkeypatch.setattr("iscp_dagster.clickhouse.write.consumer.MOST_REFUSED", 3)
    (receipt,) = write(store, rows(dict.fromkeys(range(4), 200)), rows_per_chunk=100)
    assert receipt.code == TooManyRefusedError.code
    assert_names(receipt.message, 3, "small")


def test_letters_are_found_by_index_tenant_and_the_beginning_of_an_id_and_dropped(store):
    write(store, rows({1: 200, 2: 200}))
    write(store, rows({1: 200}, tenant="b", version=2), since=1, upto=2)
    letters = open_letters(store)
    assert len(letters.list_letters(tenant="a")) == 2
    assert letters.list_letters(index="other.t/mirror") == []
    (last,) = letters.list_letters(tenant="b")
    assert letters.list_letters(ids=[last.id[:8]]) == [last]
    (row,) = letters.read_rows([last])
    assert row.to_pylist()[0]["n"] == 200
    letters.drop([last])
    assert letters.list_letters(tenant="b") == []
    target = store.make_target(staged=False)
    letters.drop_staged(target, {"a": 7}, version=1)
    letters.drop_earlier_builds(target, {"a": 8}, version=1)
    # The letters have later epochs than this store.
    assert len(letters.list_letters()) == 2
    target = store.refresh_epochs().make_target(staged=False)
    letters.drop_staged(target, {"b": 7}, version=1)
    letters.drop_staged(target, {"a": 8}, version=1)
    letters.drop_earlier_builds(target, {"a": 7}, version=1)
    assert len(letters.list_letters()) == 2
    letters.drop_earlier_builds(target, {"a": 8}, version=1)
    assert letters.list_letters() == []


def test_a_tenant_that_is_built_anew_has_no_older_letters(store):
    write(store, rows({1: 200, 2: 2}))
    store = store.refresh_epochs()
    store.create_staging_table()
    staged = store.make_target(staged=True)
    store.endpoint.get_client().insert_arrow(
        staged.table,
        rows({1: 1, 2: 2}, version=4).set_column(
            5, "_timestamp", pa.array([0, 0], pa.timestamp("us", tz="UTC"))
        ),
        database=staged.database,
        settings=ANYWAY,
    )
    put_in_place(store, "a", rows=2, version=4, registration=7)
    assert read_view(store) == {1: 1, 2: 2}
    assert list_letters(store) == []


def go_through(proxy, store):
    """Return the store of a run that goes through the proxy."""
    return replace(store, endpoint=ClickHouseEndpoint.parse(proxy.url))


@contextmanager
def hold_letters(proxy):
    """Have each attempt at writing a letter land later."""
    proxy.coming_to["iscp_dead_letters"] = [LATE] * ATTEMPTS
    try:
        yield
    finally:
        proxy.coming_to.clear()


def build_anew(store, table, *, version):
    """Put a snapshot in place, as a run does."""
    heir = store.take_over({"a"}, list)
    heir = replace(heir, attempt=f"r00000000_{next(NUMBERS):08x}")
    heir.clear_letters({"a": 7}, version=version)
    heir.create_staging_table()
    (receipt,) = write(heir, table, staged=True, upto=version)
    assert receipt.code == 0, receipt.message
    put_in_place(heir, "a", rows=receipt.inserted, version=version, registration=7)
    heir.drop_staging_table()


def test_a_letter_that_lands_after_its_tenant_was_built_anew_is_kept_out(store, proxy):
    """Its replay would bring back rows deleted since, or double existing rows."""
    with hold_letters(proxy):
        (receipt,) = write(go_through(proxy, store), rows({1: 200, 2: 2}))
    assert receipt.code == UnavailableError.code
    build_anew(store, rows({2: 2}, version=4), version=4)
    answers = proxy.land()
    assert len(answers) == ATTEMPTS
    assert all("iscp_barrier_" in answer for answer in answers), answers
    assert list_letters(store) == []


def test_a_letter_that_lands_after_its_heirs_was_dropped_does_not_come_back(store, proxy):
    with hold_letters(proxy):
        write(go_through(proxy, store), rows({1: 200}))
    store.take_over({"a"}, list)
    write(store, rows({1: 200}))
    open_letters(store).drop(list_letters(store))
    assert all("iscp_barrier_" in answer for answer in proxy.land())
    assert list_letters(store) == []


DROPS = {
    "before a build": lambda store: store.clear_letters({"a": 7}, version=4),
    "after a build": lambda store: open_letters(store).drop_earlier_builds(
        store.make_target(staged=False), {"a": 6}, version=3
    ),
    "by hand": lambda store: open_letters(store).drop(list_letters(store)),
    "with the job": lambda store: open_letters(store).drop_tenants(
        store.make_target(staged=False).name, ["a"]
    ),
}


@pytest.mark.parametrize("drop", DROPS.values(), ids=DROPS)
def test_what_drops_letters_drops_none_that_came_after_it(store, proxy, drop):
    """A row whose letter is dropped would be lost."""
    write(store, rows({1: 200}, version=4), upto=4)
    proxy.late_statements.append("DELETE WHERE")
    try:
        with pytest.raises(UnavailableError):
            drop(go_through(proxy, store).refresh_epochs())
    finally:
        proxy.late_statements.clear()
    build_anew(store, rows({1: 200, 2: 2}, version=4), version=4)
    (letter,) = list_letters(store)
    proxy.land()
    assert list_letters(store) == [letter]
