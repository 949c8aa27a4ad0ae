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
from iscp_dagster.clickhouse.tables.staging import new_attempt
from iscp_dagster.clickhouse.write.consumer import IndexConsumer
from iscp_dagster.delta.failures import reading
from iscp_dagster.delta.filescan import NotPlainError
from iscp_dagster.model.batch import WRITES
from iscp_dagster.model.consumers.kinds import Scan, consumer_kind, is_index
from iscp_dagster.model.consumers.protocol import Consumer, DataType
from iscp_dagster.model.declared.images import CONDITION_COLUMNS, Transitions
from iscp_dagster.model.declared.schema import SYSTEM_COLUMNS
from iscp_dagster.model.errors import FeedGoneError, IscpError, ReadError
from iscp_dagster.model.jobs import JobID
from iscp_dagster.spark.columns import Mapped, map_in_arrow, spark_schema
from iscp_dagster.spark.guard import interruptible
from iscp_dagster.spark.session import speculates
from iscp_dagster.sync.executors.retriever import Retriever, Share, Worker
from iscp_dagster.sync.executors.writer import SCAN_SCHEMA, Receipt, Writer, relayed_rows, writing
from iscp_dagster.sync.iteration.commands import Part, ScanFailed, Scanned
from iscp_dagster.sync.iteration.machine import by_job
from iscp_dagster.sync.iteration.narrowing import Trial, tenants_of
from iscp_dagster.sync.iteration.outcomes import Error, Written
from iscp_dagster.sync.reading.reader import (
    MappedFrame,
    Reader,
    build_of,
    most_chunks,
    new_build,
    rows_per_chunk,
)
from iscp_dagster.sync.reading.readings import Reading
from iscp_dagster.sync.reading.transitions import transitions_of
from iscp_dagster.sync.writing.sink import Sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ScanError(IscpError):
    """The scan ended before all rows were read; the range is read again."""

    code = 1_510


ByJob = Mapping[str, Written]
"""What a scan wrote, by the job's name."""


def clear(scanned: ByJob) -> None:
    """Drop the staging tables, whose rows are in place or never will be."""
    for each in scanned.values():
        if each.store is not None and each.reading.staged:
            # The next run drops what is left, or the hourly maintenance does.
            with suppress(IscpError):
                each.store.unstage()


def scanned(reader: Reader, trial: Trial) -> Scanned | ScanFailed:
    """Scan what the claims of a trial share, for their tenants alone."""
    reader = replace(reader, tenants=tenants_of(trial.claims))
    writing = by_job(claim for claim in trial.claims if claim.step.action in WRITES)
    sinks = [Sink(log=reader.deployment.log, claims=writing[job]) for job in sorted(writing)]
    try:
        found = scan(reader, trial.reading, sinks) if sinks else {}
    except IscpError as error:
        return ScanFailed(trial, error)
    unread = Written(reading=trial.reading)
    parts = [
        Part(claims=claims, written=found.get(job, unread))
        for job, claims in by_job(trial.claims).items()
    ]
    return Scanned(trial, tuple(parts))


def scan(reader: Reader, wanted: Reading, sinks: Sequence[Sink]) -> ByJob:
    """Read the range once and write it to every sink.

    A snapshot goes to its own staging tables, and stays there until `clear`; changes go to the
    served tables, under tokens. Rejects late writes of earlier runs first. Changes that turn out
    to be unreadable give a FeedGoneError's code: read a snapshot of the tenant instead. A sink or
    tenant that fails has its error; the others are complete. Raises FenceError once this run
    holds none of the sinks' jobs.
    """
    if wanted.staged:
        # As of the end of the claims: the recorded version may be unreadable too.
        end = min(claim.range.to for sink in sinks for claim in sink.claims)
        wanted = replace(wanted, range=replace(wanted.range, to=end))
    found = _attempt(reader, wanted, sinks, through_spark=False)
    # Spark reads the files that Arrow would read differently.
    if not any(each.error and each.error.code == NotPlainError.code for each in found.values()):
        return found
    clear(found)
    return _attempt(reader, wanted, sinks, through_spark=True)


def _attempt(
    reader: Reader, wanted: Reading, sinks: Sequence[Sink], *, through_spark: bool
) -> ByJob:
    started = time.perf_counter()
    shares: dict[str, Share] = {}
    workers: dict[str, Worker] = {}
    written = {sink.job.job: Written(reading=wanted) for sink in sinks}
    for sink in sinks:
        name = sink.job.job
        try:
            reader.check_images(sink.info, wanted)
            share = _share(reader, sink, wanted)
            if is_index(sink.info):
                store, errors = _made_ready(reader, sink, share)
                stopped = {tenant: Error.of(error) for tenant, error in errors.items()}
                written[name] = replace(written[name], store=store, stopped=stopped)
                shares[name] = _shipped(_less(share, errors), store)
            else:
                workers[name] = _worker(reader, sink, share, wanted)
        except IscpError as error:
            written[name] = _refused(written[name], error)
    wanted = replace(wanted, transitions=_met(reader, wanted, sinks, {*shares, *workers}))
    if not (shares or workers):
        return written
    wanted = wanted.only(workers)
    staged, to = wanted.staged, wanted.range.to
    writer = Writer(
        shares=list(shares.values()),
        keys=reader.source.keys,
        rows_per_chunk=None if staged else rows_per_chunk(wanted),
        most_chunks=most_chunks(wanted),
        # Rows are relayed for all tenants together.
        tenant_column=None if workers or len(reader.tenants) == 1 else reader.source.tenant,
        apart=None if staged or reader.source.keys else reader.source.tenant,
        stamp=(to.version, to.micros) if staged else None,
        # What happened to a row is worth more than bytes that are no text, which U+FFFD replaces.
        exact=None if wanted.transitions is None else reader.source.keys,
    )
    try:
        # Get the session once: each call checks whether it is still there.
        spark = reader.deployment.spark()
        guard = interruptible(spark, lambda: _any_held(sinks))
        with guard, reading(_place(reader, wanted, sinks)):
            receipts = _run(reader, wanted, writer, workers, spark, through_spark=through_spark)
    except BaseException as error:
        _abort(workers, error)
        if (gone := _unreadable_feed(wanted, error)) is not None:
            return {name: _refused(each, gone, unsure=True) for name, each in written.items()}
        clear(written)
        raise
    seconds = time.perf_counter() - started
    for name, share in shares.items():
        summed = _summed(written[name], receipts, share.name, seconds)
        written[name] = _whole(spark, summed, share.tenants)
    for name, worker in workers.items():
        written[name] = _consumed(written[name], worker, receipts, seconds)
    return written


def _unreadable_feed(wanted: Reading, error: BaseException) -> FeedGoneError | None:
    """The error as one that a snapshot may heal; None: it would not.

    Whatever else Spark cannot read of changes for good, it may still read of the rows. Of a view,
    its expressions may be the cause, which people must correct.
    """
    if isinstance(error, FeedGoneError):
        return error
    changes = not wanted.staged and wanted.transitions is None
    return FeedGoneError(str(error)) if changes and isinstance(error, ReadError) else None


def _met(
    reader: Reader, wanted: Reading, sinks: Sequence[Sink], going: Collection[str]
) -> Transitions | None:
    """What to read: the view, with the conditions of those alone that are `going` to get it."""
    if wanted.transitions is None:
        return None
    asked = [transitions_of(reader.source, s.info) for s in sinks if s.job.job in going]
    found = [condition for each in asked if each for condition in each.conditions]
    return wanted.transitions.with_conditions(found)


def _place(reader: Reader, wanted: Reading, sinks: Sequence[Sink]) -> str:
    """What is read, for errors: a view's expressions may fail where the table can be read."""
    location = reader.delta_log.location
    if wanted.transitions is None:
        return location
    return f"{location}, read for {', '.join(sink.job.job for sink in sinks)}"


def _refused(written: Written, error: IscpError, *, unsure: bool = False) -> Written:
    return replace(written, error=Error.of(error), unsure=unsure)


def _any_held(sinks: Sequence[Sink]) -> bool:
    return any(len(sink.lost()) < len(sink.claims) for sink in sinks)


def _abort(workers: Mapping[str, Worker], error: BaseException) -> None:
    """Stop the workers from waiting for rows that never come."""
    for worker in workers.values():
        worker.abort(error)


def _share(reader: Reader, sink: Sink, wanted: Reading) -> Share:
    table, range_ = reader.source, wanted.range
    columns = reader.columns(sink.info, range_.to.version)
    tenant = (table.tenant,) if table.tenant else ()
    return Share(
        job=JobID(db=table.database, table=table.table, job=sink.job.job),
        registrations=sink.registrations,
        others=sink.registrations.keys() != reader.tenants,
        range=range_,
        data_type=DataType.SNAPSHOT if wanted.staged else DataType.TAIL,
        columns=columns,
        # An index keeps deleted rows whole: the graph of a vector index needs their vectors.
        identity=columns if is_index(sink.info) else tuple(dict.fromkeys((*tenant, *table.keys))),
        tenant_column=table.tenant,
        found=_found(reader, sink),
        # Each attempt stages from scratch, so ClickHouse must know none of its tokens.
        build=new_build() if wanted.staged else build_of(wanted),
    )


def _found(reader: Reader, sink: Sink) -> Mapping[str, str]:
    """The scan's names of a trigger's conditions: triggers on one view share a scan."""
    transitions = transitions_of(reader.source, sink.info)
    conditions = transitions.conditions if transitions else ()
    return {which: each.column(which) for each in conditions for which in CONDITION_COLUMNS}


def _less(share: Share, tenants: Collection[str]) -> Share:
    """The share without these tenants."""
    left = {t: number for t, number in share.registrations.items() if t not in tenants}
    return replace(share, registrations=left, others=share.others or bool(tenants))


def _made_ready(
    reader: Reader, sink: Sink, share: Share
) -> tuple[IndexStore, Mapping[str, IscpError]]:
    """The index's tables, closed to earlier runs, and an error for each tenant not to write.

    Raises the first of these errors where it may write none.
    """
    store = reader.store(sink.info, share.range.to.version)
    if store.placement is not None:
        # A hung server would hold up the other shards for a whole query timeout.
        store.endpoint.ping()
    store.ensure()
    staged = share.data_type is DataType.SNAPSHOT
    stopped: dict[str, IscpError] = {}
    if not staged:
        stopped |= reader.refused_kept(sink.info, share.range)
    before = sink.written_before() if staged else sink.left_unconfirmed
    store = store.take_over(before, sink.alive) if before else store.enter()
    # Only now: a run that lost its claims before could have read the new holder's epochs.
    stopped |= sink.lost()
    if stopped.keys() >= share.tenants:
        raise next(iter(stopped.values()))
    return replace(store, attempt=new_attempt(sink.run_id)), stopped


def _shipped(share: Share, store: IndexStore) -> Share:
    """The share with the index's consumer; creates its staging table."""
    staged = share.data_type is DataType.SNAPSHOT
    if staged:
        store.clear_letters(share.registrations, version=share.range.to.version)
        store.stage()
    consumer = IndexConsumer(
        endpoint=store.endpoint, target=store.target(staged=staged), placement=store.placement
    )
    return replace(share, consumer=consumer)


def _worker(reader: Reader, sink: Sink, share: Share, wanted: Reading) -> Worker:
    retriever = Retriever(share=share, settle=sink.settle, fences=sink.fences, lost=sink.lost)
    return Worker(lambda: _own_consumer(reader, sink, wanted, retriever), retriever)


def _own_consumer(reader: Reader, sink: Sink, wanted: Reading, retriever: Retriever) -> Consumer:
    """The consumer that takes the rows in this process."""
    given = Scan(
        table_id=sink.claims[0].key.table_id,
        columns=reader.columns(sink.info, wanted.range.to.version),
        reason=wanted.plan.reason,
        repairs={claim.key.tenant: claim.repairs for claim in sink.claims},
        lost=partial(_lost, sink, retriever),
        deployment=reader.deployment,
    )
    return consumer_kind(sink.info.type).consumer(reader.source, sink.info, given)


def _lost(sink: Sink, retriever: Retriever, tenant: str) -> IscpError | None:
    """Why nothing more may be done for the tenant; None: it may."""
    if retriever.broken:
        return ScanError("The scan ended before its consumers did; the next iteration goes on.")
    return sink.lost_for(tenant)


def _run(
    reader: Reader,
    wanted: Reading,
    writer: Writer,
    workers: Mapping[str, Worker],
    spark: SparkSession,
    *,
    through_spark: bool,
) -> list[Receipt]:
    """One Spark job: executors write the tables, and relay what the workers consume.

    The run itself does what executors do where there are few rows.
    """
    shares = [each.retriever.share for each in workers.values()]
    shared = dict.fromkeys(name for share in shares for name in share.scanned(share.columns))
    columns = dict.fromkeys(name for each in writer.shares for name in each.columns)
    relayed = (*shared, *SYSTEM_COLUMNS) if workers else ()
    rows = reader.rows(spark, wanted, [*columns, *shared], through_spark=through_spark)
    task = writing(writer, rows.unpack, relayed=relayed)
    receipts: list[Receipt] = []
    for row in _output(rows, task, one_by_one=bool(workers)):
        payload = row.pop("payload")
        if payload is None:
            receipts.append(Receipt(**row))
            continue
        chunk = relayed_rows(bytes(payload))
        for worker in workers.values():
            worker.put(chunk)
    refusal = next((each for each in receipts if each.code and not each.target), None)
    for worker in workers.values():
        if refusal is None:
            worker.end()
        else:
            worker.abort(ScanError(refusal.message))
    return receipts


def _output(rows: MappedFrame, task: Mapped, *, one_by_one: bool) -> Iterable[dict[str, Any]]:
    """What the task gives. Fetching all at once takes one request; `collect` takes another."""
    if rows.few:
        found = task(rows.frame.toArrow().to_batches())
        return (row for batch in found for row in batch.to_pylist())
    frame = map_in_arrow(rows.frame, task, spark_schema(SCAN_SCHEMA), rows.names)
    if one_by_one:
        return (row.asDict() for row in frame.toLocalIterator())
    given: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return given


def _consumed(
    written: Written, worker: Worker, receipts: Sequence[Receipt], seconds: float
) -> Written:
    retriever = worker.retriever
    stopped = {tenant: Error.of(error) for tenant, error in retriever.refused.items()}
    told = dict(retriever.told)
    written = replace(written, stopped=stopped, told=told, seconds=seconds)
    refusal = next((each for each in receipts if each.code and not each.target), None)
    if refusal is not None:
        error = _error(refusal)
        return replace(written, error=error, unsure=error.unsure)
    if worker.failure is not None:
        # A consumer's error does not say whose rows caused it, whatever its code.
        return _refused(written, worker.failure, unsure=worker.made)
    return replace(
        written,
        inserted=dict(retriever.inserted),
        deleted=dict(retriever.deleted),
        bytes=dict(retriever.bytes),
        chunks=retriever.chunks,
        write_seconds=retriever.seconds,
        settled=retriever.settled,
    )


def _error(receipt: Receipt) -> Error:
    return Error(code=receipt.code, message=receipt.message)


def _summed(written: Written, receipts: Sequence[Receipt], name: str, seconds: float) -> Written:
    mine = [receipt for receipt in receipts if receipt.target == name]
    stopped = {each.tenant: _error(each) for each in mine if each.code and each.tenant}
    written = replace(written, stopped={**written.stopped, **stopped}, seconds=seconds)
    failed = next((each for each in mine if each.code and not each.tenant), None)
    if failed is not None:
        error = _error(failed)
        return replace(written, error=error, unsure=error.unsure)
    inserted, deleted, bytes_ = Counter[str](), Counter[str](), Counter[str]()
    for each in mine:
        inserted[each.tenant] += each.inserted
        deleted[each.tenant] += each.deleted
        bytes_[each.tenant] += each.bytes
    return replace(
        written,
        inserted=dict(inserted),
        deleted=dict(deleted),
        bytes=dict(bytes_),
        chunks=sum(receipt.chunks for receipt in mine),
        write_seconds=sum(receipt.seconds for receipt in mine),
        again=any(receipt.again for receipt in mine),
    )


def _whole(spark: SparkSession, written: Written, tenants: Collection[str]) -> Written:
    """What was written, with inserts that are still in flight rejected.

    An unanswered attempt could land once ClickHouse has forgotten its token.
    """
    if written.error or not (written.again or speculates(spark)):
        return written
    assert written.store is not None
    try:
        written.store.shut_out(tenants)
    except IscpError as error:
        return _refused(written, error)
    return written
