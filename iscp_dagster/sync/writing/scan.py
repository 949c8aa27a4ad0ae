"""One scan of a range of a source table, written to the tables of all its indexes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from iscp_dagster.clickhouse.tables.indexes import IndexStore
from iscp_dagster.clickhouse.tables.staging import make_attempt_id
from iscp_dagster.clickhouse.write.consumer import IndexConsumer
from iscp_dagster.delta.failures import wrap_spark_errors
from iscp_dagster.delta.filescan import NotPlainError
from iscp_dagster.model.batch import WRITES
from iscp_dagster.model.consumers.kinds import ScanContext, get_consumer_kind, is_index
from iscp_dagster.model.consumers.protocol import Consumer, DataType
from iscp_dagster.model.declared.images import CONDITION_COLUMNS, Transitions
from iscp_dagster.model.declared.schema import SYSTEM_COLUMNS
from iscp_dagster.model.errors import FeedGoneError, IscpError, ReadError
from iscp_dagster.model.jobs import JobID
from iscp_dagster.spark.columns import Mapped, map_in_arrow, to_spark_schema
from iscp_dagster.spark.guard import interrupt_when_lost
from iscp_dagster.spark.session import has_speculation
from iscp_dagster.sync.executors.retriever import ConsumerScan, ConsumerThread, Retriever
from iscp_dagster.sync.executors.writer import (
    SCAN_SCHEMA,
    Receipt,
    TaskWriter,
    make_scan_task,
    unpack_rows,
)
from iscp_dagster.sync.iteration.commands import ScanFailed, ScanFinished, ScanResult
from iscp_dagster.sync.iteration.machine import group_by_job
from iscp_dagster.sync.iteration.narrowing import ScanGroup, get_tenants
from iscp_dagster.sync.iteration.outcomes import ErrorDetail, WriteResult
from iscp_dagster.sync.reading.reader import (
    MappedFrame,
    SourceReader,
    build_of,
    get_max_chunks,
    get_rows_per_chunk,
    make_build_name,
)
from iscp_dagster.sync.reading.requests import ReadRequest
from iscp_dagster.sync.reading.transitions import get_transitions
from iscp_dagster.sync.writing.index_claims import ConsumerClaims

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ScanError(IscpError):
    """The scan ended before all rows were read; the range is read again."""

    code = 1_510


ByJob = Mapping[str, WriteResult]
"""What a scan wrote, by the job's name."""


def clear(scanned: ByJob) -> None:
    """Drop the staging tables, whose rows are in place or never will be."""
    for written in scanned.values():
        if written.store is not None and written.reading.is_snapshot:
            # Otherwise the next run or the hourly maintenance drops them.
            with suppress(IscpError):
                written.store.drop_staging_table()


def scan_group(reader: SourceReader, trial: ScanGroup) -> ScanFinished | ScanFailed:
    """Scan what the claims of a trial share, for their tenants only."""
    reader = replace(reader, tenants=get_tenants(trial.claims))
    claims_by_job = group_by_job(claim for claim in trial.claims if claim.step.action in WRITES)
    sinks = [
        ConsumerClaims(log=reader.deployment.log, claims=claims_by_job[job])
        for job in sorted(claims_by_job)
    ]
    try:
        written = scan_range(reader, trial.reading, sinks) if sinks else {}
    except IscpError as error:
        return ScanFailed(trial, error)
    unread = WriteResult(reading=trial.reading)
    parts = [
        ScanResult(claims=claims, written=written.get(job, unread))
        for job, claims in group_by_job(trial.claims).items()
    ]
    return ScanFinished(trial, tuple(parts))


def scan_range(
    reader: SourceReader, reading: ReadRequest, sinks: Sequence[ConsumerClaims]
) -> ByJob:
    """Read the range once and write it to every sink.

    A snapshot goes to its own staging tables, and stays there until `clear`; changes go to the
    served tables, under tokens. Rejects late writes of earlier runs first. Changes that turn out
    to be unreadable give a FeedGoneError's code: read a snapshot of the tenant instead. A sink or
    tenant that fails has its error; the others are complete. Raises FenceError once this run
    has lost all of the sinks' jobs.
    """
    if reading.is_snapshot:
        # At the end of the claims: the recorded version may be unreadable too.
        end = min(claim.range.to for sink in sinks for claim in sink.claims)
        reading = replace(reading, range=replace(reading.range, to=end))
    by_job = _try_scan(reader, reading, sinks, through_spark=False)
    # Spark reads the files that Arrow would read differently.
    if not any(
        written.error and written.error.code == NotPlainError.code for written in by_job.values()
    ):
        return by_job
    clear(by_job)
    return _try_scan(reader, reading, sinks, through_spark=True)


def _try_scan(
    reader: SourceReader,
    reading: ReadRequest,
    sinks: Sequence[ConsumerClaims],
    *,
    through_spark: bool,
) -> ByJob:
    started = time.perf_counter()
    shares: dict[str, ConsumerScan] = {}
    workers: dict[str, ConsumerThread] = {}
    written = {sink.job.job: WriteResult(reading=reading) for sink in sinks}
    for sink in sinks:
        name = sink.job.job
        try:
            reader.check_images(sink.info, reading)
            share = _make_consumer_scan(reader, sink, reading)
            if is_index(sink.info):
                store, errors = _prepare_store(reader, sink, share)
                stopped = {
                    tenant: ErrorDetail.from_error(error) for tenant, error in errors.items()
                }
                written[name] = replace(written[name], store=store, tenant_errors=stopped)
                shares[name] = _attach_consumer(_exclude_tenants(share, errors), store)
            else:
                workers[name] = _start_thread(reader, sink, share, reading)
        except IscpError as error:
            written[name] = _set_error(written[name], error)
    reading = replace(
        reading, transitions=_select_conditions(reader, reading, sinks, {*shares, *workers})
    )
    if not (shares or workers):
        return written
    reading = reading.select_triggers(workers)
    staged, to = reading.is_snapshot, reading.range.to
    writer = TaskWriter(
        shares=list(shares.values()),
        keys=reader.source.keys,
        rows_per_chunk=None if staged else get_rows_per_chunk(reading),
        most_chunks=get_max_chunks(reading),
        # Rows are relayed for all tenants together.
        tenant_column=None if workers or len(reader.tenants) == 1 else reader.source.tenant,
        sort_column=None if staged or reader.source.keys else reader.source.tenant,
        stamp=(to.version, to.micros) if staged else None,
        # A change with U+FFFD for undecodable bytes is preferred to a gap.
        exact=None if reading.transitions is None else reader.source.keys,
    )
    try:
        # Get the session once: each call checks whether it is still there.
        spark = reader.deployment.spark()
        guard = interrupt_when_lost(spark, lambda: _has_held_claims(sinks))
        with guard, wrap_spark_errors(_describe_source(reader, reading, sinks)):
            receipts = _run_scan(
                reader, reading, writer, workers, spark, through_spark=through_spark
            )
    except BaseException as error:
        _abort_threads(workers, error)
        if (feed_error := _to_feed_error(reading, error)) is not None:
            return {
                name: _set_error(result, feed_error, unsure=True)
                for name, result in written.items()
            }
        clear(written)
        raise
    seconds = time.perf_counter() - started
    for name, share in shares.items():
        total = _sum_receipts(written[name], receipts, share.name, seconds)
        written[name] = _reject_late_inserts(spark, total, share.tenants)
    for name, worker in workers.items():
        written[name] = _collect_result(written[name], worker, receipts, seconds)
    return written


def _to_feed_error(reading: ReadRequest, error: BaseException) -> FeedGoneError | None:
    """The error as one that reading a snapshot may avoid; None: it would not.

    If Spark can never read the changes, it may still read the rows. A view's expressions may be the
    cause, and people must correct them.
    """
    if isinstance(error, FeedGoneError):
        return error
    changes = not reading.is_snapshot and reading.transitions is None
    return FeedGoneError(str(error)) if changes and isinstance(error, ReadError) else None


def _select_conditions(
    reader: SourceReader,
    reading: ReadRequest,
    sinks: Sequence[ConsumerClaims],
    job_names: Collection[str],
) -> Transitions | None:
    """What to read: the view, with only the conditions of the jobs that get it."""
    if reading.transitions is None:
        return None
    transitions = [
        get_transitions(reader.source, sink.info) for sink in sinks if sink.job.job in job_names
    ]
    conditions = [condition for view in transitions if view for condition in view.conditions]
    return reading.transitions.replace_conditions(conditions)


def _describe_source(
    reader: SourceReader, reading: ReadRequest, sinks: Sequence[ConsumerClaims]
) -> str:
    """What is read, for errors: a view's expressions may fail though the table can be read."""
    location = reader.delta_log.location
    if reading.transitions is None:
        return location
    return f"{location}, read for {', '.join(sink.job.job for sink in sinks)}"


def _set_error(written: WriteResult, error: IscpError, *, unsure: bool = False) -> WriteResult:
    return replace(written, error=ErrorDetail.from_error(error), tenant_may_be_cause=unsure)


def _has_held_claims(sinks: Sequence[ConsumerClaims]) -> bool:
    return any(len(sink.find_lost()) < len(sink.claims) for sink in sinks)


def _abort_threads(workers: Mapping[str, ConsumerThread], error: BaseException) -> None:
    """Stop the workers from waiting for rows that never come."""
    for worker in workers.values():
        worker.abort(error)


def _make_consumer_scan(
    reader: SourceReader, sink: ConsumerClaims, reading: ReadRequest
) -> ConsumerScan:
    table, range_ = reader.source, reading.range
    columns = reader.list_columns(sink.info, range_.to.version)
    tenant = (table.tenant,) if table.tenant else ()
    return ConsumerScan(
        job=JobID(db=table.database, table=table.table, job=sink.job.job),
        registrations=sink.registrations,
        others=sink.registrations.keys() != reader.tenants,
        range=range_,
        data_type=DataType.SNAPSHOT if reading.is_snapshot else DataType.TAIL,
        columns=columns,
        # An index keeps deleted rows whole: the graph of a vector index needs their vectors.
        identity=columns if is_index(sink.info) else tuple(dict.fromkeys((*tenant, *table.keys))),
        tenant_column=table.tenant,
        scan_names=_map_conditions(reader, sink),
        # Each attempt stages from scratch, so ClickHouse must know none of its tokens.
        build=make_build_name() if reading.is_snapshot else build_of(reading),
    )


def _map_conditions(reader: SourceReader, sink: ConsumerClaims) -> Mapping[str, str]:
    """The scan's names for a trigger's conditions: triggers on one view share a scan."""
    transitions = get_transitions(reader.source, sink.info)
    conditions = transitions.conditions if transitions else ()
    return {
        which: condition.format_column_name(which)
        for condition in conditions
        for which in CONDITION_COLUMNS
    }


def _exclude_tenants(share: ConsumerScan, tenants: Collection[str]) -> ConsumerScan:
    """The share without these tenants."""
    registrations = {
        tenant: number for tenant, number in share.registrations.items() if tenant not in tenants
    }
    return replace(share, registrations=registrations, others=share.others or bool(tenants))


def _prepare_store(
    reader: SourceReader, sink: ConsumerClaims, share: ConsumerScan
) -> tuple[IndexStore, Mapping[str, IscpError]]:
    """The index's tables, closed to earlier runs, and an error for each tenant not to write.

    Raises the first of these errors if it may write no tenant.
    """
    store = reader.store(sink.info, share.range.to.version)
    if store.placement is not None:
        # A hung server would hold up the other shards for a whole query timeout.
        store.endpoint.ping()
    store.ensure()
    staged = share.data_type is DataType.SNAPSHOT
    stopped: dict[str, IscpError] = {}
    if not staged:
        stopped |= reader.find_readd_errors(sink.info, share.range)
    before = sink.list_written_tenants() if staged else sink.left_unconfirmed
    store = store.take_over(before, sink.list_live_runs) if before else store.enter()
    # Only now: a run that lost its claims before could have read the new holder's epochs.
    stopped |= sink.find_lost()
    if stopped.keys() >= share.tenants:
        raise next(iter(stopped.values()))
    return replace(store, attempt=make_attempt_id(sink.run_id)), stopped


def _attach_consumer(share: ConsumerScan, store: IndexStore) -> ConsumerScan:
    """The share with the index's consumer; creates its staging table."""
    staged = share.data_type is DataType.SNAPSHOT
    if staged:
        store.clear_letters(share.registrations, version=share.range.to.version)
        store.stage()
    consumer = IndexConsumer(
        endpoint=store.endpoint, target=store.target(staged=staged), placement=store.placement
    )
    return replace(share, consumer=consumer)


def _start_thread(
    reader: SourceReader, sink: ConsumerClaims, share: ConsumerScan, reading: ReadRequest
) -> ConsumerThread:
    retriever = Retriever(
        share=share,
        move_watermarks=sink.move_watermarks,
        fences=sink.fences,
        find_lost=sink.find_lost,
    )
    return ConsumerThread(lambda: _make_consumer(reader, sink, reading, retriever), retriever)


def _make_consumer(
    reader: SourceReader, sink: ConsumerClaims, reading: ReadRequest, retriever: Retriever
) -> Consumer:
    """The consumer that takes the rows in this process."""
    context = ScanContext(
        table_id=sink.claims[0].key.table_id,
        columns=reader.list_columns(sink.info, reading.range.to.version),
        reason=reading.plan.reason,
        repairs={claim.key.tenant: claim.repairs for claim in sink.claims},
        lost=partial(_find_loss, sink, retriever),
        deployment=reader.deployment,
    )
    return get_consumer_kind(sink.info.type).make_consumer(reader.source, sink.info, context)


def _find_loss(sink: ConsumerClaims, retriever: Retriever, tenant: str) -> IscpError | None:
    """The error that ends the work for the tenant; None: it continues."""
    if retriever.broken:
        return ScanError("The scan ended before its consumers did; the next iteration continues.")
    return sink.find_loss(tenant)


def _run_scan(
    reader: SourceReader,
    reading: ReadRequest,
    writer: TaskWriter,
    workers: Mapping[str, ConsumerThread],
    spark: SparkSession,
    *,
    through_spark: bool,
) -> list[Receipt]:
    """One Spark job: executors write the tables, and relay what the workers consume.

    For few rows the run itself does the executors' work.
    """
    shares = [worker.retriever.share for worker in workers.values()]
    shared = dict.fromkeys(name for share in shares for name in share.get_scan_names(share.columns))
    columns = dict.fromkeys(name for share in writer.shares for name in share.columns)
    relayed = (*shared, *SYSTEM_COLUMNS) if workers else ()
    rows = reader.make_frame(spark, reading, [*columns, *shared], through_spark=through_spark)
    task = make_scan_task(writer, rows.unpack, relayed=relayed)
    receipts: list[Receipt] = []
    for row in _read_output(rows, task, one_by_one=bool(workers)):
        payload = row.pop("payload")
        if payload is None:
            receipts.append(Receipt(**row))
            continue
        chunk = unpack_rows(bytes(payload))
        for worker in workers.values():
            worker.put(chunk)
    refusal = next((receipt for receipt in receipts if receipt.code and not receipt.target), None)
    for worker in workers.values():
        if refusal is None:
            worker.end()
        else:
            worker.abort(ScanError(refusal.message))
    return receipts


def _read_output(rows: MappedFrame, task: Mapped, *, one_by_one: bool) -> Iterable[dict[str, Any]]:
    """The task's output. Fetching all at once takes one request; `collect` takes another."""
    if rows.few:
        batches = task(rows.frame.toArrow().to_batches())
        return (row for batch in batches for row in batch.to_pylist())
    frame = map_in_arrow(rows.frame, task, to_spark_schema(SCAN_SCHEMA), rows.names)
    if one_by_one:
        return (row.asDict() for row in frame.toLocalIterator())
    output: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return output


def _collect_result(
    written: WriteResult, worker: ConsumerThread, receipts: Sequence[Receipt], seconds: float
) -> WriteResult:
    retriever = worker.retriever
    stopped = {tenant: ErrorDetail.from_error(error) for tenant, error in retriever.refused.items()}
    reported = dict(retriever.reports)
    written = replace(written, tenant_errors=stopped, reports=reported, seconds=seconds)
    refusal = next((receipt for receipt in receipts if receipt.code and not receipt.target), None)
    if refusal is not None:
        error = _get_error(refusal)
        return replace(written, error=error, tenant_may_be_cause=error.tenant_may_be_cause)
    if worker.failure is not None:
        # A consumer's error does not say whose rows caused it, whatever its code.
        return _set_error(written, worker.failure, unsure=worker.made)
    return replace(
        written,
        inserted=dict(retriever.inserted),
        deleted=dict(retriever.deleted),
        bytes=dict(retriever.bytes),
        chunks=retriever.chunks,
        write_seconds=retriever.seconds,
        next_claims=retriever.next_claims,
    )


def _get_error(receipt: Receipt) -> ErrorDetail:
    return ErrorDetail(code=receipt.code, message=receipt.message)


def _sum_receipts(
    written: WriteResult, receipts: Sequence[Receipt], name: str, seconds: float
) -> WriteResult:
    target_receipts = [receipt for receipt in receipts if receipt.target == name]
    stopped = {
        receipt.tenant: _get_error(receipt)
        for receipt in target_receipts
        if receipt.code and receipt.tenant
    }
    written = replace(written, tenant_errors={**written.tenant_errors, **stopped}, seconds=seconds)
    failure = next(
        (receipt for receipt in target_receipts if receipt.code and not receipt.tenant), None
    )
    if failure is not None:
        error = _get_error(failure)
        return replace(written, error=error, tenant_may_be_cause=error.tenant_may_be_cause)
    inserted, deleted, bytes_ = Counter[str](), Counter[str](), Counter[str]()
    for receipt in target_receipts:
        inserted[receipt.tenant] += receipt.inserted
        deleted[receipt.tenant] += receipt.deleted
        bytes_[receipt.tenant] += receipt.bytes
    return replace(
        written,
        inserted=dict(inserted),
        deleted=dict(deleted),
        bytes=dict(bytes_),
        chunks=sum(receipt.chunks for receipt in target_receipts),
        write_seconds=sum(receipt.seconds for receipt in target_receipts),
        resent=any(receipt.again for receipt in target_receipts),
    )


def _reject_late_inserts(
    spark: SparkSession, written: WriteResult, tenants: Collection[str]
) -> WriteResult:
    """What was written, with inserts that are still in flight rejected.

    An unanswered attempt could land once ClickHouse has forgotten its token.
    """
    if written.error or not (written.resent or has_speculation(spark)):
        return written
    assert written.store is not None
    try:
        written.store.shut_out(tenants)
    except IscpError as error:
        return _set_error(written, error)
    return written
