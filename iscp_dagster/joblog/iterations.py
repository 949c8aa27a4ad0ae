"""An iteration: one scan of a range of one table for one or more jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from iscp_dagster.model.batch import BatchRecord, BatchStep, Case, Phase, Range
from iscp_dagster.model.consumers.kinds import get_consumer_kind
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.jobs import Job, JobID, JobKey
from iscp_dagster.model.moment import Moment
from iscp_dagster.model.specs import ConsumerInfo, JobSpec


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """The jobs of some tenants of one table that share a scan of (from, to]."""

    table_id: str
    tenants: frozenset[str]
    jobs: tuple[JobKey, ...]
    from_: Moment
    to: Moment
    priority: int = 0
    waits_long: bool = False
    """Whether all its jobs may wait long for what they call; it then takes no slot from others."""

    def __post_init__(self) -> None:
        _ = self.range
        if len(set(self.jobs)) != len(self.jobs) or not self.jobs:
            raise ConfigError(f"An iteration needs one or more distinct jobs, not {self.jobs}.")
        tenants = {key.tenant for key in self.jobs}
        tables = {key.table_id for key in self.jobs}
        if tenants != self.tenants or tables != {self.table_id}:
            raise ConfigError(
                f"The iteration over table {self.table_id} for tenants {sorted(self.tenants)} "
                f"has jobs of tables {sorted(tables)} and tenants {sorted(tenants)}."
            )

    @classmethod
    def from_jobs(cls, jobs: Sequence[Job], to: Moment) -> Iteration:
        """The iteration of jobs with the same table and watermark, at their highest priority."""
        return cls(
            table_id=jobs[0].key.table_id,
            tenants=frozenset(job.key.tenant for job in jobs),
            jobs=tuple(sorted(job.key for job in jobs)),
            from_=jobs[0].watermark,
            to=to,
            priority=max(job.priority for job in jobs),
            waits_long=all(needs_own_scan(job) for job in jobs),
        )

    @property
    def range(self) -> Range:
        return Range(from_=self.from_, to=self.to)

    def select_jobs(self, jobs: Iterable[JobKey]) -> Iteration:
        """The iteration of only these of its jobs, at least one."""
        keys = tuple(jobs)
        return replace(self, tenants=frozenset(key.tenant for key in keys), jobs=keys)

    def group_by_tenant(self) -> dict[str, list[JobKey]]:
        """Its jobs by tenant."""
        jobs: dict[str, list[JobKey]] = {}
        for key in self.jobs:
            jobs.setdefault(key.tenant, []).append(key)
        return jobs


def needs_own_scan(job: Job) -> bool:
    """Whether its iterations may wait long for a handler, and so share no scan."""
    return get_consumer_kind(job.spec.detail.consumer.type).iterates_alone


@dataclass(frozen=True, kw_only=True)
class EarlierBatches:
    """What claims need to know about earlier batches, besides the jobs' rows."""

    previous: Mapping[JobKey, BatchRecord] = field(default_factory=dict)
    """A state store's records; each overrides its row's batch, if the row has one."""
    unrepeatable: frozenset[JobKey] = frozenset()
    """The jobs whose unconfirmed batch can no longer be read and must be set aside."""
    tolerate_state_mismatch: bool = False
    """Whether a range before the recorded batch is skipped instead of rejected."""
    unread: bool = False
    """The store did not answer: the claims must fail and leave the batches unchanged."""


NO_EARLIER_BATCHES = EarlierBatches()


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The right to write one job's part of an iteration, until its row's `seq` moves.

    `range` ends where the last of `steps` ends; they are written in order, and the first is
    recorded as BEFORE. `fence` is the row's `seq`. `previous` is the recorded batch, and `case`
    says how `range` relates to it.
    """

    key: JobKey
    registration: int
    name: JobID
    spec: JobSpec
    fence: int
    run_id: str
    range: Range
    steps: tuple[BatchStep, ...]
    previous: BatchRecord | None = None
    case: Case = Case.NONE
    repairs: int = 0
    """How often the job was repaired since its last completed range; a replay keeps it."""

    @property
    def consumer(self) -> ConsumerInfo:
        """The job's consumer."""
        return self.spec.detail.consumer

    @property
    def step(self) -> BatchStep:
        """The step to write now."""
        return self.steps[0]

    @property
    def takes_over(self) -> bool:
        """Whether an earlier run left a batch unconfirmed, and may still try to write it."""
        return self.previous is not None and self.previous.phase is Phase.BEFORE

    @property
    def last(self) -> bool:
        """Whether no step follows this one."""
        return len(self.steps) == 1


@dataclass(frozen=True, kw_only=True)
class WrittenStep:
    """A claim whose step is written, up to `to`, with the counts for the job's status."""

    claim: Claim
    to: Moment
    counts: Mapping[str, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, kw_only=True)
class FailedStep:
    """A claim whose step failed. Code 1-9999: planned again; 10000 and above: error."""

    claim: Claim
    code: int
    message: str
    reported: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What its consumer reported despite the failure."""
