"""One scan of a range of a source table, written to the tables of all its indexes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from iscp_dagster.clickhouse.chunks import ROWS_PER_CHUNK
from iscp_dagster.clickhouse.ddl import SYSTEM_COLUMNS
from iscp_dagster.clickhouse.indexes import IndexStore
from iscp_dagster.clickhouse.targets import Target, TokenSeed
from iscp_dagster.clickhouse.types import holds_nulls
from iscp_dagster.clickhouse.writer import RECEIPT_DDL, Receipt, Writer
from iscp_dagster.core.batch import Range
from iscp_dagster.core.errors import FeedGoneError
from iscp_dagster.core.moment import Moment
from iscp_dagster.core.tables import Vector
from iscp_dagster.engine.executors import writing
from iscp_dagster.engine.source import Source
from iscp_dagster.lake.failures import reading
from iscp_dagster.lake.feed import ReadKind, ReadPlan
from iscp_dagster.lake.filescan import NotPlainError


@dataclass(frozen=True, kw_only=True)
class Sink:
    """One index that takes part in a scan; `job` is its name."""

    job: str
    job_id: int
    takes_over: bool = False


@dataclass(frozen=True, kw_only=True)
class Written:
    """What a scan wrote to one sink, in rows per tenant; `code` and `message` as in seed 001."""

    inserted: dict[str, int] = field(default_factory=dict)
    deleted: dict[str, int] = field(default_factory=dict)
    bytes: int = 0
    chunks: int = 0
    write_seconds: float = 0.0
    seconds: float = 0.0
    """Of the whole scan, shared by all its sinks."""
    code: int = 0
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Scanned:
    """What a scan read, and why so; what it wrote, by job."""

    plan: ReadPlan
    range: Range
    written: dict[str, Written]

    def failed_with(self, code: int) -> Written | None:
        """What the first sink says that failed with this code."""
        return next((each for each in self.written.values() if each.code == code), None)


def scan(
    source: Source, plan: ReadPlan, range_: Range, sinks: Sequence[Sink], *, rebuild_to: Moment
) -> Scanned:
    """Read the range once and write it to every sink.

    A snapshot goes to the sinks' staging tables, which are cleared first; changes go to the
    tables served, under tokens. Changes that turn out to be unreadable are left for a snapshot,
    which is of `rebuild_to`: the version recorded may be beyond reading too. A sink that fails has
    its code set, the others are whole.
    """
    whole = replace(range_, to=rebuild_to)
    if plan.kind is ReadKind.SNAPSHOT:
        return _snapshot(source, plan, whole, sinks)
    tail = _attempt(source, plan, range_, sinks)
    gone = tail.failed_with(FeedGoneError.code)
    if gone is None:
        return tail
    rebuild = ReadPlan(kind=ReadKind.SNAPSHOT, reason=gone.message)
    return _snapshot(source, rebuild, whole, sinks)


def _snapshot(source: Source, plan: ReadPlan, range_: Range, sinks: Sequence[Sink]) -> Scanned:
    """Files that Arrow would read otherwise than Spark are left to Spark."""
    found = _attempt(source, plan, range_, sinks, through_spark=False)
    if found.failed_with(NotPlainError.code) is None:
        return found
    return _attempt(source, plan, range_, sinks)


def _attempt(
    source: Source,
    plan: ReadPlan,
    range_: Range,
    sinks: Sequence[Sink],
    *,
    through_spark: bool = True,
) -> Scanned:
    started = time.perf_counter()
    staged = plan.kind is ReadKind.SNAPSHOT
    stores = {sink.job: source.store(sink.job, range_.to.version) for sink in sinks}
    for sink in sinks:
        stores[sink.job].ensure()
        # What an earlier run staged goes: should it wake up, `REPLACE PARTITION` finds nothing.
        if staged or sink.takes_over:
            stores[sink.job].clear_staging(sorted(source.tenants))
    writer = Writer(
        endpoint=source.engine.endpoint,
        targets=[
            _target(stores[sink.job], sink, source.tenants, range_, staged=staged) for sink in sinks
        ],
        rows_per_chunk=None if staged else ROWS_PER_CHUNK,
        stamp=(range_.to.version, range_.to.micros) if staged else None,
    )
    try:
        receipts = _receipts(source, plan, range_, writer, through_spark=through_spark)
    except FeedGoneError as error:
        failed = Written(code=error.code, message=str(error))
        return Scanned(plan=plan, range=range_, written={sink.job: failed for sink in sinks})
    seconds = time.perf_counter() - started
    names = {target.name: sink.job for target, sink in zip(writer.targets, sinks, strict=True)}
    written = {job: _summed(receipts, name, seconds) for name, job in names.items()}
    return Scanned(plan=plan, range=range_, written=written)


def _receipts(
    source: Source, plan: ReadPlan, range_: Range, writer: Writer, *, through_spark: bool
) -> list[Receipt]:
    columns = dict.fromkeys(name for target in writer.targets for name in target.columns)
    with reading(source.log.location):
        rows = source.rows(plan, range_, list(columns), through_spark=through_spark)
        receipts = rows.frame.mapInArrow(writing(writer, rows.unpack), RECEIPT_DDL).collect()
    return [Receipt(**receipt.asDict()) for receipt in receipts]


def _target(
    store: IndexStore, sink: Sink, tenants: frozenset[str], range_: Range, *, staged: bool
) -> Target:
    shape = store.shape
    index = shape.index
    vector = index if isinstance(index, Vector) else None
    return Target(
        name=f"{shape.source.name}/{shape.index.name}",
        database=shape.database,
        table=shape.staging if staged else shape.rows,
        columns=shape.columns,
        keys=shape.source.keys,
        identity={name: shape.column_types()[name] for name in shape.order_by},
        tenant=shape.source.tenant,
        system=SYSTEM_COLUMNS,
        token=None if staged else TokenSeed(job_id=sink.job_id, tenants=tenants, range=range_),
        never_null=tuple(f.name for f in shape.fields if not holds_nulls(f.type)),
        vector=vector.vector if vector else None,
        dimension=vector.dimension if vector else 0,
    )


def _summed(receipts: Sequence[Receipt], name: str, seconds: float) -> Written:
    mine = [receipt for receipt in receipts if receipt.target == name]
    failed = next((receipt for receipt in mine if receipt.code), None)
    if failed is not None:
        return Written(code=failed.code, message=failed.message, seconds=seconds)
    tenants = sorted({receipt.tenant for receipt in mine})
    return Written(
        inserted={t: sum(r.inserted for r in mine if r.tenant == t) for t in tenants},
        deleted={t: sum(r.deleted for r in mine if r.tenant == t) for t in tenants},
        bytes=sum(receipt.bytes for receipt in mine),
        chunks=sum(receipt.chunks for receipt in mine),
        write_seconds=sum(receipt.seconds for receipt in mine),
        seconds=seconds,
    )
