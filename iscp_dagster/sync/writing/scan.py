"""One scan of a range of a source table, written to the tables of all its indexes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from iscp_dagster.clickhouse.tables.index_store import IndexStore
from iscp_dagster.clickhouse.tables.staging import make_attempt_id
from iscp_dagster.clickhouse.write.consumer import IndexConsumer
from iscp_dagster.delta.filescan import NotPlainError
from iscp_dagster.delta.spark_errors import wrap_spark_errors
from iscp_dagster.model.batch import WRITES
from iscp_dagster.model.consumers.kinds import ScanContext, get_consumer_kind, is_index
from iscp_dagster.model.consumers.protocol import Consumer, DataType
from iscp_dagster.model.declared.images import CONDITION_COLUMNS, ImageSource
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
    get_build_name,
    get_max_chunks,
    get_rows_per_chunk,
    make_build_name,
)
from iscp_dagster.sync.reading.requests import ReadRequest
from iscp_dagster.sync.reading.views import get_image_source
from iscp_dagster.sync.writing.consumer_claims import ConsumerClaims

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ScanError(IscpError):
    """The scan ended before all rows were read; the range is read again."""

    code = 1_510


ByJob = Mapping[str, WriteResult]
"""What a scan wrote, by the job's name."""


def drop_staging_tables(scanned: ByJob) -> None:
    """Drop the staging tables, whose rows are in place or never will be."""
    for written in scanned.values():
        if written.store is not None and written.request.is_snapshot:
            # Otherwise the next run or the hourly maintenance drops them.
            with suppress(IscpError):
                written.store.drop_staging_table()


def scan_group(reader: SourceReader, group: ScanGroup) -> ScanFinished | ScanFailed:
    """Scan what the claims of a group share, for their tenants only."""
    reader = replace(reader, tenants=get_tenants(group.claims))
    claims_by_job = group_by_job(claim for claim in group.claims if claim.step.action in WRITES)
    all_claims = [
        ConsumerClaims(log=reader.deployment.log, claims=claims_by_job[job])
        for job in sorted(claims_by_job)
    ]
    try:
        written = scan_range(reader, group.request, all_claims) if all_claims else {}
    except IscpError as error:
        return ScanFailed(group, error)
    unread = WriteResult(request=group.request)
    results = [
        ScanResult(claims=claims, written=written.get(job, unread))
        for job, claims in group_by_job(group.claims).items()
    ]
    return ScanFinished(group, tuple(results))


def scan_range(
    reader: SourceReader, request: ReadRequest, all_claims: Sequence[ConsumerClaims]
) -> ByJob:
    """Read the range once and write it for every consumer.

    A snapshot goes to its own staging tables, and stays there until `drop_staging_tables`;
    changes go to the served tables, under tokens. Rejects late writes of earlier runs first.
    Changes that turn out to be unreadable give a FeedGoneError's code: read a snapshot of the
    tenant instead. A consumer or tenant that fails has its error; the others are complete. Raises
    FenceError once this run has lost all of the jobs.
    """
    if request.is_snapshot:
        # At the end of the claims: the recorded version may be unreadable too.
        end = min(
            claim.range.to for consumer_claims in all_claims for claim in consumer_claims.claims
        )
        request = replace(request, range=replace(request.range, to=end))
    by_job = _try_scan(reader, request, all_claims, through_spark=False)
    # Spark reads the files that Arrow would read differently.
    if not any(
        written.error and written.error.code == NotPlainError.code for written in by_job.values()
    ):
        return by_job
    drop_staging_tables(by_job)
    return _try_scan(reader, request, all_claims, through_spark=True)


def _try_scan(
    reader: SourceReader,
    request: ReadRequest,
    all_claims: Sequence[ConsumerClaims],
    *,
    through_spark: bool,
) -> ByJob:
    started = time.perf_counter()
    scans: dict[str, ConsumerScan] = {}
    threads: dict[str, ConsumerThread] = {}
    written = {claims.job.job: WriteResult(request=request) for claims in all_claims}
    for consumer_claims in all_claims:
        name = consumer_claims.job.job
        try:
            reader.check_images(consumer_claims.info, request)
            scan = _make_consumer_scan(reader, consumer_claims, request)
            if is_index(consumer_claims.info):
                store, errors = _prepare_store(reader, consumer_claims, scan)
                stopped = {
                    tenant: ErrorDetail.from_error(error) for tenant, error in errors.items()
                }
                written[name] = replace(written[name], store=store, tenant_errors=stopped)
                scans[name] = _attach_consumer(_exclude_tenants(scan, errors), store)
            else:
                threads[name] = _start_thread(reader, consumer_claims, scan, request)
        except IscpError as error:
            written[name] = _set_error(written[name], error)
    request = replace(
        request, image_source=_select_conditions(reader, request, all_claims, {*scans, *threads})
    )
    if not (scans or threads):
        return written
    request = request.select_triggers(threads)
    staged, to = request.is_snapshot, request.range.to
    writer = TaskWriter(
        scans=list(scans.values()),
        keys=reader.source.keys,
        rows_per_chunk=None if staged else get_rows_per_chunk(request),
        most_chunks=get_max_chunks(request),
        # Rows are relayed for all tenants together.
        tenant_column=None if threads or len(reader.tenants) == 1 else reader.source.tenant,
        sort_column=None if staged or reader.source.keys else reader.source.tenant,
        stamp=(to.version, to.micros) if staged else None,
        # A change with U+FFFD for undecodable bytes is preferred to a gap.
        exact=None if request.image_source is None else reader.source.keys,
    )
    try:
        # Get the session once: each call checks whether it is still there.
        spark = reader.deployment.spark()
        guard = interrupt_when_lost(
            spark, lambda: any(consumer_claims.holds_any() for consumer_claims in all_claims)
        )
        with guard, wrap_spark_errors(_describe_source(reader, request, all_claims)):
            receipts = _run_scan(
                reader, request, writer, threads, spark, through_spark=through_spark
            )
    except BaseException as error:
        _abort_threads(threads, error)
        if (feed_error := _to_feed_error(request, error)) is not None:
            return {
                name: _set_error(result, feed_error, tenant_may_be_cause=True)
                for name, result in written.items()
            }
        drop_staging_tables(written)
        raise
    seconds = time.perf_counter() - started
    for name, scan in scans.items():
        total = _sum_receipts(written[name], receipts, scan.name, seconds)
        written[name] = _reject_late_inserts(spark, total, scan.tenants)
    for name, thread in threads.items():
        written[name] = _collect_result(written[name], thread, receipts, seconds)
    return written


def _to_feed_error(request: ReadRequest, error: BaseException) -> FeedGoneError | None:
    """The error as one that reading a snapshot may avoid; None: it would not.

    If Spark can never read the changes, it may still read the rows. A view's expressions may be the
    cause, and people must correct them.
    """
    if isinstance(error, FeedGoneError):
        return error
    changes = not request.is_snapshot and request.image_source is None
    return FeedGoneError(str(error)) if changes and isinstance(error, ReadError) else None


def _select_conditions(
    reader: SourceReader,
    request: ReadRequest,
    all_claims: Sequence[ConsumerClaims],
    job_names: Collection[str],
) -> ImageSource | None:
    """What to read: the view, with only the conditions of the jobs that get it."""
    if request.image_source is None:
        return None
    views = [
        get_image_source(reader.source, consumer_claims.info)
        for consumer_claims in all_claims
        if consumer_claims.job.job in job_names
    ]
    conditions = [condition for view in views if view for condition in view.conditions]
    return request.image_source.replace_conditions(conditions)


def _describe_source(
    reader: SourceReader, request: ReadRequest, all_claims: Sequence[ConsumerClaims]
) -> str:
    """What is read, for errors: a view's expressions may fail though the table can be read."""
    location = reader.delta_log.location
    if request.image_source is None:
        return location
    return f"{location}, read for {', '.join(claims.job.job for claims in all_claims)}"


def _set_error(
    written: WriteResult, error: IscpError, *, tenant_may_be_cause: bool = False
) -> WriteResult:
    return replace(
        written, error=ErrorDetail.from_error(error), tenant_may_be_cause=tenant_may_be_cause
    )


def _abort_threads(threads: Mapping[str, ConsumerThread], error: BaseException) -> None:
    """Stop the consumers' threads from waiting for rows that never come."""
    for thread in threads.values():
        thread.abort(error)


def _make_consumer_scan(
    reader: SourceReader, consumer_claims: ConsumerClaims, request: ReadRequest
) -> ConsumerScan:
    table, range_ = reader.source, request.range
    columns = reader.list_columns(consumer_claims.info, range_.to.version)
    tenant = (table.tenant,) if table.tenant else ()
    return ConsumerScan(
        job=JobID(db=table.database, table=table.table, job=consumer_claims.job.job),
        registrations=consumer_claims.registrations,
        others=consumer_claims.registrations.keys() != reader.tenants,
        range=range_,
        data_type=DataType.SNAPSHOT if request.is_snapshot else DataType.TAIL,
        columns=columns,
        # An index keeps deleted rows whole: the graph of a vector index needs their vectors.
        delete_columns=columns
        if is_index(consumer_claims.info)
        else tuple(dict.fromkeys((*tenant, *table.keys))),
        tenant_column=table.tenant,
        scan_names=_map_conditions(reader, consumer_claims),
        # Each attempt stages from scratch, so ClickHouse must know none of its tokens.
        batch_name=make_build_name() if request.is_snapshot else get_build_name(request),
    )


def _map_conditions(reader: SourceReader, consumer_claims: ConsumerClaims) -> Mapping[str, str]:
    """The scan's names for a trigger's conditions: triggers on one view share a scan."""
    image_source = get_image_source(reader.source, consumer_claims.info)
    conditions = image_source.conditions if image_source else ()
    return {
        which: condition.format_column_name(which)
        for condition in conditions
        for which in CONDITION_COLUMNS
    }


def _exclude_tenants(scan: ConsumerScan, tenants: Collection[str]) -> ConsumerScan:
    """The share without these tenants."""
    registrations = {
        tenant: number for tenant, number in scan.registrations.items() if tenant not in tenants
    }
    return replace(scan, registrations=registrations, others=scan.others or bool(tenants))


def _prepare_store(
    reader: SourceReader, consumer_claims: ConsumerClaims, scan: ConsumerScan
) -> tuple[IndexStore, Mapping[str, IscpError]]:
    """The index's tables, closed to earlier runs, and an error for each tenant not to write.

    Raises the first of these errors if it may write no tenant.
    """
    store = reader.make_index_store(consumer_claims.info, scan.range.to.version)
    if store.placement is not None:
        # A hung server would hold up the other shards for a whole query timeout.
        store.endpoint.ping()
    store.ensure()
    staged = scan.data_type is DataType.SNAPSHOT
    stopped: dict[str, IscpError] = {}
    if not staged:
        stopped |= reader.find_readd_errors(consumer_claims.info, scan.range)
    taken_over = (
        consumer_claims.list_maybe_written_tenants() if staged else consumer_claims.left_unconfirmed
    )
    store = (
        store.take_over(taken_over, consumer_claims.list_live_runs)
        if taken_over
        else store.refresh_epochs()
    )
    # Only now: a run that lost its claims before could have read the new holder's epochs.
    stopped |= consumer_claims.find_lost_tenants()
    if stopped.keys() >= scan.tenants:
        raise next(iter(stopped.values()))
    return replace(store, attempt=make_attempt_id(consumer_claims.run_id)), stopped


def _attach_consumer(scan: ConsumerScan, store: IndexStore) -> ConsumerScan:
    """The share with the index's consumer; creates its staging table."""
    staged = scan.data_type is DataType.SNAPSHOT
    if staged:
        store.clear_letters(scan.registrations, version=scan.range.to.version)
        store.create_staging_table()
    consumer = IndexConsumer(
        endpoint=store.endpoint, target=store.make_target(staged=staged), placement=store.placement
    )
    return replace(scan, consumer=consumer)


def _start_thread(
    reader: SourceReader, consumer_claims: ConsumerClaims, scan: ConsumerScan, request: ReadRequest
) -> ConsumerThread:
    retriever = Retriever(
        scan=scan,
        move_watermarks=consumer_claims.move_watermarks,
        fences=consumer_claims.fences,
        find_lost_tenants=consumer_claims.find_lost_tenants,
    )
    return ConsumerThread(
        lambda: _make_consumer(reader, consumer_claims, request, retriever), retriever
    )


def _make_consumer(
    reader: SourceReader,
    consumer_claims: ConsumerClaims,
    request: ReadRequest,
    retriever: Retriever,
) -> Consumer:
    """The consumer that takes the rows in this process."""
    context = ScanContext(
        table_id=consumer_claims.claims[0].key.table_id,
        columns=reader.list_columns(consumer_claims.info, request.range.to.version),
        reason=request.plan.reason,
        repairs={claim.key.tenant: claim.repairs for claim in consumer_claims.claims},
        lost=partial(_find_stop_error, consumer_claims, retriever),
        deployment=reader.deployment,
    )
    return get_consumer_kind(consumer_claims.info.type).make_consumer(
        reader.source, consumer_claims.info, context
    )


def _find_stop_error(
    consumer_claims: ConsumerClaims, retriever: Retriever, tenant: str
) -> IscpError | None:
    """The error that ends the work for the tenant; None: it continues."""
    if retriever.broken:
        return ScanError("The scan stopped before its consumers had all rows; the next repeats it.")
    return consumer_claims.find_claim_error(tenant)


def _run_scan(
    reader: SourceReader,
    request: ReadRequest,
    writer: TaskWriter,
    threads: Mapping[str, ConsumerThread],
    spark: SparkSession,
    *,
    through_spark: bool,
) -> list[Receipt]:
    """One Spark job: executors write the tables, and relay rows to this process's consumers.

    For few rows the run itself does the executors' work.
    """
    scans = [thread.retriever.scan for thread in threads.values()]
    shared = dict.fromkeys(name for scan in scans for name in scan.get_scan_names(scan.columns))
    columns = dict.fromkeys(name for share in writer.scans for name in share.columns)
    relayed = (*shared, *SYSTEM_COLUMNS) if threads else ()
    frame = reader.make_frame(spark, request, [*columns, *shared], through_spark=through_spark)
    task = make_scan_task(writer, frame.unpack, relayed=relayed)
    receipts: list[Receipt] = []
    for row in _read_output(frame, task, one_by_one=bool(threads)):
        payload = row.pop("payload")
        if payload is None:
            receipts.append(Receipt(**row))
            continue
        chunk = unpack_rows(bytes(payload))
        for thread in threads.values():
            thread.put(chunk)
    refusal = next((receipt for receipt in receipts if receipt.code and not receipt.target), None)
    for thread in threads.values():
        if refusal is None:
            thread.end()
        else:
            thread.abort(ScanError(refusal.message))
    return receipts


def _read_output(
    mapped: MappedFrame, task: Mapped, *, one_by_one: bool
) -> Iterable[dict[str, Any]]:
    """The task's output. Fetching all at once takes one request; `collect` takes another."""
    if mapped.is_small:
        batches = task(mapped.frame.toArrow().to_batches())
        return (row for batch in batches for row in batch.to_pylist())
    results = map_in_arrow(mapped.frame, task, to_spark_schema(SCAN_SCHEMA), mapped.names)
    if one_by_one:
        return (row.asDict() for row in results.toLocalIterator())
    output: list[dict[str, Any]] = results.toArrow().to_pylist()
    return output


def _collect_result(
    written: WriteResult, thread: ConsumerThread, receipts: Sequence[Receipt], seconds: float
) -> WriteResult:
    retriever = thread.retriever
    stopped = {tenant: ErrorDetail.from_error(error) for tenant, error in retriever.refused.items()}
    reported = dict(retriever.reports)
    written = replace(written, tenant_errors=stopped, reports=reported, seconds=seconds)
    refusal = next((receipt for receipt in receipts if receipt.code and not receipt.target), None)
    if refusal is not None:
        error = _get_error(refusal)
        return replace(written, error=error, tenant_may_be_cause=error.tenant_may_be_cause)
    if thread.failure is not None:
        # A consumer's error does not say whose rows caused it, whatever its code.
        return _set_error(written, thread.failure, tenant_may_be_cause=thread.made)
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
        resent=any(receipt.resent for receipt in target_receipts),
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
        written.store.reject_earlier_inserts(tenants)
    except IscpError as error:
        return _set_error(written, error)
    return written
