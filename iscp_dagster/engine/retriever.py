"""A consumer at work in the run's process: a thread of its own, fed by the scan it shares."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from iscp_dagster.core.batch import Range
from iscp_dagster.core.consumers import Consumer, DataType
from iscp_dagster.core.errors import IscpError
from iscp_dagster.core.jobs import JobID
from iscp_dagster.core.tables import DEFAULT_TENANT
from iscp_dagster.lake.checks import DELETED, TIMESTAMP, VERSION

AHEAD = 2
"""Batches that wait for a slow consumer before the scan does."""
_LOOK_SECONDS = 0.2


class ConsumerError(IscpError):
    """A consumer failed in a way that it did not name."""

    code = 10_500


class _End:
    """There is no more."""


@dataclass(kw_only=True)
class Retriever:
    """What one consumer reads; `put`, `end` and `abort` are the scan's side of it."""

    job: JobID
    job_id: int
    tenants: frozenset[str]
    range: Range
    data_type: DataType
    columns: tuple[str, ...]
    """Of an insert batch, before the system columns."""
    identity: tuple[str, ...]
    """Of a delete batch, likewise: tenant and key."""
    tenant_column: str | None
    settle: Callable[[Any, Retriever], None]
    """Move the watermark in the transaction of a connection."""
    inserted: Counter[str] = field(default_factory=Counter)
    deleted: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    settled: bool = False
    drained: bool = False
    _queue: queue.Queue[Any] = field(default_factory=lambda: queue.Queue(AHEAD), repr=False)

    def next(self) -> tuple[pa.RecordBatch | None, pa.RecordBatch | None, bool]:
        """See `core.consumers.DataRetriever`."""
        if self.drained:
            return None, None, True
        item = self._queue.get()
        if isinstance(item, BaseException):
            raise item
        if isinstance(item, _End):
            self.drained = True
            return None, None, True
        return self._split(item)

    def update_watermark(self, connection: Any = None) -> None:
        """See `core.consumers.DataRetriever`."""
        if not self.drained:
            raise ConsumerError(
                f"Consumer of {self.job}: the watermark moves when there is no more to read; call "
                "next() until it says so."
            )
        if connection is not None and not self.settled:
            self.settle(connection, self)
            self.settled = True

    def put(self, rows: pa.Table, alive: Callable[[], bool]) -> None:
        """Hand rows on as soon as there is room, or never if the consumer is gone."""
        self._offer(rows, alive)

    def end(self, alive: Callable[[], bool]) -> None:
        self._offer(_End(), alive)

    def abort(self, error: BaseException, alive: Callable[[], bool]) -> None:
        """The scan ends early: whoever waits for more gets the error."""
        self._offer(error, alive)

    def _offer(self, item: Any, alive: Callable[[], bool]) -> None:
        while alive():
            try:
                return self._queue.put(item, timeout=_LOOK_SECONDS)
            except queue.Full:
                continue
        return None

    def _split(self, rows: pa.Table) -> tuple[pa.RecordBatch | None, pa.RecordBatch | None, bool]:
        gone = pc.cast(rows[DELETED], pa.bool_())
        self._count(rows, gone)
        rows = rows.set_column(
            rows.schema.get_field_index(TIMESTAMP),
            TIMESTAMP,
            rows[TIMESTAMP].cast(pa.int64()).cast(pa.timestamp("us", tz="UTC")),
        )
        live = rows.filter(pc.invert(gone)).select([*self.columns, VERSION, TIMESTAMP])
        dead = rows.filter(gone).select([*self.identity, VERSION, TIMESTAMP])
        return _batch(live), _batch(dead), False

    def _count(self, rows: pa.Table, gone: pa.ChunkedArray) -> None:
        self.bytes += rows.nbytes
        tenants = [DEFAULT_TENANT] * rows.num_rows
        if self.tenant_column is not None:
            tenants = pc.cast(rows[self.tenant_column], pa.string()).to_pylist()
        for tenant, is_gone in zip(tenants, gone.to_pylist(), strict=True):
            (self.deleted if is_gone else self.inserted)[tenant] += 1


class Worker:
    """A thread that runs one consumer; what it raised is in `failure`."""

    def __init__(self, make: Callable[[], Consumer], retriever: Retriever) -> None:
        self.retriever = retriever
        self.failure: IscpError | None = None
        self._make = make
        self._thread = threading.Thread(target=self._run, name=str(retriever.job), daemon=True)
        self._thread.start()

    def put(self, rows: pa.Table) -> None:
        self.retriever.put(rows, self._thread.is_alive)

    def end(self) -> None:
        """Say that there is no more and wait for the consumer to return."""
        self.retriever.end(self._thread.is_alive)
        self._thread.join()

    def abort(self, error: BaseException) -> None:
        """Say that the scan failed and wait for the consumer to give up."""
        self.retriever.abort(error, self._thread.is_alive)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._make().consume(self.retriever)
        except IscpError as error:
            self.failure = error
        except Exception as error:  # noqa: BLE001 - whatever a user's code raises is its result
            reason = f"{type(error).__name__}: {error}"
            self.failure = ConsumerError(f"Consumer of {self.retriever.job} failed: {reason}")
        else:
            if not self.retriever.drained:
                self.failure = ConsumerError(
                    f"Consumer of {self.retriever.job} returned before there was no more to read; "
                    "call next() until it says so."
                )


def _batch(rows: pa.Table) -> pa.RecordBatch | None:
    return rows.combine_chunks().to_batches()[0] if rows.num_rows else None
