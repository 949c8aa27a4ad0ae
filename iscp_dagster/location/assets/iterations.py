"""What a run does: iterate the jobs it was started for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from dagster import AssetExecutionContext, DagsterInstance, DagsterRun, Failure
from dagster._core.storage.tags import PARENT_RUN_ID_TAG

from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.joblog.iterations import Iteration
from iscp_dagster.location.executor import nameless
from iscp_dagster.location.names import TO_TAG
from iscp_dagster.model.errors import FenceError
from iscp_dagster.model.jobs import Job
from iscp_dagster.model.moment import Moment
from iscp_dagster.model.states import JobState
from iscp_dagster.model.tables import Index, SourceTable
from iscp_dagster.planning.declared import declared, registrations
from iscp_dagster.planning.effective import effective, flush_jobs
from iscp_dagster.planning.steps import bounded
from iscp_dagster.planning.table_problems import check_sole
from iscp_dagster.runs.named import DISPATCH_TAG, is_first
from iscp_dagster.sync.context import Engine
from iscp_dagster.sync.iterate import Delivery, Failed, iterate


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a run was asked for; `dispatch` names an iteration of the runner's, None: by hand."""

    run_id: str
    tenants: Sequence[str]
    dispatch: str | None = None
    to: Moment | None = None
    repeats: frozenset[str] = frozenset()
    """The names that the job log may know a run by which this one executes again."""

    @classmethod
    def of(cls, run: DagsterRun, tenants: Sequence[str], instance: DagsterInstance) -> Order:
        """Read a Dagster run's tags; of runs with one dispatch the first alone is the runner's."""
        order = partial(cls, run_id=run.run_id, tenants=tenants)
        dispatch, parent = run.tags.get(DISPATCH_TAG), run.tags.get(PARENT_RUN_ID_TAG)
        if dispatch is None or parent is not None or not is_first(instance, run, dispatch):
            return order(repeats=frozenset(filter(None, (dispatch, parent))))
        asked = run.tags.get(TO_TAG)
        return order(dispatch=dispatch, to=Moment.parse(asked) if asked else None)


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

    engine: Engine
    source: SourceTable
    order: Order
    chosen: Sequence[Index] = ()
    undeclared: bool = False
    warn: Callable[[str], None]

    def outcomes(self, log: DeltaLog) -> Iterator[Delivery | Failed | InStep]:
        """Each job's outcome; what was delivered is published.

        Raises Failure when another run holds a job that a person asked for.
        """
        to = self.order.to or log.latest()
        for tenant in self.order.tenants:
            if self.order.dispatch is not None:
                yield from self._dispatched(log, tenant, to)
            else:
                yield from self._by_hand(log, tenant, to)

    def _dispatched(self, log: DeltaLog, tenant: str, to: Moment) -> Iterator[Delivery | Failed]:
        """The iteration that the runner planned, whose range is a step already."""
        found = self.engine.log.jobs(
            table_id=log.table_id(), account=tenant, state=JobState.PENDING
        )
        jobs = [job for job in found if job.run_id == self.order.dispatch]
        for iteration in _grouped(jobs, to):
            yield from self._iterate(iteration)

    def _by_hand(
        self, log: DeltaLog, tenant: str, to: Moment
    ) -> Iterator[Delivery | Failed | InStep]:
        """Step after step until the tenant's jobs are at `to`; only last steps are outcomes."""
        table_id, job_log = log.table_id(to.version), self.engine.log
        register(self.engine, self.source, table_id, tenant, self.chosen)
        jobs = job_log.jobs(table_id=table_id, account=tenant)
        names = self._asked_of(jobs)
        free(self.engine, [job for job in jobs if job.key.job_name in names])
        jobs = job_log.jobs(table_id=table_id, account=tenant)
        flush_jobs(job_log, jobs, effective(log, jobs, to))
        while True:
            jobs = job_log.jobs(table_id=table_id, account=tenant)
            asked = [job for job in jobs if job.key.job_name in names]
            first = next(_grouped(asked, to), None)
            if first is None:
                break
            for outcome in self._iterate(bounded(self.engine, log, first, jobs)):
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
            if other or job.run_id in self.order.repeats:
                names.add(job.key.job_name)
        return names

    def _iterate(self, iteration: Iteration) -> Iterator[Delivery | Failed]:
        order = self.order
        found = iterate(
            self.engine, self.source, iteration, run_id=order.run_id, queued_as=order.dispatch
        )
        try:
            with closing(found):
                yield from found
        except FenceError as error:
            if order.dispatch is None:
                raise Failure(str(error), allow_retries=False) from error
            self.warn(f"The iteration was taken by another run: {error}")


def register(
    engine: Engine, source: SourceTable, table_id: str, tenant: str, chosen: Sequence[Index]
) -> None:
    """Have the tenant's jobs of the indexes registered for the table as it is now."""
    log = engine.log
    check_sole(engine, source, table_id, [tenant])
    named, standing = declared(source, chosen), log.standing()
    specs = {name: standing.get(name, spec) for name, spec in named.items()}
    wanted = registrations(table_id, [tenant], specs)
    log.register_many(wanted)
    for row in wanted:
        for job in log.jobs(account=tenant, name=row.name):
            if job.key.table_id != table_id:
                log.unregister(tenant, row.name, job.key.table_id)


def free(engine: Engine, jobs: Collection[Job]) -> None:
    """Make the jobs startable by hand: not queued elsewhere, repaired."""
    engine.log.cancel([job.key for job in jobs if job.state is JobState.PENDING])
    engine.log.repair([job.key for job in jobs if job.state is JobState.ERROR])


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


def _grouped(jobs: Collection[Job], to: Moment) -> Iterator[Iteration]:
    behind = [job for job in jobs if job.watermark.version < to.version]
    for version in sorted({job.watermark.version for job in behind}):
        group = [job for job in behind if job.watermark.version == version]
        yield Iteration(
            table_id=group[0].key.table_id,
            tenants=frozenset(job.key.account for job in group),
            jobs=tuple(job.key for job in group),
            from_=group[0].watermark,
            to=to,
        )
