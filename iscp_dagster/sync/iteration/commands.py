"""The commands of an iteration to its services, and the events that follow.

Each command is answered by the event that its docstring names; `ReturnOutcomes` by none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from iscp_dagster.delta.read_plans import ReadPlan
from iscp_dagster.joblog.iterations import Claim, FailedStep
from iscp_dagster.model.errors import IscpError
from iscp_dagster.model.jobs import JobKey
from iscp_dagster.sync.iteration.narrowing import ScanGroup
from iscp_dagster.sync.iteration.outcomes import Outcome, RowDelivery, WriteResult
from iscp_dagster.sync.reading.requests import ReadRequest

Claims = tuple[Claim, ...]


@dataclass(frozen=True, kw_only=True)
class ScanResult:
    """What a scan wrote for one job name: the claims of its tenants."""

    claims: Claims
    written: WriteResult

    @property
    def job(self) -> str:
        return self.claims[0].key.job_name


@dataclass(frozen=True)
class RecordSteps:
    """Record the claims' steps as BEFORE in the state store, if there is one: StepsRecorded."""

    claims: Claims


@dataclass(frozen=True)
class PlanReads:
    """Plan how to read the claims' steps, which all begin at the same version: ReadsPlanned."""

    claims: Claims
    plan: ReadPlan | None = None
    """How they must be read; None: as the table's log says, which may differ by tenant."""
    split_by_job: bool = False
    """Whether each job name gets a reading of its own."""


@dataclass(frozen=True)
class ScanClaims:
    """Read the range and write it for all claims: ScanFinished or ScanFailed."""

    group: ScanGroup


@dataclass(frozen=True)
class SettleScan:
    """Compare ClickHouse's rows with those sent, settle steps that write none: ScanSettled."""

    result: ScanResult


@dataclass(frozen=True)
class PlaceRows:
    """Put staged rows of one index and reading in place for the jobs still held: RowsPlaced.

    A tail is in place since its scan: only jobs that are no longer held are dropped from it.
    """

    deliveries: tuple[RowDelivery, ...]


@dataclass(frozen=True)
class MoveWatermarks:
    """Move the watermarks to the claims' ends or to the next steps' beginnings: WatermarksMoved."""

    deliveries: tuple[RowDelivery, ...]


@dataclass(frozen=True)
class ServeIndex:
    """Have readers see the index's generation, if that is complete: IndexServed."""

    deliveries: tuple[RowDelivery, ...]


@dataclass(frozen=True)
class DropStaging:
    """Drop what the scan staged, whose rows are in place or never will be: CleanupDone."""


@dataclass(frozen=True)
class RecordFailures:
    """Record the failures in the ISCP log: FailuresRecorded."""

    failures: tuple[FailedStep, ...]
    rebuild: frozenset[JobKey] = frozenset()
    """The jobs whose next iteration starts over."""


@dataclass(frozen=True)
class ReturnOutcomes:
    """Hand the outcomes to the caller."""

    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True)
class AbortIteration:
    """End the iteration with this error: IterationFailed."""

    error: IscpError


@dataclass(frozen=True)
class ReleaseClaims:
    """Release the claims, so that the jobs are planned again at once: CleanupDone."""

    claims: Claims


Command = (
    RecordSteps
    | PlanReads
    | ScanClaims
    | SettleScan
    | PlaceRows
    | MoveWatermarks
    | ServeIndex
    | DropStaging
    | RecordFailures
    | ReturnOutcomes
    | AbortIteration
    | ReleaseClaims
)


@dataclass(frozen=True)
class JobsClaimed:
    """The run holds these claims."""

    claims: Claims


@dataclass(frozen=True)
class StepsRecorded:
    """The state store has the claims' steps, except those that another run took."""

    errors: Mapping[JobKey, IscpError] = field(default_factory=dict)


@dataclass(frozen=True)
class ReadsPlanned:
    """The readings of the claims."""

    requests: tuple[tuple[ReadRequest, Claims], ...]


@dataclass(frozen=True)
class ScanFinished:
    """The scan ended, and wrote this for each job name."""

    group: ScanGroup
    results: tuple[ScanResult, ...]


@dataclass(frozen=True)
class ScanFailed:
    """The scan wrote for none of its jobs."""

    group: ScanGroup
    error: IscpError


@dataclass(frozen=True)
class ScanSettled:
    """The rows of the part are counted."""

    result: ScanResult
    outcomes: Mapping[JobKey, Outcome] = field(default_factory=dict)
    """The outcomes of the steps for which nothing is written: skipped or set aside."""
    errors: Mapping[JobKey, IscpError] = field(default_factory=dict)
    """The jobs whose rows are not exactly those sent."""
    rebuild: frozenset[JobKey] = frozenset()
    """Wrong jobs for which ClickHouse would drop a replay."""


@dataclass(frozen=True)
class FailuresRecorded:
    """The failures are in the log; a job that was taken meanwhile fails with the FenceError."""

    failures: tuple[FailedStep, ...]


@dataclass(frozen=True)
class RowsPlaced:
    """The rows are in place, except the failed jobs' rows."""

    deliveries: tuple[RowDelivery, ...]
    errors: Mapping[JobKey, IscpError] = field(default_factory=dict)


@dataclass(frozen=True)
class WatermarksMoved:
    """The watermarks have moved, except the failed jobs' watermarks."""

    deliveries: tuple[RowDelivery, ...]
    claims: Claims = ()
    """The next steps; none after the last one."""
    errors: Mapping[JobKey, IscpError] = field(default_factory=dict)


@dataclass(frozen=True)
class IndexServed:
    """The rows can be read, at the latest since `at`; None: they are not published yet."""

    deliveries: tuple[RowDelivery, ...]
    at: datetime | None


@dataclass(frozen=True)
class CleanupDone:
    """The scan has no staged rows left, or the run holds no claim any more."""


@dataclass(frozen=True)
class CommandsDone:
    """All commands are executed."""


@dataclass(frozen=True)
class IterationFailed:
    """An error ended the iteration early."""

    error: Exception


@dataclass(frozen=True)
class RunInterrupted:
    """The process must stop."""


IterationEvent = (
    JobsClaimed
    | StepsRecorded
    | ReadsPlanned
    | ScanFinished
    | ScanFailed
    | ScanSettled
    | FailuresRecorded
    | RowsPlaced
    | WatermarksMoved
    | IndexServed
    | CleanupDone
    | CommandsDone
    | IterationFailed
    | RunInterrupted
)
