"""Cuts iterations of a long backlog into steps, and joins those of many tenants.

Triggers plan tenant by tenant, up to the latest commit; `sync.bounds` limits a step. Iterations are
joined if they have the same priority and job names, and can start at one version and end at one:
one scan then serves all tenants that a commit changed. A step may end earlier than its bounds
allow, to end with others.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from operator import attrgetter

from iscp_dagster.delta.feed import Feed, feed_state
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
MOST_BYTES = SMALL_BYTES
"""Bytes, as in the lake, of the tenants read in one scan; a larger tenant is read alone."""
PARTS = 8
"""How many such scans a run may do in sequence: Dagster hears of them when the run ends."""


@dataclass(frozen=True, kw_only=True)
class Due:
    """An iteration that may run, with its jobs as the ISCP log has them."""

    iteration: Iteration
    jobs: Sequence[Job]
    cut: bool = False
    """Whether it is a step of a longer backlog."""

    @property
    def soonest(self) -> int:
        """The earliest version that it may end at: a step takes at least a third of its range."""
        after, last = self.iteration.from_.version, self.iteration.to.version
        return last - (last - after) * 2 // 3 if self.cut else last

    @property
    def since(self) -> int:
        """The earliest version that it may be read from: nothing changed until its start."""
        return max(job.watermark.version for job in self.jobs)

    @property
    def began(self) -> datetime:
        """When the longest-waiting job last began; `NEVER` if one is new."""
        return min(job.status.start_at or NEVER for job in self.jobs)

    def flush(self, log: SqlLog) -> None:
        """Flush its jobs' watermarks up to its start."""
        start = self.iteration.from_
        flush_jobs(log, self.jobs, [replace(job, watermark=start) for job in self.jobs])

    def enqueue(self, log: SqlLog, name: str) -> Iteration | None:
        """Queue it as `name`, without the jobs that others took since; None if they took all."""
        self.flush(log)
        taken = log.enqueue(self.iteration, name)
        left = [key for key in self.iteration.jobs if key not in taken]
        return self.iteration.only(left) if left else None


def bounded(
    deployment: Deployment, feed: Feed, iteration: Iteration, jobs: Collection[Job]
) -> Iteration:
    """The iteration, or its first step if the change feed allows reading it in steps.

    A commit that drops columns begins a step.

    `jobs` include the iteration's, and may include others.
    """
    if iteration.range.initial:
        return iteration
    delta_log = feed.log
    chosen = [job for job in jobs if job.key in iteration.jobs]
    after, upto = iteration.from_.version, iteration.to.version
    written = delta_log.written(after, upto, iteration.tenants)
    last = deployment.bounds.of(chosen).last(after, upto, written or ())
    # A drop at the start of the range does no harm.
    dropped = feed.first_drop(after + 1, last)
    if dropped is not None:
        # Rows written before the drop have values in those columns; a snapshot would not.
        last = dropped - 1
    if last >= upto or not feed.state(after, last, iteration.tenants).available:
        return iteration
    return replace(iteration, to=delta_log.moment(last))


def joined(due: Sequence[Due], delta_log: DeltaLog) -> list[Due]:
    """Join into as few iterations as possible, each within one run's tenants and bytes.

    The longest-waiting come first. Iterations of one tenant are not joined: its trigger has kept
    them apart.
    """
    alike: dict[tuple[int, frozenset[str]], list[Due]] = {}
    for each in due:
        names = frozenset(key.job_name for key in each.iteration.jobs)
        alike.setdefault((each.iteration.priority, names), []).append(each)
    return [
        _together(some, start)
        for members in alike.values()
        for ended in _ended(members)
        for start, reached in _reached(ended)
        for some in _packed(reached, start, delta_log)
    ]


def parts(iteration: Iteration, delta_log: DeltaLog) -> list[Iteration]:
    """The parts of the iteration that are each read in one scan, in order."""
    by_tenant = iteration.by_tenant()
    if len(by_tenant) == 1:
        return [iteration]
    sizes = _sizes(delta_log, iteration.from_, iteration.to, iteration.tenants)
    ordered = sorted(by_tenant)
    return [
        iteration.only(key for tenant in tenants for key in by_tenant[tenant])
        for tenants in split_into_portions(
            ordered,
            most=MOST_TENANTS,
            size=lambda tenant: sizes.get(tenant, 0),
            most_size=MOST_BYTES,
        )
    ]


def _ended(members: Sequence[Due]) -> list[list[Due]]:
    """The members grouped by as few ends as possible, each with the latest that it may have."""
    ends = sorted({each.iteration.to for each in members if not each.cut})

    def end(each: Due) -> Moment | None:
        place = bisect_right(ends, each.iteration.to)
        found = ends[place - 1] if place else None
        return found if found is not None and found.version >= each.soonest else None

    for each in sorted(members, key=lambda each: each.iteration.to):
        if end(each) is None:
            insort(ends, each.iteration.to)
    found: dict[Moment, list[Due]] = {}
    for each in members:
        to = end(each)
        assert to is not None
        iteration = replace(each.iteration, to=to)
        found.setdefault(to, []).append(replace(each, iteration=iteration))
    return list(found.values())


def _reached(members: Sequence[Due]) -> Iterator[tuple[Moment, list[Due]]]:
    """The fewest starts that cover all members, each with the members to read from it."""
    left = sorted(members, key=lambda each: each.iteration.from_.version)
    while left:
        start = left[0].iteration.from_
        yield start, [each for each in left if each.since <= start.version]
        left = [each for each in left if each.since > start.version]


def _packed(members: Sequence[Due], start: Moment, delta_log: DeltaLog) -> Iterator[list[Due]]:
    if len(members) == 1:
        yield list(members)
        return
    tenants = {tenant for each in members for tenant in each.iteration.tenants}
    sizes = _sizes(delta_log, start, members[0].iteration.to, tenants)

    def size(each: Due) -> int:
        return sum(sizes.get(tenant, 0) for tenant in each.iteration.tenants)

    ordered = sorted(members, key=attrgetter("began"))
    most, most_size = PARTS * MOST_TENANTS, PARTS * MOST_BYTES
    yield from split_into_portions(ordered, most=most, size=size, most_size=most_size)


def _sizes(
    delta_log: DeltaLog, start: Moment, to: Moment, tenants: Collection[str]
) -> dict[str, int]:
    """Bytes per tenant: of the changes, or of the snapshot if that is or may be read instead."""
    after, upto = start.version, to.version
    tail = after >= 0 and feed_state(delta_log, after, upto, tenants).available
    known = dict(delta_log.bytes_written(after, upto)) if tail else {}
    if known:
        return known
    return {tenant: size.bytes for tenant, size in delta_log.tenant_sizes(upto).items()}


def _together(members: Sequence[Due], start: Moment) -> Due:
    if len(members) == 1:
        return members[0]
    first = members[0].iteration
    keys = [key for each in members for key in each.iteration.jobs]
    tenants = frozenset(key.tenant for key in keys)
    iteration = replace(first, tenants=tenants, jobs=tuple(sorted(keys)), from_=start)
    return Due(iteration=iteration, jobs=[job for each in members for job in each.jobs])
