"""What a run does: iterate the jobs it was started for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dagster import AssetExecutionContext, DagsterInstance, DagsterRun, Failure
from dagster._core.storage.tags import PARENT_RUN_ID_TAG

from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.joblog.iterations import Failed, Iteration
from iscp_dagster.location.executor import nameless
from iscp_dagster.model.declared.tables import Index, SourceTable
from iscp_dagster.model.errors import FenceError
from iscp_dagster.model.jobs import Job
from iscp_dagster.model.moment import Moment
from iscp_dagster.model.states import JobState
from iscp_dagster.planning.declared import declared, new_jobs
from iscp_dagster.planning.effective import effective, flush_jobs
from iscp_dagster.planning.steps import bounded
from iscp_dagster.planning.table_problems import check_sole
from iscp_dagster.runs.named import DISPATCH_TAG, is_first
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.iterate import iterate
from iscp_dagster.sync.publish import Delivery


@dataclass(frozen=True, kw_only=True)
class InStep:
    """A job that a person asked for and that has nothing to catch up with: its rows stay."""

    job: Job

    @property
    def data_version(self) -> int:
        """The version that its rows were delivered as."""
        return min(self.job.status.to or self.job.watermark, self.job.watermark).version


@dataclass(frozen=True, kw_only=True)
class Iterations:
    """The iterations of one run over `source`.

    A run that the runner dispatched takes the jobs that wait for it. One that a person started
    registers, repairs and takes over whatever is not being written at this moment: of the indexes
    `chosen`, of what the run had that it executes again, and with `undeclared` of what no index
    declares.
    """

    deployment: Deployment
    source: SourceTable
    run_id: str
    tenants: Sequence[str]
    dispatch: str | None = None
    """Names the runner's iteration that the run is for; None: a person started it."""
    repeats: frozenset[str] = frozenset()
    """The names that the ISCP log may know a run by which this one executes again."""
    chosen: Sequence[Index] = ()
    undeclared: bool = False
    warn: Callable[[str], None]

    @classmethod
    def of(cls, run: DagsterRun, instance: DagsterInstance, **given: Any) -> Iterations:
        """Those of a Dagster run; of runs with one dispatch the first alone is the runner's."""
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
        """What the runner has queued for the run, of the table that there is now."""
        found = self.deployment.log.queued(self.dispatch) if self.dispatch else ()
        return tuple(each for each in found if each.table_id == self.delta_log.table_id())

    @cached_property
    def to(self) -> Moment:
        """Up to where the run goes."""
        return max(each.to for each in self.planned) if self.planned else self.delta_log.latest()

    def outcomes(self) -> Iterator[Delivery | Failed | InStep]:
        """Each job's outcome; what was delivered is published.

        Raises Failure when another run holds a job that a person asked for.
        """
        for iteration in self.planned:
            yield from self._iterate(iteration)
        for tenant in self.tenants if self.dispatch is None else ():
            yield from self._by_hand(tenant)

    def _by_hand(self, tenant: str) -> Iterator[Delivery | Failed | InStep]:
        """Step after step until the tenant's jobs are at `to`; only last steps are outcomes."""
        delta_log, to, log = self.delta_log, self.to, self.deployment.log
        table_id = delta_log.table_id(to.version)
        register(self.deployment, self.source, table_id, tenant, self.chosen)
        jobs = log.jobs(table_id=table_id, account=tenant)
        names = self._asked_of(jobs)
        free(self.deployment, [job for job in jobs if job.key.job_name in names])
        jobs = log.jobs(table_id=table_id, account=tenant)
        flush_jobs(log, jobs, effective(delta_log, jobs, to))
        while True:
            jobs = log.jobs(table_id=table_id, account=tenant)
            asked = [job for job in jobs if job.key.job_name in names]
            first = _furthest_behind(asked, to)
            if first is None:
                break
            for outcome in self._iterate(bounded(self.deployment, delta_log, first, jobs)):
                if isinstance(outcome, Delivery) and outcome.to.version < to.version:
                    continue
                names.discard(outcome.claim.key.job_name)
                yield outcome
        yield from (InStep(job=job) for job in asked)

    def _asked_of(self, jobs: Collection[Job]) -> set[str]:
        """The names of those of a tenant's jobs that a person asks for."""
        declared_ = {index.name for index in self.source.indexes}
        names = {index.name for index in self.chosen}
        for job in jobs:
            other = self.undeclared and job.key.job_name not in declared_
            if other or job.run_id in self.repeats:
                names.add(job.key.job_name)
        return names

    def _iterate(self, iteration: Iteration) -> Iterator[Delivery | Failed]:
        found = iterate(
            self.deployment, self.source, iteration, run_id=self.run_id, queued_as=self.dispatch
        )
        try:
            with closing(found):
                yield from found
        except FenceError as error:
            if self.dispatch is None:
                raise Failure(str(error), allow_retries=False) from error
            self.warn(f"The iteration was taken by another run: {error}")


def register(
    deployment: Deployment, source: SourceTable, table_id: str, tenant: str, chosen: Sequence[Index]
) -> None:
    """Have the tenant's jobs of the indexes registered for the table as it is now."""
    log = deployment.log
    check_sole(deployment, source, table_id, [tenant])
    named, standing = declared(source, chosen), log.standing()
    specs = {name: standing.get(name, spec) for name, spec in named.items()}
    wanted = new_jobs(table_id, [tenant], specs)
    log.register_many(wanted)
    for row in wanted:
        for job in log.jobs(account=tenant, name=row.name):
            if job.key.table_id != table_id:
                log.unregister(tenant, row.name, job.key.table_id)


def free(deployment: Deployment, jobs: Collection[Job]) -> None:
    """Make the jobs startable by hand: not queued elsewhere, repaired."""
    queued = {job.key: job.seq for job in jobs if job.state is JobState.PENDING}
    # Not one whose run has begun since.
    deployment.log.cancel(queued, seen=queued)
    deployment.log.repair([job.key for job in jobs if job.state is JobState.ERROR])


def tenants_of(context: AssetExecutionContext, source: SourceTable) -> list[str]:
    """The tenants that a run is for. Raises Failure where it names none."""
    if not (context.has_partition_key or context.has_partition_key_range):
        raise Failure(nameless(source.name), allow_retries=False)
    return list(context.partition_keys)


def report(failures: Sequence[Failed]) -> None:
    """Fail the run by what failed, if anything did."""
    if failures:
        lines = [f"[{failed.code}] {failed.claim.name}: {failed.message}" for failed in failures]
        raise Failure("\n".join(lines), allow_retries=False)


def _furthest_behind(jobs: Collection[Job], to: Moment) -> Iteration | None:
    """That of the jobs which lag most; None: all are at `to`."""
    lowest = min((job.watermark.version for job in jobs), default=to.version)
    if lowest >= to.version:
        return None
    return Iteration.of([job for job in jobs if job.watermark.version == lowest], to)
