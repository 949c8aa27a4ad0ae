"""What a consumer gets of a scan that it shares with others, and the thread that it works in."""

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

from iscp_dagster.clickhouse.write.chunks import batches_of
from iscp_dagster.clickhouse.write.consumer import IndexConsumer
from iscp_dagster.clickhouse.write.tenantwise import among, named, parted
from iscp_dagster.model.batch import Range
from iscp_dagster.model.consumers.protocol import Consumer, DataType
from iscp_dagster.model.declared.schema import DELETED, SYSTEM_COLUMNS, TIMESTAMP, VERSION
from iscp_dagster.model.declared.tables import DEFAULT_TENANT
from iscp_dagster.model.errors import IscpError
from iscp_dagster.model.jobs import JobID
from iscp_dagster.serviceconsumers.errors import as_job_errors

AHEAD = 2
"""Batches that wait for a slow consumer before the scan does."""
_LOOK_SECONDS = 0.2
GIVE_UP_SECONDS = 5.0
"""How long an interrupted run waits for a consumer that works on and asks for no rows."""


class ConsumerError(IscpError):
    """A consumer failed with an error of its own, or did not read to the end."""

    code = 10_500


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one job gets of a scan; picklable, so that Spark can ship it with its consumer."""

    job: JobID
    registrations: Mapping[str, int]
    """The registration of the job of each tenant whose rows it gets."""
    range: Range
    data_type: DataType
    columns: tuple[str, ...]
    """The columns of an insert batch, before the system columns."""
    identity: tuple[str, ...]
    """The columns of a delete batch, before the system columns: tenant and key at least."""
    tenant_column: str | None
    build: str = ""
    consumer: IndexConsumer | None = None
    """The consumer that runs where the rows are; None: it is made in the run's process."""
    others: bool = False
    """Whether the scan has rows of other tenants too."""
    found: Mapping[str, str] = field(default_factory=dict)
    """The scan's names of columns that it calls otherwise."""

    @property
    def tenants(self) -> frozenset[str]:
        """The tenants whose rows it gets."""
        return frozenset(self.registrations)

    def scanned(self, names: Iterable[str]) -> tuple[str, ...]:
        """The scan's names of these columns."""
        return tuple(self.found.get(name, name) for name in names)

    @property
    def name(self) -> str:
        """Its name in receipts: `docs.symbols/mirror`."""
        return f"{self.job.db}.{self.job.table}/{self.job.job}"


@dataclass(kw_only=True)
class Retriever:
    """What one consumer reads; its `Worker` is the scan's side of it.

    `inserted`, `deleted` and `bytes` count by tenant what was handed out, `chunks` the pieces,
    `seconds` the time that the consumer took.
    """

    share: Share
    task: int = 0
    mine: Callable[[pa.Table], pa.Table] | None = None
    """Selects the consumer's rows from the scan's; None: all. The consumer gets its errors."""
    fences: Mapping[str, int] = field(default_factory=dict)
    lost: Callable[[], Mapping[str, IscpError]] = dict
    """The tenants whose jobs the run no longer holds, with the error."""
    settle: Callable[[Any, Retriever], Mapping[Any, Any]] | None = None
    """Moves the watermarks in the transaction of a connection, and returns the claims of the next
    steps by job; None: no transaction can be shared.
    """
    inserted: Counter[str] = field(default_factory=Counter)
    deleted: Counter[str] = field(default_factory=Counter)
    aside: Counter[str] = field(default_factory=Counter)
    """Rows by tenant that are dead letters; `inserted` does not count them."""
    bytes: Counter[str] = field(default_factory=Counter)
    refused: dict[str, IscpError] = field(default_factory=dict)
    """The tenants whose rows are no longer handed out, and why."""
    told: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """By tenant, what the consumer reports besides rows."""
    chunks: int = 0
    seconds: float = 0.0
    settled: Mapping[Any, Any] | None = None
    """What `settle` returned."""
    drained: bool = False
    again: bool = False
    """Whether rows were sent more than once."""
    broken: bool = False
    """Whether the scan failed, or its run was interrupted: whatever comes of it does not count."""
    coming: queue.Queue[pa.Table | BaseException | None] = field(
        default_factory=lambda: queue.Queue(AHEAD), repr=False
    )
    """Rows of the scan, then the error that ended it, or None at its end."""
    _handed: float | None = None
    _waiting: list[pa.Table] = field(default_factory=list, repr=False)

    @property
    def job(self) -> JobID:
        return self.share.job

    @property
    def registrations(self) -> Mapping[str, int]:
        return self.share.registrations

    @property
    def tenants(self) -> frozenset[str]:
        return self.share.tenants

    @property
    def range(self) -> Range:
        return self.share.range

    @property
    def data_type(self) -> DataType:
        return self.share.data_type

    @property
    def build(self) -> str:
        return self.share.build

    def next(
        self, *, delete_first: bool = False
    ) -> tuple[pa.RecordBatch | None, pa.RecordBatch | None, bool]:
        """See `model.consumers.DataRetriever`."""
        rows = self._taken()
        if rows is None:
            return None, None, True
        found = self._split(rows, delete_first=delete_first)
        self._handed = time.perf_counter()
        return found

    def by_tenant(self, batch: pa.RecordBatch | None) -> Mapping[str, pa.RecordBatch]:
        """See `model.consumers.DataRetriever`."""
        column = self.share.tenant_column
        if batch is None:
            return {}
        if column is None or len(self.tenants) == 1:
            return dict.fromkeys(self.tenants, batch)
        rows = pa.Table.from_batches([batch])
        parts = parted(rows, named(rows, column))
        return {each.tenant: each.rows.combine_chunks().to_batches()[0] for each in parts}

    def marked(self) -> pa.Table | None:
        """See `model.consumers.DataRetriever`."""
        rows = self._taken()
        if rows is not None:
            marked = self._stamped(rows, self.share.columns)
            rows = marked.append_column(DELETED, self._gone(rows)).combine_chunks()
            self._handed = time.perf_counter()
        return rows

    def _taken(self) -> pa.Table | None:
        """The next rows, counted; None: no more."""
        if self._handed is not None:
            self.seconds += time.perf_counter() - self._handed
            self._handed = None
        if self.drained:
            return None
        rows = self._rows()
        # Only after the wait, which may have been long.
        rows = self._held(rows)
        if rows is None:
            self.drained = True
            return None
        self.chunks += 1
        gone = self._gone(rows)
        self._count(rows, pc.invert(gone), self.inserted)
        self._count(rows, gone, self.deleted)
        return rows

    def _held(self, rows: pa.Table | None) -> pa.Table | None:
        """The rows without those of jobs that the run lost. Raises FenceError if it lost all."""
        lost = self.lost()
        self.refused |= lost
        if lost and lost.keys() >= self.tenants:
            raise next(iter(lost.values()))
        return rows if rows is None or not lost else self._mine(rows)

    def _mine(self, rows: pa.Table) -> pa.Table:
        column = self.share.tenant_column
        if column is None or not (self.refused or self.share.others):
            return rows
        return among(rows, column, self.tenants - self.refused.keys())

    def _rows(self) -> pa.Table | None:
        """The next of the consumer's rows, at most as many as a batch holds; None: no more."""
        while True:
            while not self._waiting:
                chunk = self._chunk()
                if chunk is None:
                    return None
                wanted = self._wanted()
                mine = chunk.select(list(self.share.scanned(wanted))).rename_columns(wanted)
                self._waiting = list(batches_of(mine))
            some = self._waiting.pop(0)
            rows = self._mine(some if self.mine is None else self.mine(some))
            if rows.num_rows:
                return rows

    def _chunk(self) -> pa.Table | None:
        item = self.coming.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def _wanted(self) -> list[str]:
        """The columns of the shared scan that the consumer gets."""
        share = self.share
        tenant = (share.tenant_column,) if share.tenant_column else ()
        return list(dict.fromkeys((*share.columns, *share.identity, *tenant, *SYSTEM_COLUMNS)))

    def _gone(self, rows: pa.Table) -> pa.ChunkedArray:
        """Which of the rows are deletes; a snapshot has none."""
        if self.data_type is DataType.SNAPSHOT:
            return pa.chunked_array([pa.repeat(pa.scalar(value=False), rows.num_rows)])
        return pc.cast(rows[DELETED], pa.bool_())

    def counts(self, tenant: str) -> dict[str, int]:
        """The counts that the status of the tenant's job keeps."""
        return {
            "inserted": self.inserted[tenant],
            "deleted": self.deleted[tenant],
            "bytes": self.bytes[tenant],
            **{k: v for k, v in self.told.get(tenant, {}).items() if isinstance(v, int)},
        }

    def set_aside(self, rows: Mapping[str, int]) -> None:
        """See `model.consumers.DataRetriever`."""
        self.aside.update(rows)
        self.inserted.subtract(rows)

    def refuse(self, tenant: str, error: IscpError) -> None:
        """See `model.consumers.DataRetriever`."""
        self.refused[tenant] = error

    def tell(self, tenant: str, facts: Mapping[str, Any]) -> None:
        """See `model.consumers.DataRetriever`."""
        self.told[tenant] = facts

    def sent_again(self) -> None:
        """See `model.consumers.DataRetriever`."""
        self.again = True

    def update_watermark(self, connection: Any = None) -> None:
        """See `model.consumers.DataRetriever`."""
        if not self.drained:
            raise ConsumerError(
                f"Consumer of {self.job}: the watermark moves only when everything is read; call "
                "next() until it reports the end."
            )
        if connection is not None and self.settle is not None and self.settled is None:
            self.settled = self.settle(connection, self)

    def _split(
        self, rows: pa.Table, *, delete_first: bool
    ) -> tuple[pa.RecordBatch | None, pa.RecordBatch | None, bool]:
        gone = self._gone(rows)
        live, dead = rows.filter(pc.invert(gone)), rows.filter(gone)
        if delete_first and self.data_type is DataType.TAIL:
            dead = rows
        return (
            self._handed_out(live, self.share.columns),
            self._handed_out(dead, self.share.identity),
            False,
        )

    def _handed_out(self, rows: pa.Table, columns: tuple[str, ...]) -> pa.RecordBatch | None:
        if not rows.num_rows:
            return None
        (batch,) = self._stamped(rows, columns).combine_chunks().to_batches()
        return batch

    def _stamped(self, rows: pa.Table, columns: tuple[str, ...]) -> pa.Table:
        """These columns, version and time of rows that are handed out; no copy."""
        stamped = rows.select([*columns, VERSION, TIMESTAMP])
        times = rows[TIMESTAMP].cast(pa.int64()).cast(pa.timestamp("us", tz="UTC"))
        self._charge(rows, stamped)
        return stamped.set_column(stamped.schema.get_field_index(TIMESTAMP), TIMESTAMP, times)

    def _charge(self, rows: pa.Table, stamped: pa.Table) -> None:
        """Count the bytes handed out of each tenant's `rows`."""
        column = self.share.tenant_column
        if column is None or len(self.tenants) == 1:
            self.bytes.update(dict.fromkeys(self.tenants, stamped.nbytes))
            return
        for each in parted(stamped, named(rows, column)):
            self.bytes[each.tenant] += each.rows.nbytes

    def _count(self, rows: pa.Table, chosen: pa.ChunkedArray, counter: Counter[str]) -> None:
        column = self.share.tenant_column
        if column is None:
            found = pc.sum(chosen).as_py()
            counter.update({DEFAULT_TENANT: found} if found else {})
            return
        tenants = named(rows, column).filter(chosen)
        for each in pc.value_counts(tenants.combine_chunks()).to_pylist():
            counter[each["values"]] += each["counts"]


class Worker:
    """A thread that runs one consumer; what it raised is in `failure`."""

    def __init__(self, make: Callable[[], Consumer], retriever: Retriever) -> None:
        self.retriever = retriever
        self.failure: IscpError | None = None
        self.made = False
        """Whether the consumer could be made."""
        self._make = make
        self._thread = threading.Thread(target=self._run, name=str(retriever.job), daemon=True)
        self._thread.start()

    @property
    def share(self) -> Share:
        return self.retriever.share

    @property
    def going(self) -> bool:
        """Whether it takes more rows."""
        return self._thread.is_alive()

    def put(self, rows: pa.Table) -> None:
        """Hand rows on as soon as there is room, or never if the consumer is gone."""
        self._offer(rows)

    def end(self) -> None:
        """Say that there are no more rows and wait for the consumer to return."""
        self._offer(None)
        self._thread.join()

    def abort(self, error: BaseException) -> None:
        """Say that the scan failed and wait for the consumer to give up.

        An interrupted run waits GIVE_UP_SECONDS at most: its process ends, and the consumer with
        it.
        """
        failed = isinstance(error, Exception)
        self.retriever.broken = True
        # The error must not wait behind rows that nobody wants any more.
        with suppress(queue.Empty):
            while True:
                self.retriever.coming.get_nowait()
        gone = ConsumerError(f"The run of {self.retriever.job} was interrupted.")
        self._offer(error if failed else gone)
        self._thread.join(None if failed else GIVE_UP_SECONDS)

    def _offer(self, item: pa.Table | BaseException | None) -> None:
        while self._thread.is_alive():
            try:
                return self.retriever.coming.put(item, timeout=_LOOK_SECONDS)
            except queue.Full:
                continue
        return None

    def _run(self) -> None:
        try:
            consumer = self._make()
            self.made = True
            with as_job_errors():
                consumer.consume(self.retriever)
        except IscpError as error:
            self.failure = error
        except Exception as error:  # noqa: BLE001 - whatever a user's code raises is its result
            reason = f"{type(error).__name__}: {error}"
            self.failure = ConsumerError(f"Consumer of {self.retriever.job} failed: {reason}")
        else:
            if not self.retriever.drained:
                self.failure = ConsumerError(
                    f"Consumer of {self.retriever.job} returned before it had read everything; "
                    "call next() until it reports the end."
                )
