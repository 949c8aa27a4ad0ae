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

from iscp_dagster.clickhouse.chunks import ROWS_PER_CHUNK, chunks, digest, sized_chunks
from iscp_dagster.clickhouse.endpoint import Endpoint, shared_client
from iscp_dagster.core.batch import Range
from iscp_dagster.core.errors import FeedGoneError, IscpError, KeyColumnError, SchemaError
from iscp_dagster.core.tables import DEFAULT_TENANT
from iscp_dagster.core.tokens import chunk_token

ATTEMPTS = 4
FIRST_WAIT = 0.5
"""Seconds before the second attempt of a chunk; doubled for each further one."""

REPEATS = "_repeats"
"""Marks, in a scan of changes, a key that one commit put in more than once."""

RECEIPT_DDL = (
    "target string, tenant string, partition int, inserted bigint, deleted bigint, "
    "bytes bigint, chunks int, seconds double, code int, message string"
)
"""Spark's schema of `Receipt`, in the same order."""


@dataclass(frozen=True, kw_only=True)
class TokenSeed:
    """What a chunk's token is made of, besides its number and its content."""

    job_id: int
    tenants: frozenset[str]
    range: Range


@dataclass(frozen=True, kw_only=True)
class Target:
    """A ClickHouse table that takes a part of the scan's columns."""

    name: str
    """Which index: `docs.symbols/mirror`."""
    database: str
    table: str
    columns: tuple[str, ...]
    keys: tuple[str, ...]
    tenant: str | None
    system: tuple[str, str, str]
    """The names of the version, timestamp and deleted columns."""
    token: TokenSeed | None
    """What makes chunk tokens; None: no deduplication (a staging table)."""
    never_null: tuple[str, ...] = ()
    """Columns of arrays, maps and structs, for which ClickHouse has no null."""
    vector: str | None = None
    dimension: int = 0

    @property
    def deleted(self) -> str:
        return self.system[2]


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
            yield Receipt(
                target=self.target.name,
                tenant="",
                partition=partition,
                code=self.failure.code,
                message=str(self.failure),
            )
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

    def __call__(self, partition: int, batches: Iterable[pa.RecordBatch]) -> list[Receipt]:
        tallies = [_Tally(target) for target in self.targets]
        for number, rows in enumerate(self._chunks(batches)):
            chunk = rows if self.stamp is None else _stamped(rows, self.targets[0], self.stamp)
            for tally in tallies:
                if tally.failure is None:
                    self._write(tally, chunk, (partition, number))
        return [receipt for tally in tallies for receipt in tally.receipts(partition)]

    def _chunks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        rows = self.rows_per_chunk
        return sized_chunks(batches) if rows is None else chunks(batches, rows)

    def _write(self, tally: _Tally, chunk: pa.Table, at: tuple[int, int]) -> None:
        started = time.perf_counter()
        target = tally.target
        try:
            rows = fitted(target, chunk)
            tally.bytes += self._insert(target, rows, at)
        except IscpError as error:
            tally.failure = error
            return
        except pa.ArrowException as error:
            tally.failure = SchemaError(f"{target.name}: Arrow cannot shape the rows: {error}")
            return
        tally.seconds += time.perf_counter() - started
        tally.chunks += 1
        _count(tally, chunk)

    def _insert(self, target: Target, rows: pa.Table, at: tuple[int, int]) -> int:
        """Insert with bounded retries of the same chunk under the same token."""
        settings: dict[str, Any] = {"max_partitions_per_insert_block": 0, "async_insert": 0}
        if target.token is not None:
            settings["insert_deduplication_token"] = _token(target.token, rows, at)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with self.endpoint.errors(f"insert into {target.database}.{target.table}"):
                    self.endpoint.client().insert_arrow(
                        target.table, rows, database=target.database, settings=settings
                    )
                return int(rows.nbytes)
            except IscpError as error:
                if error.permanent or attempt == ATTEMPTS:
                    raise
                shared_client.cache_clear()
                self.sleep(FIRST_WAIT * 2 ** (attempt - 1))
        return 0


def _stamped(rows: pa.Table, target: Target, stamp: tuple[int, int]) -> pa.Table:
    """The rows of a snapshot with their system columns, which Spark need not hand over."""
    values = (
        pa.scalar(stamp[0], pa.int64()),
        pa.scalar(stamp[1], pa.int64()),
        pa.scalar(value=False),
    )
    for name, value in zip(target.system, values, strict=True):
        rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
    return rows


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


def fitted(target: Target, chunk: pa.Table) -> pa.Table:
    """The chunk as `target` stores it. Raises KeyColumnError, SchemaError for rows that cannot."""
    _refuse_repeats(target, chunk)
    for column in (*target.keys, *([target.tenant] if target.tenant else [])):
        _refuse_nulls(target, chunk, column)
    for column in target.never_null:
        _refuse_null_container(target, chunk, column)
    rows = _with_times(target, chunk.select([*target.columns, *target.system]))
    if target.vector is not None:
        rows = _with_whole_vectors(target, rows)
    return rows


def _refuse_repeats(target: Target, chunk: pa.Table) -> None:
    if REPEATS in chunk.schema.names and pc.any(chunk[REPEATS]).as_py():
        row = chunk.filter(chunk[REPEATS]).slice(0, 1).select(list(target.keys))
        raise FeedGoneError(
            f"{target.name}: one commit put in key {row.to_pylist()[0]} more than once, so the "
            "changes do not say which row is the last; a snapshot does."
        )


def _with_times(target: Target, rows: pa.Table) -> pa.Table:
    """Microseconds as the timestamps that they are; no copy."""
    name = target.system[1]
    column = rows[name].cast(pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    return rows.set_column(rows.schema.get_field_index(name), name, column)


def _refuse_nulls(target: Target, chunk: pa.Table, column: str) -> None:
    if chunk[column].null_count:
        row = chunk.filter(pc.is_null(chunk[column])).slice(0, 1).select(list(target.keys))
        raise KeyColumnError(
            f"{target.name}: key column {column!r} is null in row {row.to_pylist()[0]}; "
            "every row needs its key. Fill it in the source, or declare another key."
        )


def _refuse_null_container(target: Target, chunk: pa.Table, column: str) -> None:
    if not chunk[column].null_count:
        return
    live = pc.invert(pc.cast(chunk[target.deleted], pa.bool_()))
    wrong = chunk.filter(pc.and_(pc.is_null(chunk[column]), live)).slice(0, 1)
    if wrong.num_rows:
        raise SchemaError(
            f"{target.name}: column {column!r} is null in row "
            f"{wrong.select(list(target.keys)).to_pylist()[0]}, and ClickHouse has no null "
            "arrays, maps or tuples. Fill it in the source, or leave it out with columns=[...]."
        )


def _with_whole_vectors(target: Target, rows: pa.Table) -> pa.Table:
    """Check every live vector's length; give deleted rows one, which the graph demands."""
    vector = target.vector or ""
    column = rows[vector].combine_chunks()
    gone = pc.cast(rows[target.deleted], pa.bool_()).combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    wrong = pc.and_not(pc.not_equal(lengths, target.dimension), gone)
    if pc.any(wrong).as_py():
        row = rows.filter(wrong).slice(0, 1)
        length = len(row[vector][0].as_py() or ())
        raise SchemaError(
            f"{target.name}: vector column {vector!r} has {length} floats in row "
            f"{row.select(list(target.keys)).to_pylist()[0]}, not {target.dimension}; "
            "give every row a vector of the declared dimension."
        )
    if pc.any(gone).as_py():
        unit = pa.scalar([1.0, *[0.0] * (target.dimension - 1)], type=column.type)
        column = pc.if_else(gone, unit, column)
    return rows.set_column(rows.schema.get_field_index(vector), vector, column)


def _count(tally: _Tally, chunk: pa.Table) -> None:
    target = tally.target
    gone = pc.cast(chunk[target.deleted], pa.bool_())
    if target.tenant is None:
        deleted = pc.sum(pc.cast(gone, pa.int64())).as_py() or 0
        tally.deleted[DEFAULT_TENANT] += deleted
        tally.inserted[DEFAULT_TENANT] += chunk.num_rows - deleted
        return
    pairs = pa.table({"tenant": pc.cast(chunk[target.tenant], pa.string()), "gone": gone})
    counted = pairs.group_by(["tenant", "gone"]).aggregate([([], "count_all")])
    for row in counted.to_pylist():
        side = tally.deleted if row["gone"] else tally.inserted
        side[row["tenant"]] += row["count_all"]
