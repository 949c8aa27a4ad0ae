"""What an iteration asks its services to do, and what happened then.

Each command is answered by the event that its docstring names; `Give` by none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from iscp_dagster.delta.plans import ReadPlan
from iscp_dagster.joblog.iterations import Claim, Failed
from iscp_dagster.model.errors import IscpError
from iscp_dagster.model.jobs import JobKey
from iscp_dagster.sync.iteration.narrowing import Trial
from iscp_dagster.sync.iteration.outcomes import Delivery, Outcome, Written
from iscp_dagster.sync.reading.readings import Reading

Claims = tuple[Claim, ...]


@dataclass(frozen=True, kw_only=True)
class Part:
    """What a scan wrote for one job name: the claims of its tenants."""

    claims: Claims
    written: Written

    @property
    def job(self) -> str:
        return self.claims[0].key.job_name


@dataclass(frozen=True)
class Record:
    """Record the claims' steps as BEFORE in the state store, if there is one: Recorded."""

    claims: Claims


@dataclass(frozen=True)
class Plan:
    """Find out how to read the claims' step, which all begin at the same version: Planned."""

    claims: Claims
    plan: ReadPlan | None = None
    """How it must be read; None: as the table's log says, which may differ by tenant."""
    apart: bool = False
    """Whether each job name gets a reading of its own."""


@dataclass(frozen=True)
class Scan:
    """Read the range and write it for all claims: Scanned or ScanFailed."""

    trial: Trial


@dataclass(frozen=True)
class Check:
    """Compare what ClickHouse holds with what was sent, settle steps that write none: Checked."""

    part: Part


@dataclass(frozen=True)
class Place:
    """Put what is staged, of one index and reading, in place for the jobs still held: Placed.

    A tail is in place since its scan: it only loses the jobs that are no longer held.
    """

    deliveries: tuple[Delivery, ...]


@dataclass(frozen=True)
class Move:
    """Move the watermarks to the ends of the claims, or to where the next steps begin: Moved."""

    deliveries: tuple[Delivery, ...]


@dataclass(frozen=True)
class Serve:
    """Have readers see the index's generation, if that is complete: Served."""

    deliveries: tuple[Delivery, ...]


@dataclass(frozen=True)
class Discard:
    """Drop what the scan staged, whose rows are in place or never will be: Discarded."""


@dataclass(frozen=True)
class Fail:
    """Record the failures in the ISCP log: Refused."""

    failures: tuple[Failed, ...]
    rebuild: frozenset[JobKey] = frozenset()
    """The jobs whose next iteration starts over."""


@dataclass(frozen=True)
class Give:
    """Hand the outcomes to the caller."""

    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True)
class Stop:
    """End the iteration with this error: Broken."""

    error: IscpError


@dataclass(frozen=True)
class Release:
    """Let go of the claims, so that the jobs are planned again at once: Discarded."""

    claims: Claims


Command = (
    Record | Plan | Scan | Check | Place | Move | Serve | Discard | Fail | Give | Stop | Release
)


@dataclass(frozen=True)
class Claimed:
    """The run holds these claims."""

    claims: Claims


@dataclass(frozen=True)
class Recorded:
    """The state store has the claims' steps, except those that another run took."""

    lost: Mapping[JobKey, IscpError] = field(default_factory=dict)


@dataclass(frozen=True)
class Planned:
    """The readings of the claims."""

    readings: tuple[tuple[Reading, Claims], ...]


@dataclass(frozen=True)
class Scanned:
    """The scan ended, and wrote this for each job name."""

    trial: Trial
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class ScanFailed:
    """The scan wrote for none of its jobs."""

    trial: Trial
    error: IscpError


@dataclass(frozen=True)
class Checked:
    """The rows of the part are counted."""

    part: Part
    passed: Mapping[JobKey, Outcome] = field(default_factory=dict)
    """The outcomes of the steps for which nothing is written: skipped or set aside."""
    wrong: Mapping[JobKey, IscpError] = field(default_factory=dict)
    """The jobs whose rows are not exactly those sent."""
    rebuild: frozenset[JobKey] = frozenset()
    """Those of them for which ClickHouse would take no replay."""


@dataclass(frozen=True)
class Refused:
    """The failures are in the log; a job that was taken meanwhile fails with the FenceError."""

    failures: tuple[Failed, ...]


@dataclass(frozen=True)
class Placed:
    """The rows are in place, except those of the jobs that failed."""

    deliveries: tuple[Delivery, ...]
    wrong: Mapping[JobKey, IscpError] = field(default_factory=dict)


@dataclass(frozen=True)
class Moved:
    """The watermarks have moved, except those of the jobs that failed."""

    deliveries: tuple[Delivery, ...]
    claims: Claims = ()
    """The next steps; none after the last one."""
    wrong: Mapping[JobKey, IscpError] = field(default_factory=dict)


@dataclass(frozen=True)
class Served:
    """The rows can be read, at the latest since `at`; None: they are not published yet."""

    deliveries: tuple[Delivery, ...]
    at: datetime | None


@dataclass(frozen=True)
class Discarded:
    """Nothing staged is left of the scan, or no claim is held any more."""


@dataclass(frozen=True)
class Idle:
    """All commands are carried out."""


@dataclass(frozen=True)
class Broken:
    """An error ended the iteration early."""

    error: Exception


@dataclass(frozen=True)
class Interrupted:
    """The process is asked to stop."""


Event = (
    Claimed
    | Recorded
    | Planned
    | Scanned
    | ScanFailed
    | Checked
    | Refused
    | Placed
    | Moved
    | Served
    | Discarded
    | Idle
    | Broken
    | Interrupted
)
