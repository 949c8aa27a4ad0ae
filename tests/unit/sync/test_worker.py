"""A consumer's thread: how a slow consumer delays the scan, and how the thread ends."""

import threading
from types import SimpleNamespace

import pyarrow as pa
import pytest

import durable_invocations.errors
from iscp_dagster.clickhouse.write.chunks import BYTES_AT_ONCE
from iscp_dagster.model.batch import Range
from iscp_dagster.model.consumers.protocol import DataType
from iscp_dagster.model.errors import UnavailableError
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.moment import START, Moment
from iscp_dagster.sync.executors import retriever
from iscp_dagster.sync.executors.retriever import (
    AHEAD,
    ConsumerError,
    ConsumerScan,
    ConsumerThread,
    Retriever,
)
from support.errors import raises_naming
from support.lake.row_writer import add_system_columns
from support.services.stack import wait_for

SECONDS = 30
ROWS = add_system_columns({"id": [1, 2]}, version=3, micros=0)


class SlowConsumer:
    """Takes nothing until released, then everything."""

    def __init__(self, *, released=False):
        self.go, self.batches = threading.Event(), 0
        if released:
            self.go.set()

    def consume(self, retriever):
        assert self.go.wait(SECONDS)
        while not retriever.next()[2]:
            self.batches += 1


def make_share(data_type, columns=("id",)):
    return ConsumerScan(
        job=JobID(db="d", table="t", job="j"),
        registrations={"default": 1},
        range=Range(from_=START, to=Moment(3)),
        data_type=data_type,
        columns=columns,
        delete_columns=("id",),
        tenant_column=None,
    )


def start(consume, data_type=DataType.SNAPSHOT, columns=("id",)):
    retriever = Retriever(scan=make_share(data_type, columns))
    return ConsumerThread(lambda: SimpleNamespace(consume=consume), retriever)


def test_a_slow_consumer_may_block_the_others():
    slow, quick = SlowConsumer(), SlowConsumer(released=True)
    workers = start(slow.consume), start(quick.consume)
    scanned = []

    def scan():
        for number in range(AHEAD + 3):
            for worker in workers:
                worker.put(ROWS)
            scanned.append(number)

    scanning = threading.Thread(target=scan)
    scanning.start()
    wait_for(lambda: len(scanned) == AHEAD, SECONDS)
    # The scan keeps only the batches that the slow consumer has not taken.
    wait_for(lambda: quick.batches == AHEAD, SECONDS)
    assert scanning.is_alive()
    slow.go.set()
    scanning.join(SECONDS)
    for worker in workers:
        worker.end()
    assert (slow.batches, quick.batches) == (AHEAD + 3, AHEAD + 3)
    assert [worker.failure for worker in workers] == [None, None]


def test_an_interrupted_run_does_not_wait_for_a_busy_consumer(monkeypatch):
    monkeypatch.setattr(retriever, "GIVE_UP_SECONDS", 0.1)
    busy = SlowConsumer()
    worker = start(busy.consume)
    for _ in range(AHEAD):
        worker.put(ROWS)
    worker.abort(KeyboardInterrupt())
    assert worker.is_alive
    assert worker.retriever.broken
    busy.go.set()
    wait_for(lambda: not worker.is_alive, SECONDS)
    assert isinstance(worker.failure, ConsumerError)
    assert busy.batches == 0


def test_a_scan_that_ends_early_ends_a_consumer_that_waits_for_more():
    worker = start(SlowConsumer(released=True).consume)
    worker.put(ROWS)
    worker.abort(UnavailableError("gone"))
    assert isinstance(worker.failure, UnavailableError)


def test_a_consumer_that_returns_before_the_end_has_failed():
    worker = start(Retriever.next)
    worker.put(ROWS)
    worker.end()
    with raises_naming(ConsumerError, "d.t/j", "next()"):
        raise worker.failure


def test_a_consumer_that_invokes_a_handler_is_tried_again_while_the_runtime_is_away():
    def invoke(_retriever):
        raise durable_invocations.errors.UnavailableError("the runtime is away")

    worker = start(invoke)
    worker.end()
    assert isinstance(worker.failure, UnavailableError)


@pytest.mark.soak
def test_texts_too_large_for_one_batch_come_in_several():
    """Texts of 2.5 GiB that share one buffer."""
    long = pa.array(["x" * (64 << 20)] * 4, pa.string())
    rows, sizes = 40, []
    ids = pa.chunked_array([long] * (rows // 4))
    chunk = add_system_columns({"id": ids}, version=3, micros=0)

    def record_sizes(retriever):
        while not (batch := retriever.next())[2]:
            sizes.append(batch[0].num_rows)

    worker = start(record_sizes)
    worker.put(chunk)
    worker.put(ROWS.set_column(0, "id", pa.array(["a", "b"])))
    worker.end()
    assert worker.failure is None
    assert sum(sizes) == rows + 2
    assert max(sizes) * (64 << 20) <= BYTES_AT_ONCE
    assert worker.retriever.inserted.total() == rows + 2


NAMES = {"id": [1, 2, 3], "name": ["new", "updated", None]}
CHANGES = add_system_columns(NAMES, version=3, micros=0, deleted=[False, False, True])


def test_a_consumer_that_deletes_first_needs_no_upsert():
    table = {2: "old", 3: "old"}

    def delete_and_insert(retriever):
        done = False
        while not done:
            inserts, deletes, done = retriever.next(delete_first=True)
            for key in [] if deletes is None else deletes["id"].to_pylist():
                table.pop(key, None)
            for row in [] if inserts is None else inserts.to_pylist():
                assert row["id"] not in table
                table[row["id"]] = row["name"]

    worker = start(delete_and_insert, DataType.TAIL, ("id", "name"))
    worker.put(CHANGES)
    worker.end()
    assert worker.failure is None
    assert table == {1: "new", 2: "updated"}
    # The iteration's counts are those of the source's changes.
    counts = worker.retriever.inserted, worker.retriever.deleted
    assert [count["default"] for count in counts] == [2, 1]


@pytest.mark.parametrize(
    ("data_type", "last"), [(DataType.TAIL, (None, [3])), (DataType.SNAPSHOT, ([3], None))]
)
def test_a_tail_is_to_be_upserted_and_a_snapshot_has_no_deletes(data_type, last):
    retriever = Retriever(scan=make_share(data_type, ("id", "name")))
    retriever.messages.put(CHANGES.slice(0, 2))
    retriever.messages.put(CHANGES.slice(2))
    batches = [
        tuple(batch and batch["id"].to_pylist() for batch in retriever.next(delete_first=first)[:2])
        for first in (False, data_type is DataType.SNAPSHOT)
    ]
    assert batches == [([1, 2], None), last]


@pytest.mark.parametrize(
    ("data_type", "marks"),
    [(DataType.TAIL, [False, False, True]), (DataType.SNAPSHOT, [False, False, False])],
)
def test_a_consumer_that_keeps_deletes_gets_the_rows_in_order_with_a_mark(data_type, marks):
    retriever = Retriever(scan=make_share(data_type, ("name", "id")))
    for chunk in (CHANGES, None):
        retriever.messages.put(chunk)
    rows = retriever.read_marked_rows()
    assert rows.column_names == ["name", "id", "_version", "_timestamp", "_deleted"]
    assert rows.select(["id", "name"]).equals(CHANGES.select(["id", "name"]))
    assert rows["_deleted"].to_pylist() == marks
    assert retriever.read_marked_rows() is None
    assert retriever.read_marked_rows() is None
    assert (retriever.drained, retriever.chunks) == (True, 1)
    deletes = marks.count(True)
    assert (retriever.inserted["default"], retriever.deleted["default"]) == (3 - deletes, deletes)
    assert retriever.bytes["default"] == rows.drop_columns("_deleted").nbytes
