"""Inserts through a network that fails before and after ClickHouse applies them: each row once."""

import itertools
import json
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from pyspark import TaskContext

from iscp_dagster import Mirror, SourceTable
from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.clickhouse.connect.failures import (
    ClickHouseBusyError,
    DoubledRowsError,
    LostRowsError,
    TooManyPartsError,
)
from iscp_dagster.clickhouse.connect.quoting import quote_identifier
from iscp_dagster.clickhouse.tables.ddl import IndexTable
from iscp_dagster.clickhouse.tables.indexes import IndexStore
from iscp_dagster.clickhouse.write.inserts import (
    ATTEMPTS,
    INSERT_SETTINGS,
    UnconfirmedError,
    call_with_retries,
    insert,
)
from iscp_dagster.clickhouse.write.letters import DeadLetters
from iscp_dagster.clickhouse.write.placement import Placement
from iscp_dagster.model.batch import Range
from iscp_dagster.model.declared.schema import DeltaField, Primitive
from iscp_dagster.model.declared.sharding import Sharding
from iscp_dagster.model.errors import IscpError, SchemaError, UnavailableError
from iscp_dagster.model.moment import Moment
from iscp_dagster.sync.executors.rows import IndexRead
from iscp_dagster.sync.executors.writer import TaskWriter, make_scan_task
from support.lake import row_writer
from support.lake.row_writer import check_appended, count
from support.services.fault_proxy import FAULTS

pytestmark = pytest.mark.slow

FIELDS = (
    DeltaField(name="tenant", type=Primitive("string")),
    DeltaField(name="n", type=Primitive("long")),
)
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def make(clickhouse_url, proxy):
    """Give a function that makes an append-only index, where a row written twice is stored twice.

    The index's writer goes through the proxy, and so meets faults.
    """

    def build(*, quorum="", **options):
        index = Mirror(append=True, **options)
        source = SourceTable(f"faults.t{next(NUMBERS)}", tenant="tenant", indexes=[index])
        shape = IndexTable(source=source, index=index, fields=FIELDS)
        IndexStore(endpoint=Endpoint.parse(clickhouse_url), shape=shape).ensure()
        proxy.coming.clear()
        endpoint = Endpoint.parse(proxy.url, query_timeout=1)
        return IndexStore(endpoint=replace(endpoint, insert_quorum=quorum), shape=shape)

    return build


def rows(count):
    return pa.table(
        {
            "tenant": pa.array([f"t{n % 3}" for n in range(count)], pa.string()),
            "n": pa.array(range(count), pa.int64()),
            "_version": pa.array([1] * count, pa.int64()),
            "_timestamp": pa.array([0] * count, pa.int64()),
            "_deleted": pa.array([False] * count, pa.bool_()),
        }
    )


def counted(store, clickhouse_url):
    name = store.shape.qualify_name(store.shape.rows)
    query = f"SELECT count(), uniqExact(n) FROM {name}"
    return Endpoint.parse(clickhouse_url).get_client().query(query).result_rows[0]


@pytest.mark.parametrize("fault", FAULTS)
def test_an_insert_that_fails_is_sent_again_and_stands_there_once(
    make, proxy, clickhouse_url, fault
):
    store = make()
    proxy.coming[:] = [None, fault, None, fault]
    receipts = row_writer.write(store, rows(35))
    assert {each.code for each in receipts} == {0}, receipts
    assert sum(each.inserted for each in receipts) == 35
    assert counted(store, clickhouse_url) == (35, 35)


def staged(store):
    name = store.shape.qualify_name(store.staging)
    return store.endpoint.get_client().query(f"SELECT count() FROM {name}").result_rows[0][0]


def alike(count):
    """Make rows whose chunks have the same content."""
    table = rows(count)
    same = {"tenant": pa.array(["t0"] * count), "n": pa.array([0] * count, pa.int64())}
    for name, values in same.items():
        table = table.set_column(table.column_names.index(name), name, values)
    return table


@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_chunks_of_a_snapshot_that_are_alike_are_all_there(make, proxy, fault):
    store = make()
    for attempt in ("one", "two"):
        store = replace(store, attempt=attempt)
        store.stage()
        proxy.coming[:] = [None, fault, None, fault]
        (receipt,) = row_writer.write(store, alike(35), staged=True)
        assert (receipt.code, receipt.inserted, staged(store)) == (0, 35, 35)
        store.drop_staging_table()


@settings(max_examples=12)
@given(coming=st.lists(st.none() | st.sampled_from([f for f in FAULTS if f != "silent"])))
def test_whatever_fails_and_whoever_writes_again_each_row_is_there_once(
    make, proxy, clickhouse_url, coming
):
    """When a run gives up, another one follows and writes the same chunks."""
    store = make()
    before = len(proxy.injected)
    for faults in (coming, list(reversed(coming)), []):
        proxy.coming[:] = faults
        receipts = row_writer.write(store, rows(25))
        codes = {UnavailableError.code, ClickHouseBusyError.code, UnconfirmedError.code, 0}
        assert {each.code for each in receipts} <= codes, receipts
    assert counted(store, clickhouse_url) == (25, 25)
    event(f"{min(len(proxy.injected) - before, 9)} faults injected")


@contextmanager
def profile(proxy, settings):
    """Let the user's profile have these settings."""
    proxy.profile.update(settings)
    try:
        yield
    finally:
        proxy.profile.clear()


CARELESS = {"insert_deduplicate": "0", "deduplicate_insert": "disable", "async_insert": "1"}


SMALL = {"max_block_size": "2", "preferred_block_size_bytes": "1"}
CUTS = {
    "limit": {"limit": "2"},
    "offset": {"offset": "2"},
    "result": SMALL | {"max_result_rows": "2", "result_overflow_mode": "break"},
    "read": SMALL | {"max_rows_to_read": "2", "read_overflow_mode": "break"},
    "leaf": SMALL | {"max_rows_to_read_leaf": "2", "read_overflow_mode_leaf": "break"},
    "time": SMALL | {"max_execution_time": "0.000001", "timeout_overflow_mode": "break"},
}
"""Settings of a user's profile that silently leave rows out of an answer."""
LIMITS = ("TOO_MANY_ROWS", "TIMEOUT_EXCEEDED")


def reads(store):
    """Return the counts that verify, and Dagster's checks and assets, read."""
    whole = IndexRead(
        endpoint=store.endpoint,
        rows=store.find_read_source(),
        columns=("n",),
        bucket="0",
        tenant="tenant",
        tenants=("t0", "t1", "t2"),
    )
    return (
        lambda: sum(batch.num_rows for batch in whole.read_slice(0)),
        lambda: sum(count(store, tenant) for tenant in ("t0", "t1", "t2")),
        lambda: placed(store),
    )


def answer(count):
    """Return the number of rows, or the limit that the error names."""
    try:
        return count()
    except IscpError as error:
        return next((limit for limit in LIMITS if limit in str(error)), str(error))


def placed(store):
    """Count the rows that belong to either of two shards."""
    by = Sharding(hash_function="cityHash64", key=["n"])
    stored = {"n": store.shape.stored_types["n"]}
    shards = [
        Placement(endpoint=store.endpoint, name="x", sharding=each, stored_types=stored)
        for each in by.make_shards(2)
    ]
    return sum(each.select_rows(rows(35)).num_rows for each in shards)


@pytest.mark.parametrize("cut", CUTS)
def test_a_profile_that_cuts_answers_short_cuts_none_in_silence(make, proxy, cut):
    store = make()
    row_writer.write(store, rows(35))
    counts = reads(store)
    with profile(proxy, CUTS[cut]):
        found = {answer(count) for count in counts}
    # A limit still applies, but reaching it is an error.
    assert found <= ({35} if cut in {"limit", "offset"} else {35, *LIMITS})


def test_a_profile_that_cuts_what_a_client_asks_at_first_leaves_tokens_heeded(make, proxy):
    """One of those answers is the client's list of the settings that the server knows."""
    store = make()
    store = replace(store, endpoint=replace(store.endpoint, query_timeout=2))
    with profile(proxy, CUTS["limit"]):
        receipts = row_writer.write(store, rows(5))
    assert {each.code for each in receipts} == {0}, receipts
    sent = proxy.settings[f"{store.shape.database}.{store.shape.rows}"]
    assert sent["deduplicate_insert"] == "enable"


def test_a_profile_that_forgets_tokens_and_does_not_wait_changes_nothing(
    make, proxy, clickhouse_url
):
    store = make()
    with profile(proxy, CARELESS):
        for _ in range(2):
            receipts = row_writer.write(store, rows(15))
            assert {each.code for each in receipts} == {0}, receipts
        assert counted(store, clickhouse_url) == (15, 15)


@pytest.mark.parametrize("fault", [f for f in FAULTS if f != "silent"])
def test_a_dead_letter_is_promised_like_a_row(make, proxy, clickhouse_url, fault):
    store = make(errors="dead_letter", quorum="1")
    name = store.shape.qualify_name(store.shape.rows)
    direct = Endpoint.parse(clickhouse_url)
    direct.get_client().command(f"ALTER TABLE {name} ADD CONSTRAINT small CHECK n < 10")
    proxy.coming_to["iscp_dead_letters"] = [fault] * 2
    try:
        with profile(proxy, CARELESS):
            receipts = row_writer.write(store, rows(11))
    finally:
        proxy.coming_to.clear()
    assert {each.code for each in receipts} == {0}, receipts
    letters = DeadLetters(endpoint=direct, database=store.shape.database)
    (letter,) = letters.list_letters(index=store.target(staged=False).name)
    assert json.loads(letter.row)["n"] == 10
    sent = [
        proxy.settings[table]
        for table in (
            f"{store.shape.database}.iscp_dead_letters",
            f"{store.shape.database}.{store.shape.rows}",
        )
    ]
    for of_all in (*INSERT_SETTINGS, "insert_quorum", "insert_quorum_parallel"):
        assert sent[0][of_all] == sent[1][of_all], of_all


def test_a_dead_letter_that_was_dropped_may_come_again(make, proxy, clickhouse_url):
    """On replicated tables ClickHouse would drop it if its token were known."""
    store = make(errors="dead_letter")
    endpoint = Endpoint.parse(clickhouse_url)
    letters = DeadLetters(endpoint=endpoint, database=store.shape.database)
    letters.ensure()
    name = f"{store.shape.database}.iscp_dead_letters"
    client = Endpoint.parse(clickhouse_url).get_client()
    client.command(f"ALTER TABLE {name} MODIFY SETTING non_replicated_deduplication_window = 100")
    range_, target = Range(from_=Moment(0), to=Moment(1)), store.enter().target(staged=False)
    for _ in range(2):
        errors = {"a": SchemaError("gone")}
        letters.write_range(target, errors, registrations={"a": 7}, range_=range_)
        found = letters.list_letters(index=target.name)
        assert len(found) == 1
        letters.drop(found)


def test_one_that_goes_on_failing_is_given_up_with_a_temporary_code(make, proxy, clickhouse_url):
    store = make()
    proxy.coming[:] = ["unconfirmed"] * ATTEMPTS
    (receipt,) = row_writer.write(store, rows(5))
    assert receipt.code == UnconfirmedError.code
    assert "5 rows were sent" in receipt.message
    assert "confirms 0" in receipt.message
    assert counted(store, clickhouse_url) == (5, 5)


@pytest.mark.parametrize(
    ("attempt", "fault", "again"), [(0, None, False), (0, "closed after", True), (1, None, True)]
)
def test_receipts_tell_whether_rows_were_sent_more_than_once(
    make, proxy, monkeypatch, attempt, fault, again
):
    """Either we sent them again, or Spark tried the task again."""
    store = make()
    share = row_writer.shipped(store)
    index = replace(share, registrations=dict.fromkeys(["t0", "t1", "t2"], 7))
    task = TaskContext()
    task._partitionId, task._attemptNumber = 0, attempt
    monkeypatch.setattr(TaskContext, "_taskContext", task)
    proxy.coming[:] = [fault]
    (receipts,) = make_scan_task(TaskWriter(shares=[index]))(rows(5).to_batches())
    assert receipts["again"].to_pylist() == [again] * 3


@pytest.mark.parametrize(("refusals", "waited"), [(7, 63.5), (8, None)])
def test_too_many_parts_are_waited_out_for_a_minute(refusals, waited):
    waits, answers = [], iter([TooManyPartsError("merge first")] * refusals + [None])

    def ask():
        if (error := next(answers)) is not None:
            raise error

    if waited is None:
        with pytest.raises(TooManyPartsError):
            call_with_retries(ask, waits.append)
        return
    call_with_retries(ask, waits.append)
    assert sum(waits) == waited


def test_what_stands_there_is_counted_before_the_watermark_moves(make, clickhouse_url):
    store = replace(make(), endpoint=Endpoint.parse(clickhouse_url))
    row_writer.write(store, rows(9))
    range_ = Range(from_=Moment(0), to=Moment(1))
    check_appended(store, "t0", range_=range_, rows=3)
    with pytest.raises(LostRowsError, match=r"4 rows .* were sent, 3 are there"):
        check_appended(store, "t0", range_=range_, rows=4)
    name = store.shape.qualify_name(store.shape.rows)
    store.endpoint.get_client().command(
        f"INSERT INTO {name} SELECT * FROM {name} LIMIT 1", settings=row_writer.ANYWAY
    )
    (doubled,) = (
        store.endpoint.get_client()
        .query(f"SELECT tenant FROM {name} GROUP BY tenant HAVING count() > 3")
        .first_row
    )
    with pytest.raises(DoubledRowsError, match=r"3 rows .* were sent, 4 are there"):
        check_appended(store, doubled, range_=range_, rows=3)


def test_a_statement_may_be_longer_than_a_url(clickhouse_url):
    """Beyond 64 kB a parser of URLs gives up; 1 MiB is what ClickHouse takes."""
    names = [f"{'ä`' * 60}{number}" for number in range(1_000)]
    endpoint = Endpoint.parse(clickhouse_url)
    client, table = endpoint.get_client(), f"faults.wide{next(NUMBERS)}"
    client.command("CREATE DATABASE IF NOT EXISTS faults")
    columns = ", ".join(f"{quote_identifier(name)} Int64" for name in names)
    client.command(
        f"CREATE TABLE {table} ({columns}) ENGINE = MergeTree ORDER BY tuple() "
        "SETTINGS non_replicated_deduplication_window = 10"
    )
    chunk = pa.table({name: [number] for number, name in enumerate(reversed(names))})
    for _ in range(2):
        insert(endpoint, *table.split("."), chunk, token="once", name="wide")
    assert client.query(f"SELECT * FROM {table}").result_rows == [tuple(range(999, -1, -1))]
