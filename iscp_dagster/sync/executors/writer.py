"""One Spark task's part of a scan, handed to the consumers that run where the rows are.

Runs in Spark's Python workers: it imports no dagster, and from pyspark only the task context.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import partial
from typing import Any

import pyarrow as pa

from iscp_dagster.clickhouse.write.chunks import (
    MOST_CHUNKS,
    ROWS_PER_CHUNK,
    chunks,
    combined,
    pieces,
    sized_chunks,
)
from iscp_dagster.clickhouse.write.consumer import IndexConsumer
from iscp_dagster.clickhouse.write.fitting import stamped, without_gone_nulls
from iscp_dagster.clickhouse.write.inserts import patiently
from iscp_dagster.clickhouse.write.tenantwise import among, halved, without
from iscp_dagster.clickhouse.write.unclear import refuse_replaced, refuse_twins
from iscp_dagster.model.errors import FeedGoneError, IscpError
from iscp_dagster.spark.columns import Mapped
from iscp_dagster.sync.executors.retriever import Retriever, Share, Worker
from iscp_dagster.sync.executors.rows import as_they_are


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What one Spark task wrote to one target for one tenant. `code` is that of an IscpError.

    An empty tenant means that the target failed for all.
    """

    target: str
    tenant: str
    partition: int
    inserted: int = 0
    deleted: int = 0
    bytes: int = 0
    chunks: int = 0
    seconds: float = 0.0
    again: bool = False
    """Whether rows were sent more than once, so that an earlier attempt may still land."""
    code: int = 0
    message: str = ""


_ARROW_TYPES = {"bool": pa.bool_(), "str": pa.string(), "int": pa.int64(), "float": pa.float64()}
# Spark checks integer widths to the bit: `partition` and the like are its 32-bit int.
_NARROW = {"partition", "chunks", "code"}

RECEIPT_SCHEMA = pa.schema(
    [
        (f.name, pa.int32() if f.name in _NARROW else _ARROW_TYPES[str(f.type)])
        for f in fields(Receipt)
    ]
)

SCAN_SCHEMA = RECEIPT_SCHEMA.append(pa.field("payload", pa.binary()))
"""The output of a scan: receipts and relayed rows."""
ROWS_PER_RELAY = 20_000


def refused(target: str, partition: int, error: IscpError, tenant: str = "") -> Receipt:
    """The receipt of a task that failed, for one tenant or all.

    An empty target means that relaying rows failed.
    """
    return Receipt(
        target=target, tenant=tenant, partition=partition, code=error.code, message=str(error)
    )


@dataclass(frozen=True, kw_only=True)
class Writer:
    """Hands a task's rows, cut into chunks, to every consumer; picklable, like all it holds.

    A consumer that fails gets no more rows of the task; the others go on. `stamp` is the
    (version, microseconds) of a snapshot, whose rows come without system columns and are all live.
    """

    shares: Sequence[Share]
    """Each with its consumer."""
    keys: Sequence[str] = ()
    rows_per_chunk: int | None = ROWS_PER_CHUNK
    """None: chunks of about 32 MiB, for staging."""
    most_chunks: int = MOST_CHUNKS
    """Of changes; more are read as a snapshot: ClickHouse may forget tokens before a replay."""
    tenant_column: str | None = None
    """Tells apart the tenants whose changes are unclear; None: unclear changes end the scan."""
    apart: str | None = None
    """The column that rows are sorted by; each chunk has one value of it, so one tenant's rows."""
    stamp: tuple[int, int] | None = None
    exact: Sequence[str] | None = None
    """The columns whose texts must have the source's bytes; None: all."""
    sleep: Callable[[float], None] = time.sleep

    def __call__(self, partition: int, batches: Iterable[pa.RecordBatch]) -> list[Receipt]:
        receipts: list[Receipt] = []
        for _ in self.written(partition, batches, receipts):
            pass
        return receipts

    def written(
        self, partition: int, batches: Iterable[pa.RecordBatch], receipts: list[Receipt]
    ) -> Iterator[pa.Table]:
        """Yield each chunk once it is handed on; at the end, add what was written to `receipts`.

        Raises FeedGoneError for changes that do not say which rows remain; the task then has no
        receipts.
        """
        workers = [_at_work(each, partition) for each in self.shares]
        unclear: dict[str, IscpError] = {}
        try:
            for rows in self._chunks(batches):
                chunk = self._clear(workers, rows, unclear)
                if not chunk.num_rows:
                    continue
                for worker in workers:
                    worker.put(chunk)
                yield chunk
        except BaseException as error:
            for worker in workers:
                worker.abort(error)
            raise
        for worker in workers:
            worker.end()
        for worker in workers:
            receipts += _receipts(worker, partition, unclear)

    def _clear(
        self, workers: Sequence[Worker], rows: pa.Table, unclear: dict[str, IscpError]
    ) -> pa.Table:
        """The rows as the source has them, without tenants whose changes are `unclear`.

        Raises FeedGoneError where tenants are not told apart.
        """
        if self.tenant_column is None or self.stamp is not None:
            return self._checked(workers, rows)
        rows = without(rows, self.tenant_column, unclear)
        check = partial(self._checked, workers)
        found, gone = halved(rows, self.tenant_column, check, FeedGoneError)
        unclear.update(gone)
        return pa.concat_tables(found) if found else rows.slice(0, 0)

    def _checked(self, workers: Sequence[Worker], rows: pa.Table) -> pa.Table:
        """The rows with their system columns, as the source has them. Raises FeedGoneError."""
        chunk = self._whole(rows)
        if chunk.num_rows:
            self._refuse_twins(workers, chunk)
        return chunk

    def _whole(self, rows: pa.Table) -> pa.Table:
        if self.stamp is not None:
            rows = stamped(rows, self.stamp)
        else:
            refuse_replaced(rows if self.exact is None else rows.select(list(self.exact)))
        return combined(without_gone_nulls(rows, self.keys))

    def _chunks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        rows = self.rows_per_chunk
        if rows is None:
            yield from sized_chunks(batches)
            return
        numbers = Counter[Any]()
        for chunk in chunks(batches, rows, apart=self.apart):
            whose = None if self.apart is None else chunk[self.apart][0].as_py()
            numbers[whose] += 1
            if numbers[whose] > self.most_chunks:
                raise FeedGoneError(
                    f"The changes make more than {self.most_chunks} chunks in one task, and "
                    "ClickHouse may forget their tokens before a replay; the rows are read as a "
                    "snapshot."
                )
            yield chunk

    def _refuse_twins(self, workers: Sequence[Worker], chunk: pa.Table) -> None:
        """Reject inserts of existing keys, by asking one working target for each tenant.

        All targets of a tenant served the same keys; a shard knows only its own, so each is asked.
        """
        going = [worker for worker in workers if worker.going]
        whole = [each for each in going if _consumer(each.share).placement is None]
        shards = [[each] for each in going if _consumer(each.share).placement is not None]
        for asked in filter(None, [whole, *shards]):
            try:
                for share, rows in self._asked(asked, chunk):
                    patiently(partial(self._ask_for_twins, share, rows), self.sleep)
            except FeedGoneError:
                raise
            except IscpError as error:
                for worker in asked:
                    worker.abort(error)
        if not going:
            refuse_twins(None, None, chunk, None)

    def _asked(
        self, workers: Sequence[Worker], chunk: pa.Table
    ) -> Iterator[tuple[Share, pa.Table]]:
        """Whom to ask about which rows, so that each tenant's rows are checked once."""
        left = frozenset[str]().union(*(each.share.tenants for each in workers))
        for share in (worker.share for worker in workers):
            mine = left & share.tenants
            if mine:
                column = share.tenant_column if share.others or mine != share.tenants else None
                yield share, chunk if column is None else among(chunk, column, mine)
            left -= mine

    def _ask_for_twins(self, share: Share, chunk: pa.Table) -> None:
        since = share.range.from_.version if self.stamp is None else None
        consumer = _consumer(share)
        refuse_twins(consumer.endpoint, consumer.target, chunk, since)


def _consumer(share: Share) -> IndexConsumer:
    assert share.consumer is not None
    return share.consumer


def _at_work(share: Share, task: int) -> Worker:
    consumer = _consumer(share)
    mine = consumer.mine if consumer.placement else None
    return Worker(lambda: consumer, Retriever(share=share, task=task, mine=mine))


def _receipts(worker: Worker, task: int, unclear: Mapping[str, IscpError]) -> Iterator[Receipt]:
    target = worker.share.name
    if worker.failure is not None:
        yield refused(target, task, worker.failure)
        return
    done = worker.retriever
    stopped = {t: unclear[t] for t in unclear.keys() & worker.share.tenants} | done.refused
    for tenant, error in sorted(stopped.items()):
        yield refused(target, task, error, tenant)
    for at, tenant in enumerate(sorted((done.inserted | done.deleted).keys() - stopped.keys())):
        # Chunks and seconds are the task's, so only its first receipt has them.
        yield Receipt(
            target=target,
            tenant=tenant,
            partition=task,
            inserted=done.inserted[tenant],
            deleted=done.deleted[tenant],
            bytes=done.bytes[tenant],
            chunks=done.chunks if at == 0 else 0,
            seconds=done.seconds if at == 0 else 0.0,
            again=done.again,
        )


def writing(writer: Writer, rows: Mapped = as_they_are, *, relayed: tuple[str, ...] = ()) -> Mapped:
    """`writer` as `mapInArrow` wants it: batches in, which `rows` turns into rows; receipts out.

    With columns to be `relayed` to the run's process, these go out too, each chunk as an Arrow
    stream, before the receipts.
    """

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = context.partitionId() if context else 0
        receipts: list[Receipt] = []
        try:
            for chunk in writer.written(partition, rows(batches), receipts):
                if relayed:
                    yield from _relay(chunk.select(list(relayed)))
            if context and context.attemptNumber():
                receipts = [replace(each, again=True) for each in receipts]
        except IscpError as error:
            failed = [each.name for each in writer.shares] + ([""] if relayed else [])
            receipts = [refused(name, partition, error) for name in failed]
        columns = zip(*map(astuple, receipts), strict=True)
        arrays = [
            pa.array(values, type=f.type)
            for values, f in zip(columns, RECEIPT_SCHEMA, strict=False)
        ]
        if arrays:
            yield _with_payload(arrays, [None] * len(receipts))

    return write


def _relay(chunk: pa.Table) -> Iterator[pa.RecordBatch]:
    for start in range(0, chunk.num_rows, ROWS_PER_RELAY):
        for _, some in pieces(chunk.slice(start, ROWS_PER_RELAY)):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, some.schema) as stream:
                stream.write_table(some)
            arrays = [pa.nulls(1, f.type) for f in RECEIPT_SCHEMA]
            yield _with_payload(arrays, [sink.getvalue().to_pybytes()])


def _with_payload(arrays: list[pa.Array], payloads: list[bytes | None]) -> pa.RecordBatch:
    payload = pa.array(payloads, type=pa.binary())
    return pa.RecordBatch.from_arrays([*arrays, payload], schema=SCAN_SCHEMA)


def relayed_rows(payload: bytes) -> pa.Table:
    """The rows that a task relayed."""
    with pa.ipc.open_stream(payload) as stream:
        return stream.read_all()
