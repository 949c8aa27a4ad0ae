"""Reports to Dagster what runs of several tenants stored: a materialization per tenant and index.

A run reports one scan during the next, since Dagster takes a while per event. An hourly job
reports what dead runs did not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache, partial
from itertools import groupby, takewhile
from operator import attrgetter
from typing import Any
from uuid import uuid4

import dagster as dg

from iscp_dagster.joblog.iterations import FailedStep
from iscp_dagster.joblog.sql.statements import split_for_statements
from iscp_dagster.location.assets.io_manager import build_outcome_metadata, read_table_metadata
from iscp_dagster.location.assets.iterations import (
    InStepJob,
    Iterations,
    JobOutcome,
    ServedOutcome,
    get_agreed_version,
)
from iscp_dagster.location.assets.metadata import build_consumer_metadata, try_read_event_counts
from iscp_dagster.location.assets.reports.bucket_reports import BucketReports
from iscp_dagster.location.assets.reports.data_versions import (
    AssetEvent,
    DataVersions,
    read_latest_versions,
)
from iscp_dagster.location.assets.reports.provenance import Provenance
from iscp_dagster.location.assets.source_check import build_check_evaluation
from iscp_dagster.location.internals import (
    DATA_VERSION_TAG,
    AssetMaterializationPlannedData,
    DagsterEventBatchMetadata,
)
from iscp_dagster.location.names import get_job_asset_key
from iscp_dagster.location.partitions import get_partition
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.jobs import Job, JobKey
from iscp_dagster.model.moment import START
from iscp_dagster.model.portions import split_into_portions
from iscp_dagster.model.states import JobState
from iscp_dagster.planning.effective import compute_effective_jobs
from iscp_dagster.planning.problems import make_problem
from iscp_dagster.planning.table_problems import find_problems
from iscp_dagster.runs.run_names import ACTIVE_STATUSES
from iscp_dagster.serviceconsumers.runtime_protocol import INVOKED
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.iteration.outcomes import RowDelivery

Context = dg.AssetExecutionContext | dg.OpExecutionContext
ReportedEvent = AssetEvent | dg.AssetCheckEvaluation
ReportOutcomes = Callable[[Sequence[ServedOutcome], Sequence[JobOutcome]], None]
BATCH = 200
"""The most events that are made and stored at a time."""


def sync_tenants(
    context: Context,
    iterations: Iterations,
    select: Callable[[Sequence[ServedOutcome]], Sequence[ServedOutcome]] = list,
) -> tuple[list[ServedOutcome], list[JobOutcome]]:
    """Bring the tenants in step and report each; returns what was served, and what failed.

    `select` picks the outcomes of a scan to report. If an error ends the run, what was served
    before is reported first.
    """
    reported: list[ServedOutcome] = []
    failed: list[JobOutcome] = []
    with report_outcomes_in_background(context, iterations) as report_outcomes:
        for outcomes in iterations.iterate_jobs():
            served = select(
                [outcome for outcome in outcomes if isinstance(outcome, RowDelivery | InStepJob)]
            )
            failures = [
                outcome for outcome in outcomes if not isinstance(outcome, RowDelivery | InStepJob)
            ]
            if served or failures:
                report_outcomes(served, failures)
            reported += served
            failed += failures
    return reported, failed


@contextmanager
def report_outcomes_in_background(
    context: Context, iterations: Iterations
) -> Iterator[ReportOutcomes]:
    """Yield a function that reports a scan's outcomes, in parallel with the rest of the run.

    Ends when all are reported; raises Dagster's first error, which affects no rows. An interrupted
    run reports no more.
    """
    interrupted, futures, to = threading.Event(), list[Future[None]](), iterations.to

    @cache
    def get_versions() -> DataVersions:
        # With a separate log, since two threads must not share one.
        delta_log = iterations.deployment.make_delta_log(iterations.source)
        return DataVersions(context.instance, iterations.source, delta_log, to.version)

    def build_events(served: Sequence[ServedOutcome]) -> Iterator[Iterable[ReportedEvent]]:
        yield build_news_events(
            iterations.deployment, get_versions(), {outcome.tenant for outcome in served}
        )
        yield build_materializations(
            context.instance, iterations.deployment, iterations.source, served, iterations.run_id
        )

    def store(served: Sequence[ServedOutcome], failures: Sequence[JobOutcome]) -> None:
        for events in (
            *(build_events(served) if served else ()),
            build_observations(iterations.source, failures),
        ):
            store_events(context, takewhile(lambda _: not interrupted.is_set(), events))
        mark_failed_partitions(
            context, iterations.source, takewhile(lambda _: not interrupted.is_set(), failures)
        )

    with ThreadPoolExecutor(1, "reporting") as executor, _set_when_interrupted(interrupted):
        try:
            yield lambda served, failures: futures.append(executor.submit(store, served, failures))
        except Exception:
            wait(futures)
            raise
        for future in futures:
            future.result()


@contextmanager
def _set_when_interrupted(event: threading.Event) -> Iterator[None]:
    try:
        yield
    except Exception:
        raise
    except BaseException:
        event.set()
        raise


def store_events(context: Context, events: Iterable[ReportedEvent]) -> None:
    """Store the events, each batch before the next is made.

    Dagster writes an asset's events of a batch together if DAGSTER_EVENT_BATCH_SIZE allows it.
    """
    for portion in split_into_portions(events, most=BATCH):
        for _, batch in groupby(sorted(portion, key=_get_event_series), key=_get_event_series):
            _store_batch(context, list(batch))


def _get_event_series(event: ReportedEvent) -> tuple[bool, str, str]:
    # Dagster takes a check as of the version before it.
    is_check = isinstance(event, dg.AssetCheckEvaluation)
    return is_check, type(event).__name__, event.asset_key.to_user_string()


def _store_batch(context: Context, events: Sequence[ReportedEvent]) -> None:
    batch = str(uuid4())
    for number, event in enumerate(events, start=1):
        log_event(context, event, DagsterEventBatchMetadata(batch, number == len(events)))


def log_event(context: Context, event: ReportedEvent, batch: DagsterEventBatchMetadata) -> None:
    """Log one event, as `context.log_event` does, but as part of a batch."""
    step = context.get_step_execution_context()
    match event:
        case dg.AssetMaterialization():
            dg.DagsterEvent.asset_materialization(step, event, batch)
        case dg.AssetObservation():
            dg.DagsterEvent.asset_observation(step, event, batch)
        case dg.AssetCheckEvaluation():
            context.log_event(event)  # type: ignore[arg-type] # which takes it


def build_news_events(
    deployment: Deployment, versions: DataVersions, tenants: Collection[str]
) -> list[ReportedEvent]:
    """Events for the tenants' data versions that have not been reported yet.

    For a table that this location loads, adds its check, or Dagster would show the check as older.
    """
    news = versions.build_unreported_events(sorted(tenants))
    if news and versions.source.load:
        return [
            *news,
            build_check_evaluation(versions.source, find_problems(deployment, versions.source)),
        ]
    return [*news]


def build_materializations(
    instance: dg.DagsterInstance,
    deployment: Deployment,
    source: SourceTable,
    outcomes: Sequence[ServedOutcome],
    run_id: str,
) -> Iterator[dg.AssetMaterialization]:
    """One for each outcome, as a run for only that tenant would report it; or for each bucket."""
    declared = {consumer.name for consumer in source.consumers}
    partitions = {
        get_partition(source, outcome.tenant)
        for outcome in outcomes
        if outcome.job_name in declared
    }
    provenance = Provenance.read_instance(instance, source, partitions, run_id)
    tables: dict[int, Mapping[str, Any]] = {}
    events = cache(partial(try_read_event_counts, deployment, source))
    if source.buckets:
        stores = {
            outcome.job_name: outcome.store
            for outcome in outcomes
            if isinstance(outcome, RowDelivery)
        }
        facts = {
            name: {**(read_table_metadata(store) if store else {}), **events(name)}
            for name, store in stores.items()
        }
        reports = BucketReports(
            instance=instance,
            deployment=deployment,
            source=source,
            provenance=provenance,
            tables=facts,
        )
        yield from reports.build_materializations(outcomes)
        return
    for outcome in outcomes:
        tags = (
            provenance.build_tags(outcome.job_name, outcome.tenant, get_agreed_version(outcome))
            if outcome.job_name in declared
            else {}
        )
        yield dg.AssetMaterialization(
            asset_key=get_job_asset_key(source, outcome.job_name),
            partition=outcome.tenant,
            metadata={**build_outcome_metadata(outcome, tables), **events(outcome.job_name)},
            tags={**tags, DATA_VERSION_TAG: str(outcome.data_version)},
        )


def build_observations(
    source: SourceTable, failures: Iterable[JobOutcome]
) -> Iterator[dg.AssetObservation]:
    """One for each failed job whose handler was invoked, with these invocations."""
    for outcome in failures:
        if isinstance(outcome, FailedStep) and INVOKED in outcome.reported:
            key = outcome.claim.key
            error = dg.MetadataValue.text(f"[{outcome.code}] {outcome.message}")
            yield dg.AssetObservation(
                asset_key=get_job_asset_key(source, key.job_name),
                partition=key.tenant,
                metadata={**build_consumer_metadata(outcome.reported), "error": error},
            )


def mark_failed_partitions(
    context: Context, source: SourceTable, failures: Iterable[JobOutcome]
) -> None:
    """Have Dagster show the partitions of failed jobs as failed, until they are materialized.

    Dagster shows a partition as failed if a run that planned to materialize it failed, and only
    runs of assets plan by themselves; a run with a failed job fails.
    """
    _store_planned_events(
        context,
        source,
        (outcome.claim.key for outcome in failures if isinstance(outcome, FailedStep)),
    )


def _store_planned_events(context: Context, source: SourceTable, keys: Iterable[JobKey]) -> None:
    """Plan to materialize the partitions of declared jobs in a run that will fail."""
    declared = {consumer.name for consumer in source.consumers}
    step = context.get_step_execution_context()
    # Lazy, so that an interrupted run stops between two.
    planned = set[tuple[str, str]]()
    for key in keys:
        name, partition = key.job_name, get_partition(source, key.tenant)
        if name in declared and (name, partition) not in planned:
            planned.add((name, partition))
            planned_data = AssetMaterializationPlannedData(
                get_job_asset_key(source, name), partition=partition
            )
            event = dg.DagsterEvent.build_asset_materialization_planned_event(
                step.job_name, step.step.key, planned_data
            )
            context.instance.report_dagster_event(event, run_id=step.run_id)


def find_unmarked_errors(
    instance: dg.DagsterInstance, source: SourceTable, jobs: Iterable[Job]
) -> list[Job]:
    """The declared jobs in error whose partitions Dagster does not show as failed.

    None of their runs failed since they were materialized: a run ended before it could mark them,
    or the runner found the error.
    """
    errors_by_name: dict[str, list[Job]] = {consumer.name: [] for consumer in source.consumers}
    for job in jobs:
        if job.state is JobState.ERROR and job.key.job_name in errors_by_name:
            errors_by_name[job.key.job_name].append(job)
    unmarked: list[Job] = []
    for name, errors in errors_by_name.items():
        attempts = _find_latest_attempts(instance, source, name) if errors else {}
        runs = [attempts.get(get_partition(source, job.key.tenant), "") for job in errors]
        failed = _find_failed_runs(instance, set(runs))
        unmarked += [job for job, run in zip(errors, runs, strict=True) if run not in failed]
    return unmarked


def _find_latest_attempts(
    instance: dg.DagsterInstance, source: SourceTable, name: str
) -> dict[str, str]:
    """By partition, the latest run that planned to materialize it but did not."""
    read_attempts = instance.event_log_storage.get_latest_asset_partition_materialization_attempts_without_materializations  # noqa: E501
    return {
        partition: run
        for partition, (run, _) in read_attempts(get_job_asset_key(source, name)).items()
    }


def _find_failed_runs(instance: dg.DagsterInstance, runs: Collection[str]) -> set[str]:
    """The runs that failed."""
    failed = [dg.DagsterRunStatus.FAILURE]
    return {
        run.run_id
        for portion in split_for_statements(sorted(filter(None, runs)))
        for run in instance.get_runs(dg.RunsFilter(run_ids=portion, statuses=failed))
    }


def find_unreported_jobs(
    instance: dg.DagsterInstance, source: SourceTable, jobs: Collection[Job]
) -> list[InStepJob]:
    """The jobs whose served rows Dagster does not know about, since their runs ended early.

    Costs one statement per index and 5,000 tenants.
    """
    kind = dg.DagsterEventType.ASSET_MATERIALIZATION
    unreported: list[InStepJob] = []
    get_name = attrgetter("key.job_name")
    for name, group in groupby(sorted(jobs, key=get_name), key=get_name):
        served = [job for job in group if job.watermark.version > START.version]
        partitions = [get_partition(source, job.key.tenant) for job in served]
        reported = read_latest_versions(
            instance, get_job_asset_key(source, name), kind, set(partitions)
        )
        is_unreported = _is_newer_than_bucket if source.buckets else _is_unreported
        unreported += [
            InStepJob(job=job)
            for job, partition in zip(served, partitions, strict=True)
            if is_unreported(job, reported.get(partition))
        ]
    return unreported


def _is_newer_than_bucket(job: Job, version: str | None) -> bool:
    """Whether the job has later rows than any that were reported of its bucket."""
    if version is None or not version.isdigit():
        return True
    return InStepJob(job=job).data_version > int(version)


def _is_unreported(job: Job, version: str | None) -> bool:
    if version is None:
        return True
    # After a failed iteration, the row no longer has the version that was delivered last.
    ended = job.status.to is not None and job.status.to.version <= job.watermark.version
    return ended and version != str(InStepJob(job=job).data_version)


def report_indexes(
    context: dg.OpExecutionContext, deployment: Deployment, sources: Sequence[SourceTable]
) -> tuple[dict[str, int], list[str]]:
    """Report what is served but was not reported; returns how many by table, and the problems.

    Jobs in error that Dagster does not show as failed are problems too: the run must fail so that
    it shows them. Leaves out jobs that a run is writing or that wait for a run. One table's problem
    does not stop the others. Idempotent.
    """
    reported: dict[str, int] = {}
    problems: list[str] = []
    for source in sources:
        if not deployment.log.find_table_ids(source.database, source.table):
            continue  # it has no jobs, and may not be there yet
        try:
            reported[source.name], table_problems = _report_table(context, deployment, source)
            problems += table_problems
        except Exception as error:  # noqa: BLE001 - an error stops only its own table
            problems.append(str(make_problem(source, error)))
    return reported, problems


def _report_table(
    context: dg.OpExecutionContext, deployment: Deployment, source: SourceTable
) -> tuple[int, list[str]]:
    """How many jobs were reported as materialized, and a line for each reported as failed."""
    delta_log, count, problems = deployment.make_delta_log(source), 0, list[str]()
    table_id, to = delta_log.get_table_id(), delta_log.get_latest_moment()
    versions = DataVersions(context.instance, source, delta_log, to.version)
    for portion in split_for_statements(sorted(deployment.log.list_tenants(table_id))):
        jobs = deployment.log.list_jobs(table_id=table_id, tenants=portion)
        # Read after the jobs: a run that ended since has reported what it completed.
        working = _find_working_runs(context.instance)
        idle = [job for job in jobs if not job.active and job.run_id not in working]
        unreported = [
            in_step.job for in_step in find_unreported_jobs(context.instance, source, idle)
        ]
        outcomes = [InStepJob(job=job) for job in compute_effective_jobs(delta_log, unreported, to)]
        store_events(
            context,
            build_news_events(deployment, versions, {outcome.tenant for outcome in outcomes}),
        )
        materializations = build_materializations(
            context.instance, deployment, source, outcomes, context.run_id
        )
        store_events(context, materializations)
        count += len(outcomes)
        unmarked = find_unmarked_errors(context.instance, source, idle)
        _store_planned_events(context, source, (job.key for job in unmarked))
        problems += [
            f"[{job.status.code}] {job.name}, tenant {job.key.tenant!r}: {job.status.message}"
            for job in unmarked
        ]
    return count, problems


def _find_working_runs(instance: dg.DagsterInstance) -> set[str]:
    return {run.run_id for run in instance.get_runs(dg.RunsFilter(statuses=list(ACTIVE_STATUSES)))}
