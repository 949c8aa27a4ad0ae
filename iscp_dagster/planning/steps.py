"""A long backlog in steps; `sync.bounds` has how long one may be."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from iscp_dagster.delta.feed import feed_state, first_drop
from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.joblog.iterations import Iteration
from iscp_dagster.model.jobs import Job
from iscp_dagster.sync.deployment import Deployment


def bounded(
    deployment: Deployment, delta_log: DeltaLog, iteration: Iteration, jobs: Collection[Job]
) -> Iteration:
    """The iteration, or its first step where the change feed lets it be read in steps.

    A commit that drops columns begins one.

    `jobs` are the iteration's, and may be more.
    """
    if iteration.range.initial:
        return iteration
    chosen = [job for job in jobs if job.key in iteration.jobs]
    after, upto = iteration.from_.version, iteration.to.version
    written = delta_log.written(after, upto, iteration.tenants)
    last = deployment.bounds.of(chosen).last(after, upto, written or ())
    # One that begins the range does no harm.
    dropped = first_drop(delta_log, after + 1, last)
    if dropped is not None:
        # What was written before has values in those columns, which a snapshot would not have.
        last = dropped - 1
    if last >= upto or not feed_state(delta_log, after, last, iteration.tenants).available:
        return iteration
    return replace(iteration, to=delta_log.moment(last))
