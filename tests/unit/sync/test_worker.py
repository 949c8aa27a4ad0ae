"""A consumer's thread: how a slow consumer holds up the scan, and what ends the thread."""

import threading

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
from support.services.stack import wait_for

SECONDS = 30
ROWS = pa.table(
    {"id": [1, 2], "_version": [3, 3], "_timestamp": [0, 0], "_deleted": [False, False]}
)


class Waits:
    """Takes nothing until released, then everything."""

    def __init__(self):
        self.go, self.batches = threading.Event(), 0

    def consume(self, retriever):
        assert self.go.wait(SECONDS)
        while not retriever.next()[2]:
            self.batches += 1


def share_of(data_type, columns=("id",)):
    return ConsumerScan(
        job=JobID(db="d", table="t", job="j"),
        registrations={"default": 1},
        range=Range(from_=START, to=Moment(3)),
        data_type=data_type,
        columns=columns,
        identity=("id",),
        tenant_column=None,
    )


def at_work(consumer):
    return ConsumerThread(lambda: consumer, Retriever(share=share_of(DataType.SNAPSHOT)))


def test_if_one_consumer_is_slow_the_others_may_get_blocked():
    slow, quick = Waits(), Waits()
    quick.go.set()
    workers = at_work(slow), at_work(quick)
    put = []

    def scan():
        for number in range(AHEAD + 3):
            for worker in workers:
                worker.put(ROWS)
            put.append(number)

    scanning = threading.Thread(target=scan)
    scanning.start()
    wait_for(lambda: len(put) == AHEAD, SECONDS)
    # The scan holds only the batches that the slow one has not taken.
    wait_for(lambda: quick.batches == AHEAD, SECONDS)
    assert scanning.is_alive()
    slow.go.set()
    scanning.join(SECONDS)
    for worker in workers:
        worker.end()
    assert (slow.batches, quick.batches) == (AHEAD + 3, AHEAD + 3)
    assert [worker.failure for worker in workers] == [None, None]


def test_an_interrupted_run_does_not_wait_for_a_consumer_that_works_on(monkeypatch):
    monkeypatch.setattr(retriever, "GIVE_UP_SECONDS", 0.1)
    busy = Waits()
    worker = at_work(busy)
    for _ in range(AHEAD):
        worker.put(ROWS)
    worker.abort(KeyboardInterrupt())
    assert worker.is_alive
    assert worker.retriever.broken
    busy.go.set()
    wait_for(lambda: not worker.is_alive, SECONDS)
    assert isinstance(worker.failure, ConsumerError)
    assert busy.batches == 0


def test_a_scan_that_ends_early_ends_who_waits_for_more():
    consumer = Waits()
    consumer.go.set()
    worker = at_work(consumer)
    worker.put(ROWS)
    worker.abort(UnavailableError("gone"))
    assert isinstance(worker.failure, UnavailableError)


class Careless:
    def consume(self, retriever):
        retriever.next()


def test_who_returns_before_the_end_has_failed():
    worker = at_work(Careless())
    worker.put(ROWS)
    worker.end()
    assert isinstance(worker.failure, ConsumerError)
    with pytest.raises(ConsumerError, match="returned before it had read everything"):
        raise worker.failure


class Invokes:
    def consume(self, retriever):
        raise durable_invocations.errors.UnavailableError("the runtime is away")


def test_who_invokes_a_handler_is_tried_again_while_the_runtime_is_away():
    worker = at_work(Invokes())
    worker.end()
    assert isinstance(worker.failure, UnavailableError)


class Sizes:
    """Takes everything, and records the rows of each batch."""

    def __init__(self):
        self.rows = []

    def consume(self, retriever):
        while not (found := retriever.next())[2]:
            self.rows.append(found[0].num_rows)


@pytest.mark.slow
def test_texts_beyond_what_one_batch_holds_come_in_several():
    """Texts of 2.5 GiB that share one buffer."""
    long = pa.array(["x" * (64 << 20)] * 4, pa.string())
    rows = 40
    chunk = pa.table(
        {
            "id": pa.chunked_array([long] * (rows // 4)),
            "_version": pa.array([3] * rows),
            "_timestamp": pa.array([0] * rows),
            "_deleted": pa.array([False] * rows),
        }
    )
    sizes = Sizes()
    worker = at_work(sizes)
    worker.put(chunk)
    worker.put(ROWS.set_column(0, "id", pa.array(["a", "b"])))
    worker.end()
    assert worker.failure is None
    assert sum(sizes.rows) == rows + 2
    assert max(sizes.rows) * (64 << 20) <= BYTES_AT_ONCE
    assert worker.retriever.inserted.total() == rows + 2


CHANGES = pa.table(
    {
        "id": [1, 2, 3],
        "name": ["new", "updated", None],
        "_version": [3, 3, 3],
        "_timestamp": [0, 0, 0],
        "_deleted": [False, False, True],
    }
)


class Inserts:
    """A table of rows, written only by delete and insert."""

    def __init__(self):
        self.held = [(2, "old"), (3, "gone")]

    def consume(self, retriever):
        done = False
        while not done:
            inserts, deletes, done = retriever.next(delete_first=True)
            gone = [] if deletes is None else deletes["id"].to_pylist()
            self.held = [row for row in self.held if row[0] not in gone]
            if inserts is not None:
                rows = zip(inserts["id"].to_pylist(), inserts["name"].to_pylist(), strict=True)
                self.held += rows


def test_who_deletes_first_needs_no_upsert():
    consumer = Inserts()
    retriever = Retriever(share=share_of(DataType.TAIL, ("id", "name")))
    worker = ConsumerThread(lambda: consumer, retriever)
    worker.put(CHANGES)
    worker.end()
    assert worker.failure is None
    assert sorted(consumer.held) == [(1, "new"), (2, "updated")]
    # The iteration's counts are those of the source's changes.
    assert (retriever.inserted["default"], retriever.deleted["default"]) == (2, 1)


def test_a_tail_is_to_be_upserted_and_a_snapshot_has_no_deletes():
    found = {}
    for data_type in DataType:
        retriever = Retriever(share=share_of(data_type, ("id", "name")))
        retriever.coming.put(CHANGES.slice(0, 2))
        retriever.coming.put(CHANGES.slice(2))
        found[data_type] = [
            tuple(
                batch and batch["id"].to_pylist() for batch in retriever.next(delete_first=at)[:2]
            )
            for at in (False, data_type is DataType.SNAPSHOT)
        ]
    assert found[DataType.TAIL] == [([1, 2], None), (None, [3])]
    assert found[DataType.SNAPSHOT] == [([1, 2], None), ([3], None)]


def test_who_keeps_deletes_like_inserts_gets_the_rows_as_they_come_with_a_mark():
    found = {}
    for data_type in DataType:
        retriever = Retriever(share=share_of(data_type, ("name", "id")))
        for each in (CHANGES, None):
            retriever.coming.put(each)
        chunk = retriever.read_marked_rows()
        assert chunk.column_names == ["name", "id", "_version", "_timestamp", "_deleted"]
        assert chunk.select(["id", "name"]).equals(CHANGES.select(["id", "name"]))
        found[data_type] = chunk["_deleted"].to_pylist()
        assert retriever.read_marked_rows() is None
        assert retriever.read_marked_rows() is None
        assert (retriever.drained, retriever.chunks) == (True, 1)
        gone = found[data_type].count(True)
        assert (retriever.inserted["default"], retriever.deleted["default"]) == (3 - gone, gone)
        assert retriever.bytes["default"] == chunk.drop_columns("_deleted").nbytes
    assert found == {DataType.TAIL: [False, False, True], DataType.SNAPSHOT: [False] * 3}
