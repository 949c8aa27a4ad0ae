"""Write one scan's rows to the tables of all its indexes, from inside a Spark executor.

Runs in Spark's Python workers: it imports neither dagster nor pyspark.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from iscp_dagster.clickhouse.chunks import ROWS_PER_CHUNK, chunks, digest, sized_chunks
from iscp_dagster.clickhouse.endpoint import Endpoint, shared_client
from iscp_dagster.clickhouse.fitting import fitted, stamped
from iscp_dagster.clickhouse.replaced import refuse_replaced
from iscp_dagster.clickhouse.targets import Target, TokenSeed
from iscp_dagster.clickhouse.twins import refuse_twins
from iscp_dagster.core.errors import FeedGoneError, IscpError, SchemaError
from iscp_dagster.core.tables import DEFAULT_TENANT
from iscp_dagster.core.tokens import chunk_token

ATTEMPTS = 4
FIRST_WAIT = 0.5
"""Seconds before the second attempt of a chunk; doubled for each further one."""

EXACTLY = {
    "max_partitions_per_insert_block": 0,
    "async_insert": 0,
    "input_format_null_as_default": 0,
    "input_format_try_infer_dates": 0,
    "input_format_try_infer_datetimes": 0,
}
"""One insert a chunk, in which values stay what they are."""

RECEIPT_DDL = (
    "target string, tenant string, partition int, inserted bigint, deleted bigint, "
    "bytes bigint, chunks int, seconds double, code int, message string"
)
"""Spark's schema of `Receipt`, in the same order."""


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What one Spark task wrote to one target for one tenant. `code` as in seed 001."""

    target: str
    tenant: str
    partition: int
    inserted: int = 0
    deleted: int = 0
    bytes: int = 0
    chunks: int = 0
    seconds: float = 0.0
    code: int = 0
    message: str = ""


def refused(target: Target, partition: int, error: IscpError) -> Receipt:
    """The receipt of a task that failed."""
    return Receipt(
        target=target.name, tenant="", partition=partition, code=error.code, message=str(error)
    )


def refused_scan(partition: int, error: IscpError) -> Receipt:
    """The receipt for what a task that failed was to relay."""
    return Receipt(target="", tenant="", partition=partition, code=error.code, message=str(error))


@dataclass
class _Tally:
    """One target's progress within a task."""

    target: Target
    inserted: Counter[str] = field(default_factory=Counter)
    deleted: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    chunks: int = 0
    seconds: float = 0.0
    failure: IscpError | None = None

    def receipts(self, partition: int) -> Iterator[Receipt]:
        if self.failure is not None:
            yield refused(self.target, partition, self.failure)
            return
        tenants = sorted(self.inserted | self.deleted)
        for at, tenant in enumerate(tenants):
            # Bytes, chunks and seconds are the task's, so only its first receipt has them.
            yield Receipt(
                target=self.target.name,
                tenant=tenant,
                partition=partition,
                inserted=self.inserted[tenant],
                deleted=self.deleted[tenant],
                bytes=self.bytes if at == 0 else 0,
                chunks=self.chunks if at == 0 else 0,
                seconds=self.seconds if at == 0 else 0.0,
            )


@dataclass(frozen=True, kw_only=True)
class Writer:
    """Writes a task's batches to every target; picklable, so that Spark can ship it.

    Each chunk is one insert a target. A target that fails is left alone for the rest of the
    task, the others go on. Writing the same rows again is dropped by the token, or replaced by
    key. `stamp` is the (version, microseconds) of a snapshot, whose rows come without system
    columns and are all live.
    """

    endpoint: Endpoint
    targets: Sequence[Target]
    rows_per_chunk: int | None = ROWS_PER_CHUNK
    """None: as many as make a chunk of a good size, for staging."""
    stamp: tuple[int, int] | None = None
    sleep: Callable[[float], None] = time.sleep
    system: tuple[str, str, str] = ("_version", "_timestamp", "_deleted")
    """The names of the system columns that a snapshot's rows get."""

    def __call__(self, partition: int, batches: Iterable[pa.RecordBatch]) -> list[Receipt]:
        receipts: list[Receipt] = []
        for _ in self.written(partition, batches, receipts):
            pass
        return receipts

    def written(
        self, partition: int, batches: Iterable[pa.RecordBatch], receipts: list[Receipt]
    ) -> Iterator[pa.Table]:
        """Each chunk once it is written; `receipts` gets what was, at the end.

        Raises FeedGoneError for changes that do not say which rows remain; there are no receipts
        of the task then.
        """
        tallies = [_Tally(target) for target in self.targets]
        for number, rows in enumerate(self._chunks(batches)):
            chunk = self._whole(rows)
            self._refuse_twins(tallies, chunk)
            for tally in tallies:
                if tally.failure is None:
                    self._write(tally, chunk, (partition, number))
            yield chunk
        receipts += [receipt for tally in tallies for receipt in tally.receipts(partition)]

    def _whole(self, rows: pa.Table) -> pa.Table:
        """The rows with their system columns, as the source has them. Raises FeedGoneError."""
        if self.stamp is not None:
            return stamped(rows, self.system, self.stamp)
        refuse_replaced(rows)
        return rows

    def _chunks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        rows = self.rows_per_chunk
        return sized_chunks(batches) if rows is None else chunks(batches, rows)

    def _refuse_twins(self, tallies: Sequence[_Tally], chunk: pa.Table) -> None:
        """All targets served the same keys before, so one that still goes on speaks for all."""
        going = [tally for tally in tallies if tally.failure is None]
        if self.targets and not going:
            return
        target = going[0].target if going else None
        try:
            self._patiently(lambda: refuse_twins(self.endpoint, target, chunk))
        except FeedGoneError:
            raise
        except IscpError as error:
            for tally in going:
                tally.failure = error

    def _write(self, tally: _Tally, chunk: pa.Table, at: tuple[int, int]) -> None:
        started = time.perf_counter()
        target = tally.target
        try:
            rows = fitted(target, chunk)
            if rows.num_rows:
                tally.bytes += self._insert(target, rows, at)
        except IscpError as error:
            tally.failure = error
            return
        except pa.ArrowException as error:
            tally.failure = SchemaError(f"{target.name}: Arrow cannot shape the rows: {error}")
            return
        tally.seconds += time.perf_counter() - started
        tally.chunks += 1
        _count(tally, rows)

    def _insert(self, target: Target, rows: pa.Table, at: tuple[int, int]) -> int:
        """Insert, every attempt the same chunk under the same token."""
        settings: dict[str, Any] = dict(EXACTLY)
        if target.token is not None:
            settings["insert_deduplication_token"] = _token(target.token, rows, at)

        def insert() -> None:
            with self.endpoint.errors(f"insert into {target.database}.{target.table}"):
                self.endpoint.client().insert_arrow(
                    target.table, rows, database=target.database, settings=settings
                )

        self._patiently(insert)
        return int(rows.nbytes)

    def _patiently(self, ask: Callable[[], None]) -> None:
        """Ask ClickHouse, and again a few times, with a new client, where that may help."""
        Retrying(
            retry=retry_if_exception(_passes),
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_exponential(FIRST_WAIT),
            before_sleep=lambda _: shared_client.cache_clear(),
            sleep=self.sleep,
            reraise=True,
        )(ask)


def _passes(error: BaseException) -> bool:
    return isinstance(error, IscpError) and not error.permanent and error.code != FeedGoneError.code


def _token(seed: TokenSeed, rows: pa.Table, at: tuple[int, int]) -> str:
    partition, number = at
    return chunk_token(
        seed.job_id,
        seed.tenants,
        seed.range,
        partition_no=partition,
        chunk_no=number,
        content_digest=digest(rows),
    )


def _count(tally: _Tally, rows: pa.Table) -> None:
    target = tally.target
    gone = pc.cast(rows[target.deleted], pa.bool_())
    if target.tenant is None:
        deleted = pc.sum(pc.cast(gone, pa.int64())).as_py() or 0
        tally.deleted[DEFAULT_TENANT] += deleted
        tally.inserted[DEFAULT_TENANT] += rows.num_rows - deleted
        return
    pairs = pa.table({"tenant": pc.cast(rows[target.tenant], pa.string()), "gone": gone})
    counted = pairs.group_by(["tenant", "gone"]).aggregate([([], "count_all")])
    for row in counted.to_pylist():
        side = tally.deleted if row["gone"] else tally.inserted
        side[row["tenant"]] += row["count_all"]
