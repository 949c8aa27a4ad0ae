"""What a run does: iterate the jobs it was started for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

from dagster import AssetExecutionContext, DagsterInstance, DagsterRun, Failure
from dagster._core.storage.tags import PARENT_RUN_ID_TAG

from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.joblog.iterations import Failed, Iteration
from iscp_dagster.location.executor import nameless
from iscp_dagster.model.declared.tables import Index, SourceTable
from iscp_dagster.model.errors import FenceError
from iscp_dagster.model.jobs import Job, JobKey
from iscp_dagster.model.moment import Moment
from iscp_dagster.model.states import JobState
from iscp_dagster.planning.declared import declared, new_jobs
from iscp_dagster.planning.effective import effective, flush_jobs
from iscp_dagster.planning.joining import Due, bounded, joined, parts
from iscp_dagster.planning.table_problems import check_sole
from iscp_dagster.runs.named import DISPATCH_TAG, is_first
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.iterate import iterate
from iscp_dagster.sync.publish import Delivery

MOST_SHOWN = 20
"""Failures that a run's page names."""


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
class Iterations:
    """The iterations of one run over `source`.

    A run that the runner dispatched takes the jobs that wait for it. A run that a person started
    registers, repairs and takes over every job that is not being written right now: the jobs of
    the `chosen` indexes, those of the run that it executes again, and with `undeclared` those that
    no index declares.
    """

    deployment: Deployment
    source: SourceTable
    run_id: str
    tenants: Sequence[str]
    dispatch: str | None = None
    """The name of the runner's iteration that the run is for; None if a person started it."""
    repeats: frozenset[str] = frozenset()
    """The names by which the ISCP log may know the run that this one executes again."""
    chosen: Sequence[Index] = ()
    undeclared: bool = False
    warn: Callable[[str], None]

    @classmethod
    def of(cls, run: DagsterRun, instance: DagsterInstance, **given: Any) -> Iterations:
        """The iterations of a Dagster run; only the first run of a dispatch is the runner's."""
        dispatch, parent = run.tags.get(DISPATCH_TAG), run.tags.get(PARENT_RUN_ID_TAG)
        if dispatch is None or parent is not None or not is_first(instance, run, dispatch):
            repeats = frozenset(filter(None, (dispatch, parent)))
            return cls(run_id=run.run_id, repeats=repeats, **given)
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

    def outcomes(self) -> Iterator[Delivery | Failed | InStep]:
        """Yield each job's outcome; a Delivery has been published.

        Raises Failure when another run holds a job that a person asked for.
        """
        if self.dispatch is None:
            yield from self._by_hand()
        else:
            yield from self._dispatched(self.dispatch)

    def _dispatched(self, dispatch: str) -> Iterator[Delivery | Failed]:
        """Iterate what waits for the run; if another run takes a job, still claim the others."""
        waiting = self.planned
        while waiting:
            found, waiting = waiting, ()
            try:
                for iteration in found:
                    yield from self._iterate(iteration)
            except FenceError as error:
                self.warn(f"The iteration was taken by another run: {error}")
                # Claimed jobs no longer wait; if the same ones wait, they would be refused again.
                left = self._queued(dispatch)
                waiting = () if left == found else left

    def _by_hand(self) -> Iterator[Delivery | Failed | InStep]:
        """Iterate in steps until the tenants' jobs reach `to`; yield only their last outcomes."""
        if not self.tenants:
            return
        delta_log, to, log = self.delta_log, self.to, self.deployment.log
        table_id = delta_log.table_id(to.version)
        register(self.deployment, self.source, table_id, self.tenants, self.chosen)
        jobs = log.jobs(table_id=table_id, tenants=self.tenants)
        left = self._asked_of(jobs)
        free(self.deployment, [job for job in jobs if job.key in left])
        jobs = log.jobs(table_id=table_id, tenants=self.tenants)
        flush_jobs(log, jobs, effective(delta_log, jobs, to))
        while True:
            jobs = log.jobs(table_id=table_id, tenants=self.tenants)
            asked = [job for job in jobs if job.key in left]
            due = self._furthest_behind(asked)
            if not due:
                break
            for each in joined(due, delta_log):
                each.flush(log)
                for outcome in self._claimed(each.iteration):
                    if isinstance(outcome, Delivery) and outcome.to.version < to.version:
                        continue
                    left.discard(outcome.claim.key)
                    yield outcome
        yield from (InStep(job=job) for job in asked)

    def _asked_of(self, jobs: Collection[Job]) -> set[JobKey]:
        """The jobs of the tenants that the person asked for."""
        declared_ = {index.name for index in self.source.indexes}
        chosen = {index.name for index in self.chosen}
        return {
            job.key
            for job in jobs
            if job.key.job_name in chosen
            or job.run_id in self.repeats
            or (self.undeclared and job.key.job_name not in declared_)
        }

    def _furthest_behind(self, jobs: Collection[Job]) -> list[Due]:
        """Each tenant's jobs that lag most, due to `to` or to a first step; empty if none lags."""
        found = []
        for _, group in groupby(sorted(jobs, key=_tenant), key=_tenant):
            members = list(group)
            lowest = min(job.watermark.version for job in members)
            if lowest < self.to.version:
                last = [job for job in members if job.watermark.version == lowest]
                whole = Iteration.of(last, self.to)
                step = bounded(self.deployment, self.delta_log, whole, last)
                found.append(Due(iteration=step, jobs=last, cut=step.to < whole.to))
        return found

    def _claimed(self, iteration: Iteration) -> Iterator[Delivery | Failed]:
        try:
            yield from self._iterate(iteration)
        except FenceError as error:
            raise Failure(str(error), allow_retries=False) from error

    def _iterate(self, iteration: Iteration) -> Iterator[Delivery | Failed]:
        for some in parts(iteration, self.delta_log):
            found = iterate(
                self.deployment,
                self.source,
                some,
                run_id=self.run_id,
                queued_as=self.dispatch,
                delta_log=self.delta_log,
            )
            with closing(found):
                yield from found


def register(
    deployment: Deployment,
    source: SourceTable,
    table_id: str,
    tenants: Collection[str],
    chosen: Sequence[Index],
) -> None:
    """Register the indexes' jobs for the current table, and unregister those of earlier ones."""
    log = deployment.log
    check_sole(deployment, source, table_id, tenants)
    named, standing = declared(source, chosen), log.standing()
    specs = {name: standing.get(name, spec) for name, spec in named.items()}
    log.register_many(new_jobs(table_id, tenants, specs))
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


def report(failures: Sequence[Failed]) -> None:
    """Raise Failure that names what failed, if anything did."""
    if failures:
        shown = failures[:MOST_SHOWN]
        lines = [_line(failed) for failed in shown]
        more = len(failures) - len(shown)
        lines += [f"And {more} more; `iscp job list` shows all."] if more else []
        raise Failure("\n".join(lines), allow_retries=False)


def _line(failed: Failed) -> str:
    claim = failed.claim
    return f"[{failed.code}] {claim.name}, tenant {claim.key.tenant!r}: {failed.message}"


def _tenant(job: Job) -> str:
    return job.key.tenant
