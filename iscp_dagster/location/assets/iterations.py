"""The iterations of a run: it iterates the jobs it was started for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

from dagster import AssetExecutionContext, DagsterInstance, DagsterRun, Failure

from iscp_dagster.delta.feed import ChangeFeed
from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.joblog.iterations import FailedStep, Iteration, needs_own_scan
from iscp_dagster.location.executor import format_no_tenant_message
from iscp_dagster.location.internals import PARENT_RUN_ID_TAG, ROOT_RUN_ID_TAG
from iscp_dagster.model.consumers.kinds import get_consumer_kind
from iscp_dagster.model.declared.tables import DeclaredConsumer, SourceTable
from iscp_dagster.model.errors import FenceError
from iscp_dagster.model.jobs import Job, JobKey
from iscp_dagster.model.moment import Moment
from iscp_dagster.model.states import JobState
from iscp_dagster.planning.effective import compute_effective_jobs, flush_jobs
from iscp_dagster.planning.job_specs import make_job_specs, make_new_jobs
from iscp_dagster.planning.joining import (
    DueIteration,
    bound_iteration,
    join_iterations,
    split_iteration,
)
from iscp_dagster.planning.newcomers import find_latest_moments, set_first_watermarks
from iscp_dagster.planning.table_problems import check_sole
from iscp_dagster.runs.run_names import DISPATCH_TAG, find_runs, get_run_names, is_first
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.interpreter import iterate
from iscp_dagster.sync.iteration.outcomes import RowDelivery
from iscp_dagster.sync.writing.writer import IndexWriter

MOST_SHOWN = 20
"""How many failures a run's page shows."""
LEFT_OUT = (
    "[{code}] {job.name}, tenant {job.key.tenant!r}: left out, since run {job.run_id} is writing "
    "it, or has died less than a minute ago. Wait until that run has ended, or cancel it, then "
    "execute this run again."
)


@dataclass(frozen=True, kw_only=True)
class InStepJob:
    """A job in step already: a person requested it, or an earlier run ended before reporting it."""

    job: Job

    @property
    def tenant(self) -> str:
        return self.job.key.tenant

    @property
    def job_name(self) -> str:
        return self.job.key.job_name

    @property
    def data_version(self) -> int:
        """The data version of its rows."""
        return min(self.job.status.to or self.job.watermark, self.job.watermark).version


ServedOutcome = RowDelivery | InStepJob
"""An outcome whose rows are served."""


def get_agreed_version(outcome: ServedOutcome) -> int:
    """The last source version that its rows are known to agree with."""
    moment = outcome.job.watermark if isinstance(outcome, InStepJob) else outcome.to
    return moment.version


@dataclass(frozen=True, kw_only=True)
class BusyJob:
    """A job that a person requested but that was left out, since another run is writing it."""

    job: Job


JobOutcome = RowDelivery | FailedStep | InStepJob | BusyJob


@dataclass(frozen=True, kw_only=True)
class Iterations:
    """The iterations of one run over `source`.

    A run that the runner dispatched takes the jobs that wait for it. A run that a person started
    registers, repairs and takes over every job that is not being written right now: jobs of
    its `consumers`, jobs of the run that it re-executes, and with `undeclared` jobs that nothing
    declares.
    """

    deployment: Deployment
    source: SourceTable
    run_id: str
    tenants: Sequence[str]
    dispatch: str | None = None
    """The name of the runner's iteration that the run is for; None if a person started it."""
    repeats: frozenset[str] = frozenset()
    """The names that the re-executed run may have in the ISCP log."""
    consumers: Sequence[DeclaredConsumer] = ()
    undeclared: bool = False
    warn: Callable[[str], None]
    writer: IndexWriter | None = None
    """The IO manager's writer; None creates one."""

    @classmethod
    def from_run(cls, run: DagsterRun, instance: DagsterInstance, **arguments: Any) -> Iterations:
        """The iterations of a Dagster run; only a dispatch's first run is the runner's."""
        dispatch, parent = run.tags.get(DISPATCH_TAG), run.tags.get(PARENT_RUN_ID_TAG)
        if dispatch is None or parent is not None or not is_first(instance, run, dispatch):
            return cls(run_id=run.run_id, repeats=_list_repeated_names(run, instance), **arguments)
        return cls(run_id=run.run_id, dispatch=dispatch, **arguments)

    @cached_property
    def delta_log(self) -> DeltaLog:
        """The source's log."""
        return self.deployment.make_delta_log(self.source)

    @cached_property
    def queued_iterations(self) -> tuple[Iteration, ...]:
        """What the runner has queued for the run, for the table that exists now."""
        return self._read_queued_iterations(self.dispatch) if self.dispatch else ()

    def _read_queued_iterations(self, dispatch: str) -> tuple[Iteration, ...]:
        queued = self.deployment.log.list_queued(dispatch)
        return tuple(
            iteration for iteration in queued if iteration.table_id == self.delta_log.get_table_id()
        )

    @cached_property
    def to(self) -> Moment:
        """The moment up to which the run iterates."""
        ends = [iteration.to for iteration in self.queued_iterations]
        return max(ends) if ends else self.delta_log.get_latest_moment()

    def iterate_jobs(self) -> Iterator[Sequence[JobOutcome]]:
        """Yield each scan's outcomes when all its jobs have ended and its deliveries are published.

        If an error ends a scan, its outcomes so far come before the error. Jobs that another run
        writes come last, as BusyJob. Raises Failure if a requested job can be neither claimed nor
        left out.
        """
        if self.dispatch is None:
            yield from self._iterate_by_hand()
        else:
            yield from self._iterate_dispatched(self.dispatch)

    def _iterate_dispatched(self, dispatch: str) -> Iterator[Sequence[JobOutcome]]:
        """Iterate the jobs that wait for the run; if another run takes one, claim the others."""
        waiting = self.queued_iterations
        while waiting:
            attempted, waiting = waiting, ()
            try:
                for iteration in attempted:
                    yield from self._run_iteration(iteration)
            except FenceError as error:
                self.warn(f"The run has lost a job, by an interruption or to another run: {error}")
                # Claimed jobs no longer wait; the same ones would be refused again.
                remaining = self._read_queued_iterations(dispatch)
                waiting = () if remaining == attempted else remaining

    def _iterate_by_hand(self) -> Iterator[Sequence[JobOutcome]]:
        """Iterate in steps until the tenants' jobs reach `to`; yield only their last outcomes."""
        if not self.tenants:
            return
        remaining, refused_fences = self._prepare_jobs(), None
        while True:
            requested = [job for job in self._read_jobs() if job.key in remaining]
            # Read again each time: another run may take a job, or end, meanwhile.
            running = [job for job in requested if job.state is JobState.RUNNING]
            claimable = [job for job in requested if job.state is not JobState.RUNNING]
            due = join_iterations(self._plan_next_jobs(claimable), self.delta_log)
            if not due:
                break
            try:
                yield from self._take_steps(due, remaining)
            except FenceError as error:
                fences = {job.key: job.seq for job in requested}
                if fences == refused_fences:
                    raise Failure(str(error), allow_retries=False) from error
                refused_fences = fences
                make_startable(self.deployment, claimable)
        if requested:
            yield [
                *(InStepJob(job=job) for job in claimable),
                *(BusyJob(job=job) for job in running),
            ]

    def _prepare_jobs(self) -> set[JobKey]:
        """Register, free and flush the requested jobs; returns their keys."""
        table_id = self.delta_log.get_table_id(self.to.version)
        replace_registrations(self.deployment, self.source, table_id, self.tenants, self.consumers)
        jobs = self._read_jobs()
        requested = self._select_requested_keys(jobs)
        make_startable(self.deployment, [job for job in jobs if job.key in requested])
        jobs = self._read_jobs()
        flush_jobs(self.deployment.log, jobs, compute_effective_jobs(self.delta_log, jobs, self.to))
        return requested

    def _read_jobs(self) -> list[Job]:
        table_id = self.delta_log.get_table_id(self.to.version)
        return self.deployment.log.list_jobs(table_id=table_id, tenants=self.tenants)

    def _take_steps(
        self, due: Sequence[DueIteration], remaining: set[JobKey]
    ) -> Iterator[Sequence[JobOutcome]]:
        """Take one step of each; removes finished jobs from `remaining`."""
        for step in due:
            step.flush(self.deployment.log)
            for outcomes in self._run_iteration(step.iteration):
                ended = [outcome for outcome in outcomes if self._is_last(outcome)]
                remaining -= {outcome.claim.key for outcome in ended}
                if ended:
                    yield ended

    def _is_last(self, outcome: RowDelivery | FailedStep) -> bool:
        return isinstance(outcome, FailedStep) or outcome.to.version >= self.to.version

    def _select_requested_keys(self, jobs: Collection[Job]) -> set[JobKey]:
        """The keys of the jobs that the person requested."""
        declared_names = {consumer.name for consumer in self.source.consumers}
        chosen_names = {consumer.name for consumer in self.consumers}
        return {
            job.key
            for job in jobs
            if job.key.job_name in chosen_names
            or job.run_id in self.repeats
            or (self.undeclared and job.key.job_name not in declared_names)
        }

    def _plan_next_jobs(self, jobs: Collection[Job]) -> list[DueIteration]:
        """What is due next: service consumers, whose handlers may be slow, after all others.

        Empty if no job lags.
        """
        services = [job for job in jobs if needs_own_scan(job)]
        others = [job for job in jobs if not needs_own_scan(job)]
        return self._plan_lagging_jobs(others) or self._plan_lagging_jobs(services)

    def _plan_lagging_jobs(self, jobs: Collection[Job]) -> list[DueIteration]:
        """Each tenant's jobs that lag most, due up to `to` or a first step; empty if none lags."""
        due, feed = [], ChangeFeed(log=self.delta_log)
        for _, group in groupby(sorted(jobs, key=_get_tenant), key=_get_tenant):
            tenant_jobs = list(group)
            lowest = min(job.watermark.version for job in tenant_jobs)
            if lowest < self.to.version:
                lagging = [job for job in tenant_jobs if job.watermark.version == lowest]
                iteration = Iteration.from_jobs(lagging, self.to)
                step = bound_iteration(self.deployment, feed, iteration, lagging)
                due.append(
                    DueIteration(iteration=step, jobs=lagging, is_partial=step.to < iteration.to)
                )
        return due

    def _run_iteration(self, iteration: Iteration) -> Iterator[list[RowDelivery | FailedStep]]:
        for part in split_iteration(iteration, self.delta_log):
            outcomes = iterate(
                self.deployment,
                self.source,
                part,
                run_id=self.run_id,
                queued_as=self.dispatch,
                delta_log=self.delta_log,
                writer=self.writer,
            )
            with closing(outcomes):
                yield from _gather_outcomes(outcomes)


def _list_repeated_names(run: DagsterRun, instance: DagsterInstance) -> frozenset[str]:
    """All names of the runs that this one repeats: its parent and others of its dispatch."""
    tags = (DISPATCH_TAG, PARENT_RUN_ID_TAG, ROOT_RUN_ID_TAG)
    names = {run.tags[tag] for tag in tags if tag in run.tags}
    runs = find_runs(instance, names)
    return frozenset(
        names | {name for repeated in runs for name in get_run_names(repeated)} - {run.run_id}
    )


def _gather_outcomes(
    outcomes: Iterator[RowDelivery | FailedStep],
) -> Iterator[list[RowDelivery | FailedStep]]:
    """All outcomes at once; after an error, the outcomes before it, then the error."""
    collected: list[RowDelivery | FailedStep] = []
    error: Exception | None = None
    try:
        for outcome in outcomes:
            collected.append(outcome)  # noqa: PERF402 - an error must not lose earlier ones
    except Exception as raised:  # noqa: BLE001 - raised again below
        error = raised
    if collected:
        yield collected
    if error is not None:
        raise error


def replace_registrations(
    deployment: Deployment,
    source: SourceTable,
    table_id: str,
    tenants: Collection[str],
    consumers: Sequence[DeclaredConsumer],
) -> None:
    """Register the chosen jobs for the current table, and unregister jobs of earlier ones."""
    log = deployment.log
    check_sole(deployment, source, table_id, tenants)
    declared, standing = make_job_specs(source, consumers), log.list_standing()
    specs = {name: standing.get(name, spec) for name, spec in declared.items()}
    rows = make_new_jobs(table_id, tenants, specs)
    early_consumers = [
        consumer
        for consumer in consumers
        if get_consumer_kind(consumer.kind).begins_before_first_commit
    ]
    if auto_names := {consumer.name for consumer in early_consumers if consumer.auto_register}:
        delta_log = deployment.make_delta_log(source)
        moments = find_latest_moments(log, delta_log, table_id)
        rows = set_first_watermarks(
            rows, log, delta_log, {name: moments[name] for name in auto_names & moments.keys()}
        )
    log.register_many(rows)
    for name in specs:
        for job in log.list_jobs(tenants=tenants, name=name):
            if job.key.table_id != table_id:
                log.unregister(job.key.tenant, name, job.key.table_id)


def make_startable(deployment: Deployment, jobs: Collection[Job]) -> None:
    """Make the jobs startable by hand: cancel queued ones, repair ones in error."""
    queued = {job.key: job.seq for job in jobs if job.state is JobState.PENDING}
    # `expected_seqs` spares jobs whose run has started since.
    deployment.log.cancel(queued, expected_seqs=queued)
    deployment.log.repair([job.key for job in jobs if job.state is JobState.ERROR])


def get_run_partitions(context: AssetExecutionContext, source: SourceTable) -> list[str]:
    """The partitions of a run. Raises Failure if it names none."""
    if not (context.has_partition_key or context.has_partition_key_range):
        raise Failure(format_no_tenant_message(source.name), allow_retries=False)
    return list(context.partition_keys)


def raise_failures(outcomes: Sequence[JobOutcome]) -> None:
    """Raise Failure with what failed or was left out, if anything."""
    lines = [
        _format_failure(outcome)
        for outcome in outcomes
        if isinstance(outcome, FailedStep | BusyJob)
    ]
    if lines:
        omitted = len(lines) - MOST_SHOWN
        shown_lines = lines[:MOST_SHOWN]
        shown_lines += [f"And {omitted} more; `iscp job list` shows all."] if omitted > 0 else []
        raise Failure("\n".join(shown_lines), allow_retries=False)


def _format_failure(outcome: FailedStep | BusyJob) -> str:
    if isinstance(outcome, BusyJob):
        return LEFT_OUT.format(code=FenceError.code, job=outcome.job)
    claim = outcome.claim
    return f"[{outcome.code}] {claim.name}, tenant {claim.key.tenant!r}: {outcome.message}"


def _get_tenant(job: Job) -> str:
    return job.key.tenant
