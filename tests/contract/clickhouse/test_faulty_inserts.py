"""Inserts through a network that fails before and after ClickHouse applies them: each row once."""

import json
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from pyspark import TaskContext

from iscp_dagster import Mirror
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.connect.failures import (
    ClickHouseBusyError,
    DoubledRowsError,
    LostRowsError,
    TooManyPartsError,
)
from iscp_dagster.clickhouse.connect.quoting import quote_identifier
from iscp_dagster.clickhouse.tables.ddl import IndexShape
from iscp_dagster.clickhouse.tables.index_store import IndexStore
from iscp_dagster.clickhouse.write.inserts import (
    ATTEMPTS,
    INSERT_SETTINGS,
    UnconfirmedError,
    call_with_retries,
    insert,
)
from iscp_dagster.clickhouse.write.letters import DeadLetters
from iscp_dagster.clickhouse.write.shard_selection import ShardSelector
from iscp_dagster.model.batch import Range
from iscp_dagster.model.declared.sharding import Sharding
from iscp_dagster.model.errors import IscpError, SchemaError, UnavailableError
from iscp_dagster.model.moment import Moment
from iscp_dagster.sync.executors.rows import IndexRead
from iscp_dagster.sync.executors.writer import TaskWriter, make_scan_task
from support.errors import assert_names, raises_naming
from support.lake.row_writer import (
    ANYWAY,
    add_system_columns,
    check_appended,
    count,
    make_fields,
    make_scan,
    make_source,
    query,
    write,
)
from support.services.fault_proxy import FAULTS

pytestmark = pytest.mark.slow

FIELDS = make_fields(tenant="string", n="long")


SPOKEN = [fault for fault in FAULTS if fault != "silent"]
"""The faults that no client has to wait for."""


@pytest.fixture(scope="module")
def make(endpoint, proxy):
    """Give a function that makes an append-only index, where a row written twice is stored twice.

    The index's writer goes through the proxy, and so meets faults.
    """

    def build(*, quorum="", **options):
        index = Mirror(append=True, **options)
        source = make_source("faults", key=(), indexes=[index])
        shape = IndexShape(source=source, index=index, fields=FIELDS)
        IndexStore(endpoint=endpoint, shape=shape).ensure()
        proxy.coming.clear()
        through = ClickHouseEndpoint.parse(proxy.url, query_timeout=1)
        return IndexStore(endpoint=replace(through, insert_quorum=quorum), shape=shape)

    return build


@pytest.fixture
def store(make):
    return make()


def rows(number):
    """Return rows 0 to `number` of three tenants in turn."""
    table = {
        "tenant": pa.array([f"t{n % 3}" for n in range(number)], pa.string()),
        "n": pa.array(range(number), pa.int64()),
    }
    return add_system_columns(table, micros=0)


def rows_alike(number):
    """Return rows of one tenant whose chunks have the same content."""
    return add_system_columns({"tenant": ["t0"] * number, "n": [0] * number}, micros=0)


def count_rows(endpoint, store):
    """Return how many rows are stored, and how many different ones."""
    direct = replace(store, endpoint=endpoint)
    return query(direct, "SELECT count(), uniqExact(n) FROM {rows}")[0]


@pytest.mark.parametrize("fault", FAULTS)
def test_an_insert_that_fails_is_sent_again_and_stands_there_once(store, proxy, endpoint, fault):
    proxy.coming[:] = [None, fault, None, fault]
    receipts = write(store, rows(35))
    assert {each.code for each in receipts} == {0}, receipts
    assert sum(each.inserted for each in receipts) == 35
    assert count_rows(endpoint, store) == (35, 35)


@pytest.mark.parametrize("fault", [None, "closed after", "unconfirmed"])
def test_chunks_of_a_snapshot_that_are_alike_are_all_there(store, proxy, fault):
    """Also those of the next attempt, which are like those of the first one."""
    for attempt, faults in (("one", [None, fault, None, fault]), ("two", [])):
        store = replace(store, attempt=attempt)
        store.create_staging_table()
        proxy.coming[:] = faults
        (receipt,) = write(store, rows_alike(35), staged=True)
        staged = query(store, f"SELECT count() FROM {store.shape.qualify_name(store.staging)}")
        assert (receipt.code, receipt.inserted, staged) == (0, 35, [(35,)])
        store.drop_staging_table()


@settings(max_examples=4)
@given(coming=st.lists(st.none() | st.sampled_from(SPOKEN), min_size=1, max_size=12))
def test_whatever_fails_and_whoever_writes_again_each_row_is_there_once(
    make, proxy, endpoint, coming
):
    """When a run gives up, another one follows and writes the same chunks."""
    store = make()
    before = len(proxy.injected)
    for faults in (coming, list(reversed(coming)), []):
        proxy.coming[:] = faults
        receipts = write(store, rows(15))
        codes = {UnavailableError.code, ClickHouseBusyError.code, UnconfirmedError.code, 0}
        assert {each.code for each in receipts} <= codes, receipts
    assert count_rows(endpoint, store) == (15, 15)
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
"""A user's profile under which inserts forget their tokens and are not awaited."""
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


def make_counters(store):
    """Return what counts the rows as verify, and Dagster's checks and assets, do."""
    whole = IndexRead(
        endpoint=store.endpoint,
        from_clause=store.find_read_source(),
        columns=("n",),
        bucket="0",
        tenant_expression="tenant",
        tenants=("t0", "t1", "t2"),
    )
    return (
        lambda: sum(batch.num_rows for batch in whole.read_slice(0)),
        lambda: sum(count(store, tenant) for tenant in ("t0", "t1", "t2")),
        lambda: count_placed(store),
    )


def count_or_name_limit(count):
    """Return the number of rows, or the limit that the error names."""
    try:
        return count()
    except IscpError as error:
        return next((limit for limit in LIMITS if limit in str(error)), str(error))


def count_placed(store):
    """Count the rows that belong to either of two shards."""
    by = Sharding(hash_function="cityHash64", key=["n"])
    stored = {"n": store.shape.stored_types["n"]}
    shards = [
        ShardSelector(endpoint=store.endpoint, name="x", sharding=each, stored_types=stored)
        for each in by.make_shards(2)
    ]
    return sum(each.select_rows(rows(35)).num_rows for each in shards)


@pytest.mark.parametrize("cut", CUTS)
def test_a_profile_that_cuts_answers_short_cuts_none_in_silence(store, proxy, cut):
    write(store, rows(35))
    counters = make_counters(store)
    with profile(proxy, CUTS[cut]):
        answers = {count_or_name_limit(count) for count in counters}
    # A limit still applies, but reaching it is an error.
    assert answers <= ({35} if cut in {"limit", "offset"} else {35, *LIMITS})


def test_a_profile_that_cuts_what_a_client_asks_at_first_leaves_tokens_heeded(store, proxy):
    """One of those answers is the client's list of the settings that the server knows."""
    store = replace(store, endpoint=replace(store.endpoint, query_timeout=2))
    with profile(proxy, CUTS["limit"]):
        receipts = write(store, rows(5))
    assert {each.code for each in receipts} == {0}, receipts
    sent = proxy.settings[f"{store.shape.database}.{store.shape.rows}"]
    assert sent["deduplicate_insert"] == "enable"


def test_a_profile_that_forgets_tokens_and_does_not_wait_changes_nothing(store, proxy, endpoint):
    with profile(proxy, CARELESS):
        for _ in range(2):
            receipts = write(store, rows(15))
            assert {each.code for each in receipts} == {0}, receipts
        assert count_rows(endpoint, store) == (15, 15)


@pytest.mark.parametrize("fault", ["error before", "closed after"])
def test_a_dead_letter_is_promised_like_a_row(make, proxy, endpoint, fault):
    store = make(errors="dead_letter", quorum="1")
    name = store.shape.qualify_name(store.shape.rows)
    endpoint.get_client().command(f"ALTER TABLE {name} ADD CONSTRAINT small CHECK n < 10")
    proxy.coming_to["iscp_dead_letters"] = [fault] * 2
    try:
        with profile(proxy, CARELESS):
            receipts = write(store, rows(11))
    finally:
        proxy.coming_to.clear()
    assert {each.code for each in receipts} == {0}, receipts
    letters = DeadLetters(endpoint=endpoint, database=store.shape.database)
    (letter,) = letters.list_letters(index=store.make_target(staged=False).name)
    assert json.loads(letter.row)["n"] == 10
    of_letter, of_rows = (
        proxy.settings[f"{store.shape.database}.{table}"]
        for table in ("iscp_dead_letters", store.shape.rows)
    )
    for setting in (*INSERT_SETTINGS, "insert_quorum", "insert_quorum_parallel"):
        assert of_letter[setting] == of_rows[setting], setting


def test_a_dead_letter_that_was_dropped_may_come_again(make, endpoint):
    """On replicated tables ClickHouse would drop it if its token were known."""
    store = make(errors="dead_letter")
    letters = DeadLetters(endpoint=endpoint, database=store.shape.database)
    letters.ensure()
    name = f"{store.shape.database}.iscp_dead_letters"
    endpoint.get_client().command(
        f"ALTER TABLE {name} MODIFY SETTING non_replicated_deduplication_window = 100"
    )
    range_, target = (
        Range(from_=Moment(0), to=Moment(1)),
        store.refresh_epochs().make_target(staged=False),
    )
    for _ in range(2):
        errors = {"a": SchemaError("gone")}
        letters.write_range(target, errors, registrations={"a": 7}, range_=range_)
        (letter,) = letters.list_letters(index=target.name)
        letters.drop([letter])


def test_one_that_goes_on_failing_is_given_up_with_a_temporary_code(store, proxy, endpoint):
    proxy.coming[:] = ["unconfirmed"] * ATTEMPTS
    (receipt,) = write(store, rows(5))
    assert receipt.code == UnconfirmedError.code
    assert_names(receipt.message, "5 rows", f"{store.shape.database}.{store.shape.rows}", 0)
    assert count_rows(endpoint, store) == (5, 5)


@pytest.mark.parametrize(
    ("attempt", "fault", "again"), [(0, None, False), (0, "closed after", True), (1, None, True)]
)
def test_receipts_tell_whether_rows_were_sent_more_than_once(
    store, proxy, monkeypatch, attempt, fault, again
):
    """Either we sent them again, or Spark tried the task again."""
    scan = replace(make_scan(store), registrations=dict.fromkeys(["t0", "t1", "t2"], 7))
    task = TaskContext()
    task._partitionId, task._attemptNumber = 0, attempt
    monkeypatch.setattr(TaskContext, "_taskContext", task)
    proxy.coming[:] = [fault]
    (receipts,) = make_scan_task(TaskWriter(scans=[scan]))(rows(5).to_batches())
    assert receipts["resent"].to_pylist() == [again] * 3


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


def test_what_stands_there_is_counted_before_the_watermark_moves(store, endpoint):
    store = replace(store, endpoint=endpoint)
    write(store, rows(9))
    range_ = Range(from_=Moment(0), to=Moment(1))
    check_appended(store, "t0", range_=range_, rows=3)
    with raises_naming(LostRowsError, store.shape.rows, "'t0'", 4, 3):
        check_appended(store, "t0", range_=range_, rows=4)
    name = store.shape.qualify_name(store.shape.rows)
    endpoint.get_client().command(
        f"INSERT INTO {name} SELECT * FROM {name} WHERE n = 0", settings=ANYWAY
    )
    with raises_naming(DoubledRowsError, store.shape.rows, "'t0'", 3, 4):
        check_appended(store, "t0", range_=range_, rows=3)


def test_a_statement_may_be_longer_than_a_url(endpoint):
    """Beyond 64 kB a parser of URLs gives up; 1 MiB is what ClickHouse takes."""
    names = [f"{'ä`' * 60}{number}" for number in range(1_000)]
    client, table = endpoint.get_client(), "faults.wide"
    client.command("CREATE DATABASE IF NOT EXISTS faults")
    columns = ", ".join(f"{quote_identifier(name)} Int64" for name in names)
    client.command(
        f"CREATE OR REPLACE TABLE {table} ({columns}) ENGINE = MergeTree ORDER BY tuple() "
        "SETTINGS non_replicated_deduplication_window = 10"
    )
    chunk = pa.table({name: [number] for number, name in enumerate(reversed(names))})
    for _ in range(2):
        insert(endpoint, *table.split("."), chunk, token="once", name="wide")
    assert client.query(f"SELECT * FROM {table}").result_rows == [tuple(range(999, -1, -1))]
