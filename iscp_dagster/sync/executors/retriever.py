"""A consumer's share of a scan, and the thread that the consumer runs in."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from iscp_dagster.clickhouse.write.chunks import cut_batches
from iscp_dagster.clickhouse.write.consumer import IndexConsumer
from iscp_dagster.clickhouse.write.tenant_split import (
    filter_tenants,
    get_row_tenants,
    split_by_tenant,
)
from iscp_dagster.model.batch import Range
from iscp_dagster.model.consumers.protocol import Consumer, DataType
from iscp_dagster.model.declared.schema import DELETED, SYSTEM_COLUMNS, TIMESTAMP, VERSION
from iscp_dagster.model.declared.tables import DEFAULT_TENANT
from iscp_dagster.model.errors import IscpError
from iscp_dagster.model.jobs import JobID
from iscp_dagster.serviceconsumers.errors import raise_job_errors

AHEAD = 2
"""Batches that wait for a slow consumer before the scan does."""
_PUT_SECONDS = 0.2
GIVE_UP_SECONDS = 5.0
"""How long an interrupted run waits for a consumer that is busy and takes no rows."""


class ConsumerError(IscpError):
    """A consumer failed with an error of its own, or did not read to the end."""

    code = 10_500


@dataclass(frozen=True, kw_only=True)
class ConsumerScan:
    """What one job gets of a scan; picklable, so that Spark can ship it with its consumer."""

    job: JobID
    registrations: Mapping[str, int]
    """The registration of the job of each tenant whose rows it gets."""
    range: Range
    data_type: DataType
    columns: tuple[str, ...]
    """The columns of an insert batch, before the system columns."""
    delete_columns: tuple[str, ...]
    """The columns of a delete batch, before the system columns: tenant and key at least."""
    tenant_column: str | None
    batch_name: str = ""
    consumer: IndexConsumer | None = None
    """The consumer that runs where the rows are; None: it is made in the run's process."""
    others: bool = False
    """Whether the scan has rows of other tenants too."""
    scan_names: Mapping[str, str] = field(default_factory=dict)
    """By column, its name in the scan, if that differs."""

    @property
    def tenants(self) -> frozenset[str]:
        """The tenants whose rows it gets."""
        return frozenset(self.registrations)

    def get_scan_names(self, names: Iterable[str]) -> tuple[str, ...]:
        """The scan's names of these columns."""
        return tuple(self.scan_names.get(name, name) for name in names)

    @property
    def name(self) -> str:
        """Its name in receipts: `docs.symbols/mirror`."""
        return f"{self.job.db}.{self.job.table}/{self.job.job}"


@dataclass(kw_only=True)
class Retriever:
    """What one consumer reads; its `ConsumerThread` is the scan's side of it.

    `inserted`, `deleted` and `bytes` count by tenant what was handed out, `chunks` the pieces,
    `seconds` the time that the consumer took.
    """

    scan: ConsumerScan
    task: int = 0
    select_rows: Callable[[pa.Table], pa.Table] | None = None
    """Selects the consumer's rows from the scan's; None: all. The consumer gets its errors."""
    fences: Mapping[str, int] = field(default_factory=dict)
    find_lost_tenants: Callable[[], Mapping[str, IscpError]] = dict
    """The tenants whose jobs the run no longer holds, with the error."""
    move_watermarks: Callable[[Any, Retriever], Mapping[Any, Any]] | None = None
    """Moves the watermarks in the transaction of a connection, and returns the claims of the next
    steps by job; None: no transaction can be shared.
    """
    inserted: Counter[str] = field(default_factory=Counter)
    deleted: Counter[str] = field(default_factory=Counter)
    dead_letters: Counter[str] = field(default_factory=Counter)
    """Rows by tenant that are dead letters; `inserted` does not count them."""
    bytes: Counter[str] = field(default_factory=Counter)
    refused: dict[str, IscpError] = field(default_factory=dict)
    """The tenants whose rows are no longer handed out, and why."""
    reports: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """By tenant, what the consumer reports besides rows."""
    chunks: int = 0
    seconds: float = 0.0
    next_claims: Mapping[Any, Any] | None = None
    """What `move_watermarks` returned."""
    drained: bool = False
    resent: bool = False
    """Whether rows were sent more than once."""
    broken: bool = False
    """Whether the scan failed, or its run was interrupted: its rows do not count."""
    messages: queue.Queue[pa.Table | BaseException | None] = field(
        default_factory=lambda: queue.Queue(AHEAD), repr=False
    )
    """Rows of the scan, then the error that ended it, or None at its end."""
    _handed_at: float | None = None
    _pending: list[pa.Table] = field(default_factory=list, repr=False)

    @property
    def job(self) -> JobID:
        return self.scan.job

    @property
    def registrations(self) -> Mapping[str, int]:
        return self.scan.registrations

    @property
    def tenants(self) -> frozenset[str]:
        return self.scan.tenants

    @property
    def range(self) -> Range:
        return self.scan.range

    @property
    def data_type(self) -> DataType:
        return self.scan.data_type

    @property
    def batch_name(self) -> str:
        return self.scan.batch_name

    def next(
        self, *, delete_first: bool = False
    ) -> tuple[pa.RecordBatch | None, pa.RecordBatch | None, bool]:
        """See `model.consumers.DataRetriever`."""
        rows = self._take_rows()
        if rows is None:
            return None, None, True
        batches = self._split_rows(rows, delete_first=delete_first)
        self._handed_at = time.perf_counter()
        return batches

    def split_by_tenant(self, batch: pa.RecordBatch | None) -> Mapping[str, pa.RecordBatch]:
        """See `model.consumers.DataRetriever`."""
        column = self.scan.tenant_column
        if batch is None:
            return {}
        if column is None or len(self.tenants) == 1:
            return dict.fromkeys(self.tenants, batch)
        rows = pa.Table.from_batches([batch])
        parts = split_by_tenant(rows, get_row_tenants(rows, column))
        return {part.tenant: part.rows.combine_chunks().to_batches()[0] for part in parts}

    def read_marked_rows(self) -> pa.Table | None:
        """See `model.consumers.DataRetriever`."""
        rows = self._take_rows()
        if rows is not None:
            marked = self._select_columns(rows, self.scan.columns)
            rows = marked.append_column(DELETED, self._mask_deletes(rows)).combine_chunks()
            self._handed_at = time.perf_counter()
        return rows

    def _take_rows(self) -> pa.Table | None:
        """The next rows, counted; None: no more."""
        if self._handed_at is not None:
            self.seconds += time.perf_counter() - self._handed_at
            self._handed_at = None
        if self.drained:
            return None
        rows = self._read_rows()
        # Only after the wait, which may have been long.
        rows = self._drop_lost(rows)
        if rows is None:
            self.drained = True
            return None
        self.chunks += 1
        deleted = self._mask_deletes(rows)
        self._count_rows(rows, pc.invert(deleted), self.inserted)
        self._count_rows(rows, deleted, self.deleted)
        return rows

    def _drop_lost(self, rows: pa.Table | None) -> pa.Table | None:
        """The rows without those of jobs that the run lost. Raises FenceError if it lost all."""
        claim_errors = self.find_lost_tenants()
        self.refused |= claim_errors
        if claim_errors and claim_errors.keys() >= self.tenants:
            raise next(iter(claim_errors.values()))
        return rows if rows is None or not claim_errors else self._filter_tenants(rows)

    def _filter_tenants(self, rows: pa.Table) -> pa.Table:
        column = self.scan.tenant_column
        if column is None or not (self.refused or self.scan.others):
            return rows
        return filter_tenants(rows, column, self.tenants - self.refused.keys())

    def _read_rows(self) -> pa.Table | None:
        """The consumer's next rows, at most one batch; None: no more."""
        while True:
            while not self._pending:
                chunk = self._take_chunk()
                if chunk is None:
                    return None
                columns = self._list_columns()
                selected = chunk.select(list(self.scan.get_scan_names(columns))).rename_columns(
                    columns
                )
                self._pending = list(cut_batches(selected))
            piece = self._pending.pop(0)
            rows = self._filter_tenants(
                piece if self.select_rows is None else self.select_rows(piece)
            )
            if rows.num_rows:
                return rows

    def _take_chunk(self) -> pa.Table | None:
        message = self.messages.get()
        if isinstance(message, BaseException):
            raise message
        return message

    def _list_columns(self) -> list[str]:
        """The columns of the shared scan that the consumer gets."""
        scan = self.scan
        tenant = (scan.tenant_column,) if scan.tenant_column else ()
        return list(dict.fromkeys((*scan.columns, *scan.delete_columns, *tenant, *SYSTEM_COLUMNS)))

    def _mask_deletes(self, rows: pa.Table) -> pa.ChunkedArray:
        """Which of the rows are deletes; a snapshot has none."""
        if self.data_type is DataType.SNAPSHOT:
            return pa.chunked_array([pa.repeat(pa.scalar(value=False), rows.num_rows)])
        return pc.cast(rows[DELETED], pa.bool_())

    def get_counts(self, tenant: str) -> dict[str, int]:
        """The counts that the status of the tenant's job keeps."""
        return {
            "inserted": self.inserted[tenant],
            "deleted": self.deleted[tenant],
            "bytes": self.bytes[tenant],
            **{k: v for k, v in self.reports.get(tenant, {}).items() if isinstance(v, int)},
        }

    def set_aside(self, rows: Mapping[str, int]) -> None:
        """See `model.consumers.DataRetriever`."""
        self.dead_letters.update(rows)
        self.inserted.subtract(rows)

    def refuse(self, tenant: str, error: IscpError) -> None:
        """See `model.consumers.DataRetriever`."""
        self.refused[tenant] = error

    def report(self, tenant: str, facts: Mapping[str, Any]) -> None:
        """See `model.consumers.DataRetriever`."""
        self.reports[tenant] = facts

    def report_resend(self) -> None:
        """See `model.consumers.DataRetriever`."""
        self.resent = True

    def update_watermark(self, connection: Any = None) -> None:
        """See `model.consumers.DataRetriever`."""
        if not self.drained:
            raise ConsumerError(
                f"Consumer of {self.job}: the watermark moves only when everything is read; call "
                "next() until it reports the end."
            )
        if connection is not None and self.move_watermarks is not None and self.next_claims is None:
            self.next_claims = self.move_watermarks(connection, self)

    def _split_rows(
        self, rows: pa.Table, *, delete_first: bool
    ) -> tuple[pa.RecordBatch | None, pa.RecordBatch | None, bool]:
        deleted = self._mask_deletes(rows)
        inserts, deletes = rows.filter(pc.invert(deleted)), rows.filter(deleted)
        if delete_first and self.data_type is DataType.TAIL:
            deletes = rows
        return (
            self._make_batch(inserts, self.scan.columns),
            self._make_batch(deletes, self.scan.delete_columns),
            False,
        )

    def _make_batch(self, rows: pa.Table, columns: tuple[str, ...]) -> pa.RecordBatch | None:
        if not rows.num_rows:
            return None
        (batch,) = self._select_columns(rows, columns).combine_chunks().to_batches()
        return batch

    def _select_columns(self, rows: pa.Table, columns: tuple[str, ...]) -> pa.Table:
        """These columns, version and time of rows that are handed out; no copy."""
        stamped = rows.select([*columns, VERSION, TIMESTAMP])
        times = rows[TIMESTAMP].cast(pa.int64()).cast(pa.timestamp("us", tz="UTC"))
        self._count_bytes(rows, stamped)
        return stamped.set_column(stamped.schema.get_field_index(TIMESTAMP), TIMESTAMP, times)

    def _count_bytes(self, rows: pa.Table, stamped: pa.Table) -> None:
        """Count the bytes handed out of each tenant's `rows`."""
        column = self.scan.tenant_column
        if column is None or len(self.tenants) == 1:
            self.bytes.update(dict.fromkeys(self.tenants, stamped.nbytes))
            return
        for part in split_by_tenant(stamped, get_row_tenants(rows, column)):
            self.bytes[part.tenant] += part.rows.nbytes

    def _count_rows(self, rows: pa.Table, mask: pa.ChunkedArray, counter: Counter[str]) -> None:
        column = self.scan.tenant_column
        if column is None:
            total = pc.sum(mask).as_py()
            counter.update({DEFAULT_TENANT: total} if total else {})
            return
        tenants = get_row_tenants(rows, column).filter(mask)
        for count in pc.value_counts(tenants.combine_chunks()).to_pylist():
            counter[count["values"]] += count["counts"]


class ConsumerThread:
    """A thread that runs one consumer; what it raised is in `failure`."""

    def __init__(self, make: Callable[[], Consumer], retriever: Retriever) -> None:
        self.retriever = retriever
        self.failure: IscpError | None = None
        self.made = False
        """Whether the consumer could be made."""
        self._make_consumer = make
        self._thread = threading.Thread(
            target=self._run_consumer, name=str(retriever.job), daemon=True
        )
        self._thread.start()

    @property
    def scan(self) -> ConsumerScan:
        return self.retriever.scan

    @property
    def is_alive(self) -> bool:
        """Whether it takes more rows."""
        return self._thread.is_alive()

    def put(self, rows: pa.Table) -> None:
        """Hand rows on as soon as there is room, or never if the consumer is gone."""
        self._offer_item(rows)

    def end(self) -> None:
        """Signal the end of the rows and wait for the consumer to return."""
        self._offer_item(None)
        self._thread.join()

    def abort(self, error: BaseException) -> None:
        """Report that the scan failed and wait for the consumer to give up.

        An interrupted run waits GIVE_UP_SECONDS at most: its process ends, and the consumer with
        it.
        """
        is_failure = isinstance(error, Exception)
        self.retriever.broken = True
        # The error must not wait behind rows that are useless now.
        with suppress(queue.Empty):
            while True:
                self.retriever.messages.get_nowait()
        interruption = ConsumerError(f"The run of {self.retriever.job} was interrupted.")
        self._offer_item(error if is_failure else interruption)
        self._thread.join(None if is_failure else GIVE_UP_SECONDS)

    def _offer_item(self, message: pa.Table | BaseException | None) -> None:
        while self._thread.is_alive():
            try:
                return self.retriever.messages.put(message, timeout=_PUT_SECONDS)
            except queue.Full:
                continue
        return None

    def _run_consumer(self) -> None:
        try:
            consumer = self._make_consumer()
            self.made = True
            with raise_job_errors():
                consumer.consume(self.retriever)
        except IscpError as error:
            self.failure = error
        except Exception as error:  # noqa: BLE001 - any error of user code is the consumer's failure
            reason = f"{type(error).__name__}: {error}"
            self.failure = ConsumerError(f"Consumer of {self.retriever.job} failed: {reason}")
        else:
            if not self.retriever.drained:
                self.failure = ConsumerError(
                    f"Consumer of {self.retriever.job} returned before it had read everything; "
                    "call next() until it reports the end."
                )
