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

from iscp_dagster.clickhouse.write.ambiguous_changes import (
    refuse_ambiguous_changes,
    refuse_replacement_chars,
)
from iscp_dagster.clickhouse.write.chunks import (
    MOST_CHUNKS,
    ROWS_PER_CHUNK,
    combine_batches,
    cut_chunks,
    cut_pieces,
    cut_staging_chunks,
)
from iscp_dagster.clickhouse.write.consumer import IndexConsumer
from iscp_dagster.clickhouse.write.conversion import add_system_columns, drop_null_key_deletes
from iscp_dagster.clickhouse.write.inserts import call_with_retries
from iscp_dagster.clickhouse.write.tenant_split import (
    bisect_tenants,
    exclude_tenants,
    filter_tenants,
)
from iscp_dagster.model.errors import FeedGoneError, IscpError
from iscp_dagster.spark.columns import Mapped
from iscp_dagster.sync.executors.retriever import ConsumerScan, ConsumerThread, Retriever
from iscp_dagster.sync.executors.rows import pass_through


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What one Spark task wrote to one target for one tenant. `code` is an IscpError's.

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
    resent: bool = False
    """Whether rows were sent more than once, so that an earlier attempt may still land."""
    code: int = 0
    message: str = ""


_ARROW_TYPES = {"bool": pa.bool_(), "str": pa.string(), "int": pa.int64(), "float": pa.float64()}
# Spark checks integer widths to the bit: `partition` and the like are its 32-bit int.
_NARROW = {"partition", "chunks", "code"}

RECEIPT_SCHEMA = pa.schema(
    [
        (field_.name, pa.int32() if field_.name in _NARROW else _ARROW_TYPES[str(field_.type)])
        for field_ in fields(Receipt)
    ]
)

SCAN_SCHEMA = RECEIPT_SCHEMA.append(pa.field("payload", pa.binary()))
"""The output of a scan: receipts and relayed rows."""
ROWS_PER_RELAY = 20_000


def make_failure_receipt(
    target: str, partition: int, error: IscpError, tenant: str = ""
) -> Receipt:
    """The receipt of a task that failed, for one tenant or all.

    An empty target means that relaying rows failed.
    """
    return Receipt(
        target=target, tenant=tenant, partition=partition, code=error.code, message=str(error)
    )


@dataclass(frozen=True, kw_only=True)
class TaskWriter:
    """Hands a task's rows, cut into chunks, to every consumer; picklable, like all it holds.

    A consumer that fails gets no more rows of the task; the others continue. `stamp` is the
    (version, microseconds) of a snapshot, whose rows come without system columns and are all live.
    """

    scans: Sequence[ConsumerScan]
    """Each with its consumer."""
    keys: Sequence[str] = ()
    rows_per_chunk: int | None = ROWS_PER_CHUNK
    """None: chunks of about 32 MiB, for staging."""
    most_chunks: int = MOST_CHUNKS
    """The most chunks of changes; more are read as a snapshot: ClickHouse may forget tokens before
    a replay."""
    tenant_column: str | None = None
    """Identifies the tenants whose changes are unclear; None: unclear changes end the scan."""
    sort_column: str | None = None
    """The column that rows are sorted by; each chunk has one value of it, so one tenant's rows."""
    stamp: tuple[int, int] | None = None
    exact: Sequence[str] | None = None
    """The columns whose texts must have the source's bytes; None: all."""
    sleep: Callable[[float], None] = time.sleep

    def __call__(self, partition: int, batches: Iterable[pa.RecordBatch]) -> list[Receipt]:
        receipts: list[Receipt] = []
        for _ in self.write_chunks(partition, batches, receipts):
            pass
        return receipts

    def write_chunks(
        self, partition: int, batches: Iterable[pa.RecordBatch], receipts: list[Receipt]
    ) -> Iterator[pa.Table]:
        """Yield each chunk once it is handed on; at the end, add what was written to `receipts`.

        Raises FeedGoneError for changes that do not say which rows remain; the task then has no
        receipts.
        """
        threads = [_start_thread(scan, partition) for scan in self.scans]
        unclear: dict[str, IscpError] = {}
        try:
            for rows in self._cut_chunks(batches):
                chunk = self._drop_unclear(threads, rows, unclear)
                if not chunk.num_rows:
                    continue
                for thread in threads:
                    thread.put(chunk)
                yield chunk
        except BaseException as error:
            for thread in threads:
                thread.abort(error)
            raise
        for thread in threads:
            thread.end()
        for thread in threads:
            receipts += _make_receipts(thread, partition, unclear)

    def _drop_unclear(
        self, threads: Sequence[ConsumerThread], rows: pa.Table, unclear: dict[str, IscpError]
    ) -> pa.Table:
        """The rows as the source has them, without tenants whose changes are `unclear`.

        Raises FeedGoneError if there is no tenant column.
        """
        if self.tenant_column is None or self.stamp is not None:
            return self._prepare_chunk(threads, rows)
        rows = exclude_tenants(rows, self.tenant_column, unclear)
        check = partial(self._prepare_chunk, threads)
        tables, failures = bisect_tenants(rows, self.tenant_column, check, FeedGoneError)
        unclear.update(failures)
        return pa.concat_tables(tables) if tables else rows.slice(0, 0)

    def _prepare_chunk(self, threads: Sequence[ConsumerThread], rows: pa.Table) -> pa.Table:
        """The rows with their system columns, as the source has them. Raises FeedGoneError."""
        chunk = self._normalize_rows(rows)
        if chunk.num_rows:
            self._refuse_twins(threads, chunk)
        return chunk

    def _normalize_rows(self, rows: pa.Table) -> pa.Table:
        if self.stamp is not None:
            rows = add_system_columns(rows, self.stamp)
        else:
            refuse_replacement_chars(rows if self.exact is None else rows.select(list(self.exact)))
        return combine_batches(drop_null_key_deletes(rows, self.keys))

    def _cut_chunks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        rows = self.rows_per_chunk
        if rows is None:
            yield from cut_staging_chunks(batches)
            return
        numbers = Counter[Any]()
        for chunk in cut_chunks(batches, rows, apart=self.sort_column):
            value = None if self.sort_column is None else chunk[self.sort_column][0].as_py()
            numbers[value] += 1
            if numbers[value] > self.most_chunks:
                raise FeedGoneError(
                    f"The changes make more than {self.most_chunks} chunks in one task, and "
                    "ClickHouse may forget their tokens before a replay; the rows are read as a "
                    "snapshot."
                )
            yield chunk

    def _refuse_twins(self, threads: Sequence[ConsumerThread], chunk: pa.Table) -> None:
        """Reject inserts of existing keys, by a query to one working target for each tenant.

        All targets of a tenant have the same keys; a shard has only its own, so each is queried.
        """
        live = [thread for thread in threads if thread.is_alive]
        unsharded = [thread for thread in live if _get_consumer(thread.scan).placement is None]
        sharded = [[thread] for thread in live if _get_consumer(thread.scan).placement is not None]
        for group in filter(None, [unsharded, *sharded]):
            try:
                for scan, rows in self._assign_checks(group, chunk):
                    call_with_retries(partial(self._check_twins, scan, rows), self.sleep)
            except FeedGoneError:
                raise
            except IscpError as error:
                for thread in group:
                    thread.abort(error)
        if not live:
            refuse_ambiguous_changes(None, None, chunk, None)

    def _assign_checks(
        self, threads: Sequence[ConsumerThread], chunk: pa.Table
    ) -> Iterator[tuple[ConsumerScan, pa.Table]]:
        """The shares to query and their rows, so that each tenant's rows are checked once."""
        unchecked = frozenset[str]().union(*(thread.scan.tenants for thread in threads))
        for scan in (thread.scan for thread in threads):
            tenants = unchecked & scan.tenants
            if tenants:
                column = scan.tenant_column if scan.others or tenants != scan.tenants else None
                yield scan, chunk if column is None else filter_tenants(chunk, column, tenants)
            unchecked -= tenants

    def _check_twins(self, scan: ConsumerScan, chunk: pa.Table) -> None:
        since = scan.range.from_.version if self.stamp is None else None
        consumer = _get_consumer(scan)
        refuse_ambiguous_changes(consumer.endpoint, consumer.target, chunk, since)


def _get_consumer(scan: ConsumerScan) -> IndexConsumer:
    assert scan.consumer is not None
    return scan.consumer


def _start_thread(scan: ConsumerScan, task: int) -> ConsumerThread:
    consumer = _get_consumer(scan)
    select = consumer.select_rows if consumer.placement else None
    return ConsumerThread(lambda: consumer, Retriever(scan=scan, task=task, select_rows=select))


def _make_receipts(
    thread: ConsumerThread, task: int, unclear: Mapping[str, IscpError]
) -> Iterator[Receipt]:
    target = thread.scan.name
    if thread.failure is not None:
        yield make_failure_receipt(target, task, thread.failure)
        return
    retriever = thread.retriever
    stopped = {
        tenant: unclear[tenant] for tenant in unclear.keys() & thread.scan.tenants
    } | retriever.refused
    for tenant, error in sorted(stopped.items()):
        yield make_failure_receipt(target, task, error, tenant)
    for number, tenant in enumerate(
        sorted((retriever.inserted | retriever.deleted).keys() - stopped.keys())
    ):
        # Chunks and seconds are the task's, so only its first receipt has them.
        yield Receipt(
            target=target,
            tenant=tenant,
            partition=task,
            inserted=retriever.inserted[tenant],
            deleted=retriever.deleted[tenant],
            bytes=retriever.bytes[tenant],
            chunks=retriever.chunks if number == 0 else 0,
            seconds=retriever.seconds if number == 0 else 0.0,
            resent=retriever.resent,
        )


def make_scan_task(
    writer: TaskWriter, to_rows: Mapped = pass_through, *, relayed: tuple[str, ...] = ()
) -> Mapped:
    """`writer` for `mapInArrow`: batches in, which `to_rows` turns into rows; receipts out.

    Columns `relayed` to the run's process go out too, each chunk as an Arrow stream, before the
    receipts.
    """

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = context.partitionId() if context else 0
        receipts: list[Receipt] = []
        try:
            for chunk in writer.write_chunks(partition, to_rows(batches), receipts):
                if relayed:
                    yield from _pack_rows(chunk.select(list(relayed)))
            if context and context.attemptNumber():
                receipts = [replace(receipt, resent=True) for receipt in receipts]
        except IscpError as error:
            targets = [scan.name for scan in writer.scans] + ([""] if relayed else [])
            receipts = [make_failure_receipt(name, partition, error) for name in targets]
        columns = zip(*map(astuple, receipts), strict=True)
        arrays = [
            pa.array(values, type=field_.type)
            for values, field_ in zip(columns, RECEIPT_SCHEMA, strict=False)
        ]
        if arrays:
            yield _add_payload(arrays, [None] * len(receipts))

    return write


def _pack_rows(chunk: pa.Table) -> Iterator[pa.RecordBatch]:
    for start in range(0, chunk.num_rows, ROWS_PER_RELAY):
        for _, piece in cut_pieces(chunk.slice(start, ROWS_PER_RELAY)):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, piece.schema) as stream:
                stream.write_table(piece)
            arrays = [pa.nulls(1, field_.type) for field_ in RECEIPT_SCHEMA]
            yield _add_payload(arrays, [sink.getvalue().to_pybytes()])


def _add_payload(arrays: list[pa.Array], payloads: list[bytes | None]) -> pa.RecordBatch:
    payload = pa.array(payloads, type=pa.binary())
    return pa.RecordBatch.from_arrays([*arrays, payload], schema=SCAN_SCHEMA)


def unpack_rows(payload: bytes) -> pa.Table:
    """The rows that a task relayed."""
    with pa.ipc.open_stream(payload) as stream:
        return stream.read_all()
