"""What happened to jobs: one entry for each transition of a row."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from iscp_dagster.model.digest import compute_digest
from iscp_dagster.model.jobs import Job, JobID, JobKey
from iscp_dagster.model.moment import Moment
from iscp_dagster.model.states import Event, JobState

ENDS = frozenset({Event.COMPLETE, Event.FAIL_TEMPORARY, Event.FAIL_PERMANENT})
"""The events that end an iteration with a result."""
INTERRUPTIONS = frozenset({Event.CANCEL, Event.RECOVER, Event.STRAND})
"""The events that end a running iteration without a result."""

COUNTED = ("inserted", "deleted", "bytes")
"""The counts of a status that history keeps."""


@dataclass(frozen=True, kw_only=True)
class HistoryEntry:
    """One transition: who did it, when, between which states, over which range, with what result.

    `actor` is the run for what a run does, else whoever opened the log. Rows, bytes and seconds
    count the iteration that it ended, else 0; jobs that shared the iteration split its seconds
    evenly.
    """

    at: datetime
    key: JobKey
    name: JobID
    registration: int
    event: Event
    from_state: JobState | None
    to_state: JobState
    actor: str = ""
    from_: Moment | None = None
    to: Moment | None = None
    code: int = 0
    message: str = ""
    inserted: int = 0
    deleted: int = 0
    bytes: int = 0
    seconds: float = 0.0
    number: int = 0
    """Its place in the log's history; later is higher."""

    @property
    def interrupted(self) -> bool:
        """Whether it ended an iteration without a result: canceled, or its run or table is gone."""
        return _is_interruption(self.from_state, self.event)


@dataclass(frozen=True)
class Bookmark:
    """How far a reader of the history has come; it continues at `position` if the log is the same.

    The log is the same if its entry `number`, then the newest (0: none), still has the `sign`; a
    log that was emptied, or restored to an earlier state, has lost that entry or its sign.
    """

    position: int
    number: int
    sign: str

    def __str__(self) -> str:
        return f"{self.position}.{self.number}.{self.sign}"

    @classmethod
    def parse(cls, text: str) -> Bookmark:
        """Read what `str` wrote. Raises ValueError on anything else."""
        position, number, sign = text.split(".")
        return cls(int(position), int(number), sign)

    @staticmethod
    def compute_sign(at: datetime, registration: int) -> str:
        """A text that distinguishes two entries with the same number."""
        return compute_digest(f"{at.timestamp():.6f} {registration}")


OF_A_RUN = frozenset({Event.START, *ENDS})


def make_entry(before: Job | None, after: Job, *, at: datetime, actor: str) -> HistoryEntry | None:
    """The entry for the change from `before` to `after`; None if history does not record it."""
    event = after.happened
    if event is None:
        return None
    state = None if before is None else before.state
    status, has_result = after.status, event in ENDS
    has_ended = ends_iteration(state, event)
    reports_status = has_result or (has_ended and event is Event.RECOVER)
    counts = status.counts if has_ended else {}
    return HistoryEntry(
        at=at,
        key=after.key,
        name=after.name,
        registration=after.registration,
        event=event,
        from_state=state,
        to_state=after.state,
        actor=(after.run_id or actor) if event in OF_A_RUN else actor,
        from_=status.from_ if event in OF_A_RUN else None,
        to=status.to if event in OF_A_RUN else None,
        code=status.code if reports_status else 0,
        message=status.message if reports_status else "",
        **{name: counts.get(name, 0) for name in COUNTED},
        seconds=_compute_seconds(after) if has_ended else 0.0,
    )


def ends_iteration(before: JobState | None, event: Event) -> bool:
    """Whether the event ended an iteration, so that its entry has the iteration's counts."""
    return event in ENDS or _is_interruption(before, event)


def _is_interruption(before: JobState | None, event: Event) -> bool:
    return event in INTERRUPTIONS and before is JobState.RUNNING


def _compute_seconds(job: Job) -> float:
    status = job.status
    if status.start_at is None or status.end_at is None:
        return 0.0
    return (status.end_at - status.start_at).total_seconds() / status.shared_by


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What one job of one tenant used: iterations by result, rows, bytes and seconds."""

    tenant: str
    name: JobID
    iterations: int = 0
    failed: int = 0
    canceled: int = 0
    """Ended without a result, also because the run or table is gone."""
    inserted: int = 0
    deleted: int = 0
    bytes: int = 0
    seconds: float = 0.0
