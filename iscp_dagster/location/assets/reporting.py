"""Reports to Dagster what runs of many tenants stored: one materialization per tenant and index.

A run reports one scan while it does the next, since Dagster takes a while per event. An hourly
job reports what dead runs did not.
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

from iscp_dagster.joblog.iterations import Failed
from iscp_dagster.joblog.sql.statements import portions
from iscp_dagster.location.assets.data_versions import AssetEvent, DataVersions, latest
from iscp_dagster.location.assets.io_manager import shown
from iscp_dagster.location.assets.iterations import InStep, Iterations, Outcome
from iscp_dagster.location.assets.metadata import events_if_known, told_metadata
from iscp_dagster.location.assets.provenance import Provenance
from iscp_dagster.location.assets.source_check import evaluation
from iscp_dagster.location.internals import (
    DATA_VERSION_TAG,
    AssetMaterializationPlannedData,
    DagsterEventBatchMetadata,
)
from iscp_dagster.location.names import job_key
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.jobs import Job, JobKey
from iscp_dagster.model.moment import START
from iscp_dagster.model.portions import split_into_portions
from iscp_dagster.model.states import JobState
from iscp_dagster.planning.effective import effective
from iscp_dagster.planning.problems import problem_of
from iscp_dagster.planning.table_problems import problems_of
from iscp_dagster.runs.named import WORKED
from iscp_dagster.serviceconsumers.services import INVOKED
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.iteration.outcomes import Delivery

Context = dg.AssetExecutionContext | dg.OpExecutionContext
Success = Delivery | InStep
"""An outcome whose rows are served."""
Reported = AssetEvent | dg.AssetCheckEvaluation
Tell = Callable[[Sequence[Success], Sequence[Outcome]], None]
BATCH = 200
"""The events that are made and stored at a time."""


def iterated(
    context: Context,
    its: Iterations,
    chosen: Callable[[Sequence[Success]], Sequence[Success]] = list,
) -> tuple[list[Success], list[Outcome]]:
    """Bring the tenants in step and report each; returns what was served, and what failed.

    `chosen` picks the outcomes of a scan to report. If an error ends the run, what was served
    before is reported first.
    """
    told: list[Success] = []
    failed: list[Outcome] = []
    with reporting(context, its) as tell:
        for outcomes in its.outcomes():
            served = chosen([each for each in outcomes if isinstance(each, Delivery | InStep)])
            wrong = [each for each in outcomes if not isinstance(each, Delivery | InStep)]
            if served or wrong:
                tell(served, wrong)
            told += served
            failed += wrong
    return told, failed


@contextmanager
def reporting(context: Context, its: Iterations) -> Iterator[Tell]:
    """Yield a function that reports a scan's outcomes, in parallel with what the run does next.

    Ends when all are reported; raises Dagster's first error, which costs no tenant its rows. An
    interrupted run reports no more.
    """
    ended, told, to = threading.Event(), list[Future[None]](), its.to

    @cache
    def versions() -> DataVersions:
        # With a log of its own, since two threads must not share one.
        log_ = its.deployment.delta_log(its.source)
        return DataVersions(context.instance, its.source, log_, to.version)

    def made_of(served: Sequence[Success]) -> Iterator[Iterable[Reported]]:
        yield news_of(its.deployment, versions(), {each.tenant for each in served})
        yield materializations(context.instance, its.deployment, its.source, served, its.run_id)

    def store(served: Sequence[Success], wrong: Sequence[Outcome]) -> None:
        for events in (*(made_of(served) if served else ()), observations(its.source, wrong)):
            store_events(context, takewhile(lambda _: not ended.is_set(), events))
        mark_failed_partitions(context, its.source, takewhile(lambda _: not ended.is_set(), wrong))

    with ThreadPoolExecutor(1, "reporting") as beside, _set_when_interrupted(ended):
        try:
            yield lambda served, wrong: told.append(beside.submit(store, served, wrong))
        except Exception:
            wait(told)
            raise
        for each in told:
            each.result()


@contextmanager
def _set_when_interrupted(event: threading.Event) -> Iterator[None]:
    try:
        yield
    except Exception:
        raise
    except BaseException:
        event.set()
        raise


def store_events(context: Context, events: Iterable[Reported]) -> None:
    """Store the events, each batch before the next is made.

    Dagster writes a batch's events of an asset together if DAGSTER_EVENT_BATCH_SIZE allows it.
    """
    for some in split_into_portions(events, most=BATCH):
        for _, mine in groupby(sorted(some, key=_series), key=_series):
            _store(context, list(mine))


def _series(event: Reported) -> tuple[bool, str, str]:
    # Dagster takes a check as of the version before it.
    is_check = isinstance(event, dg.AssetCheckEvaluation)
    return is_check, type(event).__name__, event.asset_key.to_user_string()


def _store(context: Context, events: Sequence[Reported]) -> None:
    batch = str(uuid4())
    for number, event in enumerate(events, start=1):
        log_event(context, event, DagsterEventBatchMetadata(batch, number == len(events)))


def log_event(context: Context, event: Reported, batch: DagsterEventBatchMetadata) -> None:
    """Log one event, as `context.log_event` does, but as part of a batch."""
    step = context.get_step_execution_context()
    match event:
        case dg.AssetMaterialization():
            dg.DagsterEvent.asset_materialization(step, event, batch)
        case dg.AssetObservation():
            dg.DagsterEvent.asset_observation(step, event, batch)
        case dg.AssetCheckEvaluation():
            context.log_event(event)  # type: ignore[arg-type] # which takes it


def news_of(
    deployment: Deployment, versions: DataVersions, tenants: Collection[str]
) -> list[Reported]:
    """The tenants' data versions that Dagster has not been told yet.

    For a table that this location loads, adds its check, or Dagster would show that as older.
    """
    news = versions.news(sorted(tenants))
    if news and versions.source.load:
        return [*news, evaluation(versions.source, problems_of(deployment, versions.source))]
    return [*news]


def materializations(
    instance: dg.DagsterInstance,
    deployment: Deployment,
    source: SourceTable,
    outcomes: Sequence[Success],
    run_id: str,
) -> Iterator[dg.AssetMaterialization]:
    """One for each outcome, as a run for that tenant alone would report it."""
    declared = {each.name for each in source.consumers}
    tenants = {each.tenant for each in outcomes if each.job_name in declared}
    made_of = Provenance.of(instance, source, tenants, run_id)
    tables: dict[int, Mapping[str, Any]] = {}
    events = cache(partial(events_if_known, deployment, source))
    for each in outcomes:
        tags = (
            made_of.tags(each.job_name, each.tenant, agrees(each))
            if each.job_name in declared
            else {}
        )
        yield dg.AssetMaterialization(
            asset_key=job_key(source, each.job_name),
            partition=each.tenant,
            metadata={**shown(each, tables), **events(each.job_name)},
            tags={**tags, DATA_VERSION_TAG: str(each.data_version)},
        )


def observations(source: SourceTable, wrong: Iterable[Outcome]) -> Iterator[dg.AssetObservation]:
    """One for each failed job whose handler was invoked all the same, with these invocations."""
    for each in wrong:
        if isinstance(each, Failed) and INVOKED in each.told:
            key = each.claim.key
            error = dg.MetadataValue.text(f"[{each.code}] {each.message}")
            yield dg.AssetObservation(
                asset_key=job_key(source, key.job_name),
                partition=key.tenant,
                metadata={**told_metadata(each.told), "error": error},
            )


def mark_failed_partitions(context: Context, source: SourceTable, wrong: Iterable[Outcome]) -> None:
    """Have Dagster show the partitions of failed jobs as failed, until they are materialized.

    To Dagster a partition has failed when a run that planned to materialize it has, and only runs
    of assets plan by themselves; a run with a failed job fails.
    """
    _plan_partitions(
        context, source, (each.claim.key for each in wrong if isinstance(each, Failed))
    )


def _plan_partitions(context: Context, source: SourceTable, keys: Iterable[JobKey]) -> None:
    """Plan to materialize the partitions of declared jobs in a run that will fail."""
    declared = {each.name for each in source.consumers}
    step = context.get_step_execution_context()
    for key in keys:
        if key.job_name in declared:
            planned = AssetMaterializationPlannedData(
                job_key(source, key.job_name), partition=key.tenant
            )
            event = dg.DagsterEvent.build_asset_materialization_planned_event(
                step.job_name, step.step.key, planned
            )
            context.instance.report_dagster_event(event, run_id=step.run_id)


def find_unmarked_errors(
    instance: dg.DagsterInstance, source: SourceTable, jobs: Iterable[Job]
) -> list[Job]:
    """The declared jobs in error whose partitions Dagster does not show as failed.

    No run of theirs has failed since they were materialized: one was ended before it could mark
    them, or the runner found the error.
    """
    wrong: dict[str, list[Job]] = {each.name: [] for each in source.consumers}
    for job in jobs:
        if job.state is JobState.ERROR and job.key.job_name in wrong:
            wrong[job.key.job_name].append(job)
    found: list[Job] = []
    for name, its in wrong.items():
        tries = _runs_since_materialized(instance, source, name) if its else {}
        failed = _failed_of(instance, {tries.get(job.key.tenant, "") for job in its})
        found += [job for job in its if tries.get(job.key.tenant, "") not in failed]
    return found


def _runs_since_materialized(
    instance: dg.DagsterInstance, source: SourceTable, name: str
) -> dict[str, str]:
    """By tenant, the latest run that planned to materialize it and has not."""
    ask = instance.event_log_storage.get_latest_asset_partition_materialization_attempts_without_materializations  # noqa: E501
    return {tenant: run for tenant, (run, _) in ask(job_key(source, name)).items()}


def _failed_of(instance: dg.DagsterInstance, runs: Collection[str]) -> set[str]:
    """Those of the runs that have failed."""
    failed = [dg.DagsterRunStatus.FAILURE]
    return {
        run.run_id
        for some in portions(sorted(filter(None, runs)))
        for run in instance.get_runs(dg.RunsFilter(run_ids=some, statuses=failed))
    }


def unreported(
    instance: dg.DagsterInstance, source: SourceTable, jobs: Collection[Job]
) -> list[InStep]:
    """The jobs that serve rows which Dagster does not know about, since their runs ended early.

    Costs one statement per index and 5,000 tenants.
    """
    kind = dg.DagsterEventType.ASSET_MATERIALIZATION
    found: list[InStep] = []
    by_name = attrgetter("key.job_name")
    for name, group in groupby(sorted(jobs, key=by_name), key=by_name):
        served = [job for job in group if job.watermark.version > START.version]
        told = latest(instance, job_key(source, name), kind, [job.key.tenant for job in served])
        found += [InStep(job=job) for job in served if _untold(job, told.get(job.key.tenant))]
    return found


def agrees(outcome: Success) -> int:
    """The last version of the source that its rows are known to agree with."""
    moment = outcome.job.watermark if isinstance(outcome, InStep) else outcome.to
    return moment.version


def _untold(job: Job, version: str | None) -> bool:
    if version is None:
        return True
    # After an iteration that failed, the row no longer says which version was delivered last.
    ended = job.status.to is not None and job.status.to.version <= job.watermark.version
    return ended and version != str(InStep(job=job).data_version)


def report_indexes(
    context: dg.OpExecutionContext, deployment: Deployment, sources: Sequence[SourceTable]
) -> tuple[dict[str, int], list[str]]:
    """Report what is served but was not reported; returns how many by table, and the problems.

    Jobs in error that Dagster does not show as failed are problems too: the run has to fail, and
    then shows them so. Leaves out jobs that a run is writing or that wait for a run. One table's
    problem stops no other. Idempotent.
    """
    reported: dict[str, int] = {}
    problems: list[str] = []
    for source in sources:
        if not deployment.log.table_ids(source.database, source.table):
            continue  # it has no jobs, and may not be there yet
        try:
            reported[source.name], wrong = _report(context, deployment, source)
            problems += wrong
        except Exception as error:  # noqa: BLE001 - whatever a table raises stops it alone
            problems.append(str(problem_of(source, error)))
    return reported, problems


def _report(
    context: dg.OpExecutionContext, deployment: Deployment, source: SourceTable
) -> tuple[int, list[str]]:
    """How many jobs were reported as materialized, and a line for each reported as failed."""
    delta_log, count, problems = deployment.delta_log(source), 0, list[str]()
    table_id, to = delta_log.table_id(), delta_log.latest()
    versions = DataVersions(context.instance, source, delta_log, to.version)
    for some in portions(sorted(deployment.log.tenants(table_id))):
        jobs = deployment.log.jobs(table_id=table_id, tenants=some)
        # Read after the jobs: a run that has ended since has reported what it completed.
        working = _at_work(context.instance)
        idle = [job for job in jobs if not job.active and job.run_id not in working]
        left = [each.job for each in unreported(context.instance, source, idle)]
        outcomes = [InStep(job=job) for job in effective(delta_log, left, to)]
        store_events(context, news_of(deployment, versions, {each.tenant for each in outcomes}))
        made = materializations(context.instance, deployment, source, outcomes, context.run_id)
        store_events(context, made)
        count += len(outcomes)
        wrong = find_unmarked_errors(context.instance, source, idle)
        _plan_partitions(context, source, (job.key for job in wrong))
        problems += [
            f"[{job.status.code}] {job.name}, tenant {job.key.tenant!r}: {job.status.message}"
            for job in wrong
        ]
    return count, problems


def _at_work(instance: dg.DagsterInstance) -> set[str]:
    return {run.run_id for run in instance.get_runs(dg.RunsFilter(statuses=list(WORKED)))}
