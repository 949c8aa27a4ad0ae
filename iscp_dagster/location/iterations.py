"""What a run does: iterate the jobs it was started for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from dagster import Failure

from iscp_dagster.core.errors import FenceError, IscpError
from iscp_dagster.core.iterations import Iteration
from iscp_dagster.core.jobs import Job
from iscp_dagster.core.moment import Moment
from iscp_dagster.core.states import JobState
from iscp_dagster.core.tables import Index, SourceTable
from iscp_dagster.engine.context import Engine
from iscp_dagster.engine.effective import effective, flush_jobs
from iscp_dagster.engine.iterate import Delivery, Failed, iterate, publish
from iscp_dagster.engine.jobs import declared, registrations
from iscp_dagster.engine.steps import bounded
from iscp_dagster.lake.deltalog import DeltaLog
from iscp_dagster.location.names import DISPATCH_TAG, TO_TAG


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a run was asked for; `dispatch` names an iteration of the runner's, None: by hand."""

    run_id: str
    tenants: Sequence[str]
    dispatch: str | None = None
    to: Moment | None = None

    @classmethod
    def of(cls, run: Any, tenants: Sequence[str]) -> Order:
        """Read a Dagster run's tags."""
        asked = run.tags.get(TO_TAG)
        to = Moment.parse(asked) if asked else None
        dispatch = run.tags.get(DISPATCH_TAG)
        return cls(run_id=run.run_id, tenants=tenants, dispatch=dispatch, to=to)


@dataclass(frozen=True, kw_only=True)
class Iterations:
    """The iterations of one run over `source`; `chosen` are the indexes that a person picked.

    A run that the runner dispatched takes the jobs that wait for it. One that a person started
    registers, repairs and takes over whatever is not being written at this moment.
    """

    engine: Engine
    source: SourceTable
    order: Order
    chosen: Sequence[Index] = ()
    warn: Callable[[str], None]

    def outcomes(self, log: DeltaLog) -> Iterator[Delivery | Failed]:
        """Each job's outcome, published where it is a Delivery.

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

    def _by_hand(self, log: DeltaLog, tenant: str, to: Moment) -> Iterator[Delivery | Failed]:
        """Step after step until the tenant's jobs are at `to`; only last steps are outcomes."""
        table_id, job_log = log.table_id(to.version), self.engine.log
        take_over(self.engine, self.source, table_id, tenant, self.chosen)
        jobs = job_log.jobs(table_id=table_id, account=tenant)
        flush_jobs(job_log, jobs, effective(log, jobs, to))
        names = {index.name for index in self.chosen}
        while True:
            jobs = job_log.jobs(table_id=table_id, account=tenant)
            first = next(_grouped([job for job in jobs if job.key.job_name in names], to), None)
            if first is None:
                return
            for outcome in self._iterate(bounded(self.engine, log, first, jobs)):
                if isinstance(outcome, Delivery) and outcome.to.version < to.version:
                    continue
                names.discard(outcome.claim.key.job_name)
                yield outcome

    def _iterate(self, iteration: Iteration) -> Iterator[Delivery | Failed]:
        order = self.order
        found = iterate(
            self.engine, self.source, iteration, run_id=order.run_id, queued_as=order.dispatch
        )
        try:
            with closing(found):
                for outcome in found:
                    yield self._served(outcome)
        except FenceError as error:
            if order.dispatch is None:
                raise Failure(str(error), allow_retries=False) from error
            self.warn(f"The iteration was taken by another run: {error}")

    def _served(self, outcome: Delivery | Failed) -> Delivery | Failed:
        """Publish it; one that cannot be is told of as failed, and stops no sibling."""
        if isinstance(outcome, Failed):
            return outcome
        try:
            publish(self.engine, outcome)
        except IscpError as error:
            return Failed(claim=outcome.claim, code=error.code, message=str(error))
        return outcome


def take_over(
    engine: Engine, source: SourceTable, table_id: str, tenant: str, chosen: Sequence[Index]
) -> None:
    """Make the tenant's jobs startable by hand: registered, not queued elsewhere, repaired."""
    log, names = engine.log, {index.name for index in chosen}
    named, standing = declared(source, chosen), log.standing()
    specs = {name: standing.get(name, spec) for name, spec in named.items()}
    wanted = registrations(table_id, [tenant], specs)
    log.register_many(wanted)
    for row in wanted:
        for job in log.jobs(account=tenant, name=row.name):
            if job.key.table_id != table_id:
                log.unregister(tenant, row.name, job.key.table_id)
    jobs = log.jobs(table_id=table_id, account=tenant)
    mine = [job for job in jobs if job.key.job_name in names]
    log.cancel([job.key for job in mine if job.state is JobState.PENDING])
    log.repair([job.key for job in mine if job.state is JobState.ERROR])


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
