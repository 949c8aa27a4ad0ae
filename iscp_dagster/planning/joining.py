"""Cuts iterations of a long backlog into steps, and joins iterations of many tenants.

Triggers plan tenant by tenant, up to the latest commit; `sync.bounds` limits a step. Iterations are
joined if they have the same priority and job names, and can share a start and an end version: one
scan then serves all tenants that a commit changed. A step may end earlier than its bounds allow, to
end with others.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from operator import attrgetter

from iscp_dagster.delta.feed import ChangeFeed, get_feed_state
from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.joblog.iterations import Iteration
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.jobs import Job
from iscp_dagster.model.moment import Moment
from iscp_dagster.model.portions import split_into_portions
from iscp_dagster.planning.effective import flush_jobs
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.reading.reader import SMALL_BYTES

NEVER = datetime.min.replace(tzinfo=timezone.utc)
MOST_TENANTS = 1_000
"""Tenants read in one scan. Each has a partition in ClickHouse; a block with a thousand takes a
second, one with ten thousand fifteen seconds."""
MOST_TENANTS_IN_BUCKETS = 20_000
"""The same where tenants share partitions: each scan then reads the files of all tenants."""
MOST_BYTES = SMALL_BYTES
"""Bytes, as in the lake, of the tenants read in one scan; a larger tenant is read alone."""
SCANS_PER_RUN = 8
"""How many such scans a run may do in sequence: Dagster shows them when the run ends."""


@dataclass(frozen=True, kw_only=True)
class DueIteration:
    """An iteration that may run, with its jobs as the ISCP log has them."""

    iteration: Iteration
    jobs: Sequence[Job]
    is_partial: bool = False
    """Whether it is a step of a longer backlog."""

    @property
    def earliest_end(self) -> int:
        """The earliest version that it may end at: a step takes at least a third of its range."""
        after, last = self.iteration.from_.version, self.iteration.to.version
        return last - (last - after) * 2 // 3 if self.is_partial else last

    @property
    def earliest_start(self) -> int:
        """The earliest version to read from.

        Nothing changed for its tenants between it and the iteration's start.
        """
        return max(job.watermark.version for job in self.jobs)

    @property
    def oldest_start_at(self) -> datetime:
        """When the longest-waiting job last began; `NEVER` if one is new."""
        return min(job.status.start_at or NEVER for job in self.jobs)

    def flush(self, log: SqlLog) -> None:
        """Flush its jobs' watermarks up to its start."""
        start = self.iteration.from_
        flush_jobs(log, self.jobs, [replace(job, watermark=start) for job in self.jobs])

    def enqueue(self, log: SqlLog, name: str) -> Iteration | None:
        """Queue it as `name`, without the jobs that others took since; None if they took all."""
        self.flush(log)
        errors = log.enqueue(self.iteration, name)
        remaining = [key for key in self.iteration.jobs if key not in errors]
        return self.iteration.select_jobs(remaining) if remaining else None


def bound_iteration(
    deployment: Deployment, feed: ChangeFeed, iteration: Iteration, jobs: Collection[Job]
) -> Iteration:
    """The iteration, or its first step if the change feed allows reading it in steps.

    A commit that drops columns begins a step.

    `jobs` include the iteration's, and may include others.
    """
    if iteration.range.initial:
        return iteration
    delta_log = feed.log
    iteration_jobs = [job for job in jobs if job.key in iteration.jobs]
    after, upto = iteration.from_.version, iteration.to.version
    volumes = delta_log.list_written_volumes(after, upto, iteration.tenants)
    last = deployment.bounds.tighten_for_jobs(iteration_jobs).find_last_version(
        after, upto, volumes or ()
    )
    # A drop at the start of the range does no harm.
    dropped = feed.find_first_drop(after + 1, last)
    if dropped is not None:
        # Rows written before the drop have values in those columns; a snapshot would not.
        last = dropped - 1
    if last >= upto or not feed.get_state(after, last, iteration.tenants).available:
        return iteration
    return replace(iteration, to=delta_log.get_moment(last))


def join_iterations(due: Sequence[DueIteration], delta_log: DeltaLog) -> list[DueIteration]:
    """Join into as few iterations as possible, each within one run's tenants and bytes.

    The longest-waiting come first. Iterations of one tenant are not joined: its trigger has kept
    them apart.
    """
    groups: dict[tuple[int, frozenset[str]], list[DueIteration]] = {}
    for candidate in due:
        names = frozenset(key.job_name for key in candidate.iteration.jobs)
        groups.setdefault((candidate.iteration.priority, names), []).append(candidate)
    return [
        _merge_due(portion, start)
        for members in groups.values()
        for same_end in _group_by_end(members)
        for start, same_start in _group_by_start(same_end)
        for portion in _split_by_size(same_start, start, delta_log)
    ]


def split_iteration(iteration: Iteration, delta_log: DeltaLog) -> list[Iteration]:
    """The parts of the iteration that are each read in one scan, in order."""
    by_tenant = iteration.group_by_tenant()
    if len(by_tenant) == 1:
        return [iteration]
    sizes = _read_sizes(delta_log, iteration.from_, iteration.to, iteration.tenants)
    ordered = sorted(by_tenant)
    return [
        iteration.select_jobs(key for tenant in tenants for key in by_tenant[tenant])
        for tenants in split_into_portions(
            ordered,
            most=_get_most_tenants(delta_log),
            size=lambda tenant: sizes.get(tenant, 0),
            most_size=MOST_BYTES,
        )
    ]


def _group_by_end(members: Sequence[DueIteration]) -> list[list[DueIteration]]:
    """The members grouped by as few ends as possible, each at its latest possible end."""
    ends = sorted({candidate.iteration.to for candidate in members if not candidate.is_partial})

    def find_end(candidate: DueIteration) -> Moment | None:
        position = bisect_right(ends, candidate.iteration.to)
        latest = ends[position - 1] if position else None
        return latest if latest is not None and latest.version >= candidate.earliest_end else None

    for candidate in sorted(members, key=lambda member: member.iteration.to):
        if find_end(candidate) is None:
            insort(ends, candidate.iteration.to)
    by_end: dict[Moment, list[DueIteration]] = {}
    for candidate in members:
        to = find_end(candidate)
        assert to is not None
        iteration = replace(candidate.iteration, to=to)
        by_end.setdefault(to, []).append(replace(candidate, iteration=iteration))
    return list(by_end.values())


def _group_by_start(members: Sequence[DueIteration]) -> Iterator[tuple[Moment, list[DueIteration]]]:
    """The fewest starts that cover all members, each with the members to read from it."""
    remaining = sorted(members, key=lambda candidate: candidate.iteration.from_.version)
    while remaining:
        start = remaining[0].iteration.from_
        yield (
            start,
            [candidate for candidate in remaining if candidate.earliest_start <= start.version],
        )
        remaining = [
            candidate for candidate in remaining if candidate.earliest_start > start.version
        ]


def _split_by_size(
    members: Sequence[DueIteration], start: Moment, delta_log: DeltaLog
) -> Iterator[list[DueIteration]]:
    if len(members) == 1:
        yield list(members)
        return
    tenants = {tenant for candidate in members for tenant in candidate.iteration.tenants}
    sizes = _read_sizes(delta_log, start, members[0].iteration.to, tenants)

    def sum_sizes(candidate: DueIteration) -> int:
        return sum(sizes.get(tenant, 0) for tenant in candidate.iteration.tenants)

    ordered = sorted(members, key=attrgetter("oldest_start_at"))
    most, most_size = SCANS_PER_RUN * _get_most_tenants(delta_log), SCANS_PER_RUN * MOST_BYTES
    yield from split_into_portions(ordered, most=most, size=sum_sizes, most_size=most_size)


def _get_most_tenants(delta_log: DeltaLog) -> int:
    return MOST_TENANTS_IN_BUCKETS if delta_log.tenant_in_rows else MOST_TENANTS


def _read_sizes(
    delta_log: DeltaLog, start: Moment, to: Moment, tenants: Collection[str]
) -> dict[str, int]:
    """Bytes per tenant: the changes', or the snapshot's if that is or may be read instead."""
    after, upto = start.version, to.version
    tail = after >= 0 and get_feed_state(delta_log, after, upto, tenants).available
    sizes = dict(delta_log.get_bytes_written(after, upto)) if tail else {}
    if sizes:
        return sizes
    return {tenant: size.bytes for tenant, size in delta_log.get_tenant_sizes(upto).items()}


def _merge_due(members: Sequence[DueIteration], start: Moment) -> DueIteration:
    if len(members) == 1:
        return members[0]
    first = members[0].iteration
    keys = [key for candidate in members for key in candidate.iteration.jobs]
    tenants = frozenset(key.tenant for key in keys)
    iteration = replace(first, tenants=tenants, jobs=tuple(sorted(keys)), from_=start)
    return DueIteration(
        iteration=iteration, jobs=[job for candidate in members for job in candidate.jobs]
    )
