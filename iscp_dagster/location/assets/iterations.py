"""What a run does: iterate the jobs it was started for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

from dagster import AssetExecutionContext, DagsterInstance, DagsterRun, Failure

from iscp_dagster.delta.feed import Feed
from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.joblog.iterations import Failed, Iteration, iterates_alone
from iscp_dagster.location.executor import nameless
from iscp_dagster.location.internals import PARENT_RUN_ID_TAG, ROOT_RUN_ID_TAG
from iscp_dagster.model.consumers.kinds import consumer_kind
from iscp_dagster.model.declared.tables import Consuming, SourceTable
from iscp_dagster.model.errors import FenceError
from iscp_dagster.model.jobs import Job, JobKey
from iscp_dagster.model.moment import Moment
from iscp_dagster.model.states import JobState
from iscp_dagster.planning.declared import declared, new_jobs
from iscp_dagster.planning.effective import effective, flush_jobs
from iscp_dagster.planning.joining import Due, bounded, joined, parts
from iscp_dagster.planning.newcomers import begun_before, reached
from iscp_dagster.planning.table_problems import check_sole
from iscp_dagster.runs.named import DISPATCH_TAG, is_first, names_of, runs_named
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.interpreter import iterate
from iscp_dagster.sync.iteration.outcomes import Delivery
from iscp_dagster.sync.writing.writer import IndexWriter

MOST_SHOWN = 20
"""Failures that a run's page names."""
LEFT_OUT = (
    "[{code}] {job.name}, tenant {job.key.tenant!r}: left out, since run {job.run_id} is writing "
    "it, or has died less than a minute ago. Wait until that run has ended, or cancel it, then "
    "execute this run again."
)


@dataclass(frozen=True, kw_only=True)
class InStep:
    """A job that a person asked for but that has nothing to catch up with: its rows stay."""

    job: Job

    @property
    def tenant(self) -> str:
        return self.job.key.tenant

    @property
    def job_name(self) -> str:
        return self.job.key.job_name

    @property
    def data_version(self) -> int:
        """The data version that its rows were delivered with."""
        return min(self.job.status.to or self.job.watermark, self.job.watermark).version


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A job that a person asked for but that another run is writing: it was left out."""

    job: Job


Outcome = Delivery | Failed | InStep | LeftOut


@dataclass(frozen=True, kw_only=True)
class Iterations:
    """The iterations of one run over `source`.

    A run that the runner dispatched takes the jobs that wait for it. A run that a person started
    registers, repairs and takes over every job that is not being written right now: the jobs of
    the `chosen` indexes and triggers, those of the run that it executes again, and with
    `undeclared` those that nothing declares.
    """

    deployment: Deployment
    source: SourceTable
    run_id: str
    tenants: Sequence[str]
    dispatch: str | None = None
    """The name of the runner's iteration that the run is for; None if a person started it."""
    repeats: frozenset[str] = frozenset()
    """The names by which the ISCP log may know the run that this one executes again."""
    chosen: Sequence[Consuming] = ()
    undeclared: bool = False
    warn: Callable[[str], None]
    writer: IndexWriter | None = None
    """The IO manager's; None: one of its own."""

    @classmethod
    def of(cls, run: DagsterRun, instance: DagsterInstance, **given: Any) -> Iterations:
        """The iterations of a Dagster run; only the first run of a dispatch is the runner's."""
        dispatch, parent = run.tags.get(DISPATCH_TAG), run.tags.get(PARENT_RUN_ID_TAG)
        if dispatch is None or parent is not None or not is_first(instance, run, dispatch):
            return cls(run_id=run.run_id, repeats=_before(run, instance), **given)
        return cls(run_id=run.run_id, dispatch=dispatch, **given)

    @cached_property
    def delta_log(self) -> DeltaLog:
        """The source's log."""
        return self.deployment.delta_log(self.source)

    @cached_property
    def planned(self) -> tuple[Iteration, ...]:
        """What the runner has queued for the run, for the table that exists now."""
        return self._queued(self.dispatch) if self.dispatch else ()

    def _queued(self, dispatch: str) -> tuple[Iteration, ...]:
        found = self.deployment.log.queued(dispatch)
        return tuple(each for each in found if each.table_id == self.delta_log.table_id())

    @cached_property
    def to(self) -> Moment:
        """The moment that the run goes up to."""
        return max(each.to for each in self.planned) if self.planned else self.delta_log.latest()

    def outcomes(self) -> Iterator[Sequence[Outcome]]:
        """Yield each scan's outcomes once no claim of it is left; a Delivery has been published.

        If an error ends a scan, its outcomes so far come before the error. Jobs that another run
        writes come last, as LeftOut. Raises Failure when a job that a person asked for can be
        neither claimed nor left out.
        """
        if self.dispatch is None:
            yield from self._by_hand()
        else:
            yield from self._dispatched(self.dispatch)

    def _dispatched(self, dispatch: str) -> Iterator[Sequence[Outcome]]:
        """Iterate what waits for the run; if another run takes a job, still claim the others."""
        waiting = self.planned
        while waiting:
            found, waiting = waiting, ()
            try:
                for iteration in found:
                    yield from self._iterate(iteration)
            except FenceError as error:
                self.warn(f"The run has lost a job, by an interruption or to another run: {error}")
                # Claimed jobs no longer wait; if the same ones wait, they would be refused again.
                left = self._queued(dispatch)
                waiting = () if left == found else left

    def _by_hand(self) -> Iterator[Sequence[Outcome]]:
        """Iterate in steps until the tenants' jobs reach `to`; yield only their last outcomes."""
        if not self.tenants:
            return
        left, refused = self._begun_by_hand(), None
        while True:
            asked = [job for job in self._jobs() if job.key in left]
            # Looked up again each time: another run may take a job, or end, meanwhile.
            held = [job for job in asked if job.state is JobState.RUNNING]
            ours = [job for job in asked if job.state is not JobState.RUNNING]
            due = joined(self._next_by_hand(ours), self.delta_log)
            if not due:
                break
            try:
                yield from self._steps(due, left)
            except FenceError as error:
                fences = {job.key: job.seq for job in asked}
                if fences == refused:
                    raise Failure(str(error), allow_retries=False) from error
                refused = fences
                free(self.deployment, ours)
        if asked:
            yield [*(InStep(job=job) for job in ours), *(LeftOut(job=job) for job in held)]

    def _begun_by_hand(self) -> set[JobKey]:
        """Register, free and flush the jobs that the person asked for; returns them."""
        table_id = self.delta_log.table_id(self.to.version)
        register(self.deployment, self.source, table_id, self.tenants, self.chosen)
        jobs = self._jobs()
        asked = self._asked_of(jobs)
        free(self.deployment, [job for job in jobs if job.key in asked])
        jobs = self._jobs()
        flush_jobs(self.deployment.log, jobs, effective(self.delta_log, jobs, self.to))
        return asked

    def _jobs(self) -> list[Job]:
        table_id = self.delta_log.table_id(self.to.version)
        return self.deployment.log.jobs(table_id=table_id, tenants=self.tenants)

    def _steps(self, due: Sequence[Due], left: set[JobKey]) -> Iterator[Sequence[Outcome]]:
        """Take one step of each; jobs that are finished leave `left`."""
        for each in due:
            each.flush(self.deployment.log)
            for outcomes in self._iterate(each.iteration):
                last = [one for one in outcomes if self._is_last(one)]
                left -= {one.claim.key for one in last}
                if last:
                    yield last

    def _is_last(self, outcome: Delivery | Failed) -> bool:
        return isinstance(outcome, Failed) or outcome.to.version >= self.to.version

    def _asked_of(self, jobs: Collection[Job]) -> set[JobKey]:
        """The jobs of the tenants that the person asked for."""
        declared_ = {each.name for each in self.source.consumers}
        chosen = {each.name for each in self.chosen}
        return {
            job.key
            for job in jobs
            if job.key.job_name in chosen
            or job.run_id in self.repeats
            or (self.undeclared and job.key.job_name not in declared_)
        }

    def _next_by_hand(self, jobs: Collection[Job]) -> list[Due]:
        """What is due next: service consumers, whose handlers may be slow, once all others are not.

        Empty if no job lags.
        """
        services = [job for job in jobs if iterates_alone(job)]
        others = [job for job in jobs if not iterates_alone(job)]
        return self._furthest_behind(others) or self._furthest_behind(services)

    def _furthest_behind(self, jobs: Collection[Job]) -> list[Due]:
        """Each tenant's jobs that lag most, due up to `to` or a first step; empty if none lags."""
        found, feed = [], Feed(log=self.delta_log)
        for _, group in groupby(sorted(jobs, key=_tenant), key=_tenant):
            members = list(group)
            lowest = min(job.watermark.version for job in members)
            if lowest < self.to.version:
                last = [job for job in members if job.watermark.version == lowest]
                whole = Iteration.of(last, self.to)
                step = bounded(self.deployment, feed, whole, last)
                found.append(Due(iteration=step, jobs=last, cut=step.to < whole.to))
        return found

    def _iterate(self, iteration: Iteration) -> Iterator[list[Delivery | Failed]]:
        for some in parts(iteration, self.delta_log):
            found = iterate(
                self.deployment,
                self.source,
                some,
                run_id=self.run_id,
                queued_as=self.dispatch,
                delta_log=self.delta_log,
                writer=self.writer,
            )
            with closing(found):
                yield from _gathered(found)


def _before(run: DagsterRun, instance: DagsterInstance) -> frozenset[str]:
    """All names of the runs that this one repeats: its parent, and others of its dispatch."""
    tags = (DISPATCH_TAG, PARENT_RUN_ID_TAG, ROOT_RUN_ID_TAG)
    known = {run.tags[tag] for tag in tags if tag in run.tags}
    runs = runs_named(instance, known)
    return frozenset(known | {name for each in runs for name in names_of(each)} - {run.run_id})


def _gathered(found: Iterator[Delivery | Failed]) -> Iterator[list[Delivery | Failed]]:
    """All outcomes at once; if an error ends them, those before it, then the error."""
    done: list[Delivery | Failed] = []
    error: Exception | None = None
    try:
        for outcome in found:
            done.append(outcome)  # noqa: PERF402 - an error must not lose those before it
    except Exception as raised:  # noqa: BLE001 - raised again below
        error = raised
    if done:
        yield done
    if error is not None:
        raise error


def register(
    deployment: Deployment,
    source: SourceTable,
    table_id: str,
    tenants: Collection[str],
    chosen: Sequence[Consuming],
) -> None:
    """Register the chosen jobs for the current table, and unregister those of earlier ones."""
    log = deployment.log
    check_sole(deployment, source, table_id, tenants)
    named, standing = declared(source, chosen), log.standing()
    specs = {name: standing.get(name, spec) for name, spec in named.items()}
    rows = new_jobs(table_id, tenants, specs)
    early = [each for each in chosen if consumer_kind(each.kind).begins_before_first_commit]
    if auto := {each.name for each in early if each.auto_register}:
        delta_log = deployment.delta_log(source)
        after = reached(log, delta_log, table_id)
        rows = begun_before(
            rows, log, delta_log, {name: after[name] for name in auto & after.keys()}
        )
    log.register_many(rows)
    for name in specs:
        for job in log.jobs(tenants=tenants, name=name):
            if job.key.table_id != table_id:
                log.unregister(job.key.tenant, name, job.key.table_id)


def free(deployment: Deployment, jobs: Collection[Job]) -> None:
    """Make the jobs startable by hand: cancel those that are queued, repair those in error."""
    queued = {job.key: job.seq for job in jobs if job.state is JobState.PENDING}
    # `seen` spares jobs whose run has begun since.
    deployment.log.cancel(queued, seen=queued)
    deployment.log.repair([job.key for job in jobs if job.state is JobState.ERROR])


def tenants_of(context: AssetExecutionContext, source: SourceTable) -> list[str]:
    """The tenants that a run is for. Raises Failure if it names none."""
    if not (context.has_partition_key or context.has_partition_key_range):
        raise Failure(nameless(source.name), allow_retries=False)
    return list(context.partition_keys)


def report(outcomes: Sequence[Outcome]) -> None:
    """Raise Failure that names what failed or was left out, if anything was."""
    lines = [_line(each) for each in outcomes if isinstance(each, Failed | LeftOut)]
    if lines:
        more = len(lines) - MOST_SHOWN
        shown = lines[:MOST_SHOWN]
        shown += [f"And {more} more; `iscp job list` shows all."] if more > 0 else []
        raise Failure("\n".join(shown), allow_retries=False)


def _line(outcome: Failed | LeftOut) -> str:
    if isinstance(outcome, LeftOut):
        return LEFT_OUT.format(code=FenceError.code, job=outcome.job)
    claim = outcome.claim
    return f"[{outcome.code}] {claim.name}, tenant {claim.key.tenant!r}: {outcome.message}"


def _tenant(job: Job) -> str:
    return job.key.tenant
