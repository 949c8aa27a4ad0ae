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
from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.clickhouse.connect.failures import RefusedRowsError
from iscp_dagster.clickhouse.write.consumer import TooManyRefusedError
from iscp_dagster.clickhouse.write.inserts import ATTEMPTS
from iscp_dagster.clickhouse.write.letters import DeadLetters
from iscp_dagster.model.declared.schema import Array, DeltaField, Primitive, parse_name
from iscp_dagster.model.errors import KeyColumnError, UnavailableError
from support.lake.row_writer import ANYWAY, built, put_in_place, write
from support.services.fault_proxy import LATE

pytestmark = pytest.mark.slow

FIELDS = (
    DeltaField(name="tenant", type=Primitive("string")),
    DeltaField(name="id", type=Primitive("long")),
    DeltaField(name="n", type=Primitive("long")),
    DeltaField(name="v", type=Array(element=Primitive("float"))),
)
NUMBERS = itertools.count()
UUIDS = ["61f0c404-5cb3-11e7-907b-a6006ad3dba0", "61f0c404-5cb3-11e7-907b-a6006ad3dba1"]
STAMP = datetime(2020, 1, 1, 12, tzinfo=timezone.utc)


@pytest.fixture
def make(clickhouse_url):
    """Give a function that makes an index whose `n` must be below 100, in its own database."""

    def build(index, *, key="id", tenant="tenant", fields=FIELDS):
        source = SourceTable(f"dead{next(NUMBERS)}.t", key=key, tenant=tenant, indexes=[index])
        store = built(Endpoint.parse(clickhouse_url), source, index, fields)
        store.endpoint.get_client().command(
            f"ALTER TABLE {store.shape.qualify_name(store.shape.rows)} ADD CONSTRAINT small CHECK "
            "n < 100"
        )
        return store

    return build


def rows(values, *, version=1, tenant="a", deleted=()):
    return pa.table(
        {
            "tenant": pa.array([tenant] * len(values), pa.string()),
            "id": pa.array(list(values), pa.int64()),
            "n": pa.array(list(values.values()), pa.int64()),
            "v": pa.array([[1.0, 0.0]] * len(values), pa.list_(pa.float32())),
            "_version": pa.array([version] * len(values), pa.int64()),
            "_timestamp": pa.array([1_700_000_000_000_000] * len(values), pa.int64()),
            "_deleted": pa.array([id_ in deleted for id_ in values], pa.bool_()),
        }
    )


def served(store):
    query = f"SELECT id, n FROM {store.shape.qualify_name(store.shape.view)} ORDER BY id"
    return dict(store.endpoint.get_client().query(query).result_rows)


def letters(store):
    return DeadLetters(endpoint=store.endpoint, database=store.shape.database)


BURYING = Mirror(errors="dead_letter")


@pytest.fixture
def store(make):
    return make(BURYING)


def test_refused_rows_are_set_aside_and_the_rest_is_delivered(store):
    values = {n: n for n in range(120)}
    (receipt,) = write(store, rows(values | {3: 333}), rows_per_chunk=100_000)
    bad = set(range(100, 120)) | {3}
    assert receipt.code == 0, receipt.message
    assert receipt.inserted == 120 - len(bad)
    assert set(served(store)) == set(range(100)) - {3}
    found = letters(store).list_letters()
    assert {json.loads(each.row)["id"] for each in found} == bad
    first = found[0]
    assert (first.index, first.tenant, first.registration) == (
        store.target(staged=False).name,
        "a",
        7,
    )
    assert (first.from_version, first.to_version, first.version, first.chunk) == (0, 1, 1, 0)
    assert first.code == RefusedRowsError.code
    assert "small" in first.reason
    assert first.timestamp.timestamp() == 1_700_000_000


def test_a_replay_sets_the_same_rows_aside_once(store):
    for _ in range(2):
        (receipt,) = write(store, rows({1: 1, 2: 200, 3: 3}))
        assert receipt.inserted == 2
    assert [json.loads(each.row)["id"] for each in letters(store).list_letters()] == [2]
    assert served(store) == {1: 1, 3: 3}


def test_no_older_row_is_served_for_one_that_is_set_aside(store):
    write(store, rows({1: 1, 2: 2}))
    write(store, rows({2: 200}, version=2), since=1, upto=2)
    assert served(store) == {1: 1}
    # A deleted row is not served either, even if the delete cannot be written.
    write(store, rows({1: 500}, version=3, deleted={1}), since=2, upto=3)
    assert served(store) == {}
    assert [(each.version, each.deleted) for each in letters(store).list_letters()] == [
        (2, False),
        (3, True),
    ]


def test_of_a_row_that_does_not_fit_the_key_is_hidden_without_passing_over_the_table(make):
    store = make(Mirror(errors="dead_letter", types={"n": "UInt8"}))
    name = store.shape.qualify_name(store.shape.rows)
    store.endpoint.get_client().command(f"ALTER TABLE {name} DROP CONSTRAINT small")
    write(store, rows({1: 1, 2: 2}))
    write(store, rows({2: 300, 3: 300}, version=2), since=1, upto=2)
    assert served(store) == {1: 1}
    query = "SELECT table, command FROM system.mutations WHERE database = {db:String}"
    asked = {"db": store.shape.database}
    assert store.endpoint.get_client().query(query, asked).result_rows == []
    # What is written later under the same version counts, as in a replay of the letter.
    write(store, rows({2: 5}, version=2), since=1, upto=2)
    assert served(store) == {1: 1, 2: 5}
    write(store, rows({2: 6, 3: 7}, version=3), since=2, upto=3)
    assert served(store) == {1: 1, 2: 6, 3: 7}


@pytest.mark.parametrize(
    ("kind", "asked", "values"),
    [
        (
            "string",
            "UUID",
            UUIDS,
        ),
        ("string", "LowCardinality(String)", ["it's \\ `odd`", "\n"]),
        ("string", "IPv4", ["1.2.3.4", "1.2.3.5"]),
        ("date", "Date", [date(2020, 1, 1), date(2020, 1, 2)]),
        ("date", "Int32", [date(2020, 1, 1), date(9999, 1, 2)]),
        ("timestamp", "DateTime64(6, 'UTC')", [STAMP, STAMP.replace(microsecond=1)]),
        ("decimal(9,2)", None, [Decimal("1.20"), Decimal("-1.20")]),
        ("boolean", None, [True, False]),
    ],
)
def test_a_key_of_any_type_is_not_served_on(make, kind, asked, values):
    fields = [
        DeltaField(name="k", type=parse_name(kind)),
        DeltaField(name="n", type=Primitive("long")),
    ]
    types = {"k": asked} if asked else {}
    store = make(Mirror(errors="dead_letter", types=types), key="k", tenant=None, fields=fields)
    for version, n in ((1, 1), (2, 200)):
        table = pa.table({"k": values if version == 1 else values[:1]})
        names = {"n": n, "_version": version, "_timestamp": 0, "_deleted": False}
        for name, value in names.items():
            table = table.append_column(name, pa.array([value] * table.num_rows))
        (receipt, *_) = [*write(store, table, since=version - 1, upto=version), None]
        assert receipt is None or receipt.code == 0, receipt.message
    query = f"SELECT n FROM {store.shape.qualify_name(store.shape.view)}"
    assert store.endpoint.get_client().query(query).result_rows == [(1,)]


def test_a_vector_index_serves_no_older_vector_either(make):
    store = make(Vector("v", dimension=2, errors="dead_letter"))
    write(store, rows({1: 1, 2: 2}))
    (receipt,) = write(store, rows({2: 200, 3: 3}, version=2), since=1, upto=2)
    assert (receipt.code, receipt.inserted) == (0, 1), receipt.message
    assert served(store) == {1: 1, 3: 3}


def test_rows_that_are_alike_are_set_aside_each(make):
    store = make(Mirror(append=True, errors="dead_letter"), key=())
    two = pa.concat_tables([rows({1: 200}), rows({1: 200}), rows({2: 2})])
    (receipt,) = write(store, two)
    assert receipt.inserted == 1
    assert [json.loads(each.row)["id"] for each in letters(store).list_letters()] == [1, 1]


def test_pieces_of_a_chunk_that_are_alike_are_all_written(make):
    store = make(Mirror(append=True, errors="dead_letter"), key=())
    alike = [200, 5, 5, 5, 5, 5, 5, 300]
    table = pa.concat_tables([rows({1: n}) for n in alike])
    for _ in range(2):
        (receipt,) = write(store, table)
        assert receipt.inserted == 6
        assert list(served(store).values()) == [5]
        name = store.shape.qualify_name(store.shape.rows)
        assert store.endpoint.get_client().query(f"SELECT count() FROM {name}").result_rows == [
            (6,)
        ]
    assert len(letters(store).list_letters()) == 2


def test_rows_that_are_alike_in_two_chunks_are_set_aside_each(make):
    store = make(Mirror(append=True, errors="dead_letter"), key=())
    write(store, pa.concat_tables([rows({1: 200})] * 3), rows_per_chunk=2)
    assert len(letters(store).list_letters()) == 3


def test_a_row_of_bytes_that_are_not_utf_8_is_set_aside_too(make):
    fields = [*FIELDS, DeltaField(name="s", type=Primitive("string"))]
    store = make(BURYING, fields=fields)
    odd = pa.array([b"\xff"], pa.binary()).view(pa.string())
    write(store, rows({1: 200}).append_column("s", odd))
    (letter,) = letters(store).list_letters()
    assert "ff" in letter.row.lower()


def test_a_row_without_a_key_is_set_aside_too(store):
    null = rows({0: 5})
    null = null.set_column(1, "id", pa.array([None], pa.int64()))
    (receipt,) = write(store, pa.concat_tables([rows({1: 1}), null]))
    assert receipt.inserted == 1
    (letter,) = letters(store).list_letters()
    assert letter.code == KeyColumnError.code


def test_without_dead_letters_the_row_is_named_and_the_job_stops(make):
    store = make(Mirror())
    (receipt,) = write(store, rows({n: n for n in range(90)} | {77: 200}))
    assert receipt.code == RefusedRowsError.code
    assert "row {'id': 77} is refused" in receipt.message
    assert letters(store).list_letters() == []


def test_so_many_that_nobody_could_look_at_them_stop_the_job(store, monkeypatch):
    monkeypatch.setattr("iscp_dagster.clickhouse.write.consumer.MOST_REFUSED", 3)
    (receipt,) = write(store, rows(dict.fromkeys(range(4), 200)), rows_per_chunk=100)
    assert receipt.code == TooManyRefusedError.code
    assert "More than 3 rows of one chunk were refused" in receipt.message


def test_letters_are_found_by_index_tenant_and_the_beginning_of_an_id_and_dropped(store):
    write(store, rows({1: 200, 2: 200}))
    write(store, rows({1: 200}, tenant="b", version=2), since=1, upto=2)
    kept = letters(store)
    assert len(kept.list_letters(tenant="a")) == 2
    assert kept.list_letters(index="other.t/mirror") == []
    (last,) = kept.list_letters(tenant="b")
    assert kept.list_letters(ids=[last.id[:8]]) == [last]
    (row,) = kept.read_rows([last])
    assert row.to_pylist()[0]["n"] == 200
    kept.drop([last])
    assert kept.list_letters(tenant="b") == []
    target = store.target(staged=False)
    kept.drop_staged(target, {"a": 7}, version=1)
    kept.drop_older(target, {"a": 8}, version=1)
    # The letters have later epochs than this store.
    assert len(kept.list_letters()) == 2
    target = store.enter().target(staged=False)
    kept.drop_staged(target, {"b": 7}, version=1)
    kept.drop_staged(target, {"a": 8}, version=1)
    kept.drop_older(target, {"a": 7}, version=1)
    assert len(kept.list_letters()) == 2
    kept.drop_older(target, {"a": 8}, version=1)
    assert kept.list_letters() == []


def test_a_tenant_that_is_built_anew_has_no_older_letters(store):
    write(store, rows({1: 200, 2: 2}))
    store = store.enter()
    store.stage()
    staged = store.target(staged=True)
    store.endpoint.get_client().insert_arrow(
        staged.table,
        rows({1: 1, 2: 2}, version=4).set_column(
            5, "_timestamp", pa.array([0, 0], pa.timestamp("us", tz="UTC"))
        ),
        database=staged.database,
        settings=ANYWAY,
    )
    put_in_place(store, "a", rows=2, version=4, registration=7)
    assert served(store) == {1: 1, 2: 2}
    assert letters(store).list_letters() == []


def behind(store, proxy):
    """Return the store of a run that goes through the proxy."""
    return replace(store, endpoint=Endpoint.parse(proxy.url))


@contextmanager
def letters_held(proxy, times=ATTEMPTS):
    proxy.coming_to["iscp_dead_letters"] = [LATE] * times
    try:
        yield
    finally:
        proxy.coming_to.clear()


def built_anew(store, table, *, version):
    """Put a snapshot in place, as a run does."""
    heir = store.take_over({"a"}, list)
    heir = replace(heir, attempt=f"r00000000_{next(NUMBERS):08x}")
    heir.clear_letters({"a": 7}, version=version)
    heir.stage()
    (receipt,) = write(heir, table, staged=True, upto=version)
    assert receipt.code == 0, receipt.message
    put_in_place(heir, "a", rows=receipt.inserted, version=version, registration=7)
    heir.drop_staging_table()


def test_a_letter_that_lands_after_its_tenant_was_built_anew_is_kept_out(store, proxy):
    """Its replay would bring back rows deleted since, or double existing rows."""
    with letters_held(proxy):
        (receipt,) = write(behind(store, proxy), rows({1: 200, 2: 2}))
    assert receipt.code == UnavailableError.code
    built_anew(store, rows({2: 2}, version=4), version=4)
    said = proxy.land()
    assert len(said) == ATTEMPTS
    assert all("iscp_barrier_" in each for each in said), said
    assert letters(store).list_letters() == []


def test_a_letter_that_lands_after_its_heirs_was_dropped_does_not_come_back(store, proxy):
    with letters_held(proxy):
        write(behind(store, proxy), rows({1: 200}))
    store.take_over({"a"}, list)
    write(store, rows({1: 200}))
    letters(store).drop(letters(store).list_letters())
    assert all("iscp_barrier_" in each for each in proxy.land())
    assert letters(store).list_letters() == []


DROPS = {
    "before a build": lambda store: store.clear_letters({"a": 7}, version=4),
    "after a build": lambda store: letters(store).drop_older(
        store.target(staged=False), {"a": 6}, version=3
    ),
    "by hand": lambda store: letters(store).drop(letters(store).list_letters()),
    "with the job": lambda store: letters(store).drop_tenants(
        store.target(staged=False).name, ["a"]
    ),
}


@pytest.mark.parametrize("what", DROPS)
def test_what_drops_letters_drops_none_that_came_after_it(store, proxy, what):
    """A row whose letter is dropped would be lost."""
    write(store, rows({1: 200}, version=4), upto=4)
    proxy.late_statements.append("DELETE WHERE")
    try:
        with pytest.raises(UnavailableError):
            DROPS[what](behind(store, proxy).enter())
    finally:
        proxy.late_statements.clear()
    built_anew(store, rows({1: 200, 2: 2}, version=4), version=4)
    (letter,) = letters(store).list_letters()
    proxy.land()
    assert letters(store).list_letters() == [letter]
