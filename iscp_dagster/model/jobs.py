"""A job: one consumer of one tenant of one table, as one row of the ISCP log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from iscp_dagster.model.batch import BatchRecord
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.moment import START, Moment
from iscp_dagster.model.specs import JobSpec, check_printable_name
from iscp_dagster.model.states import ACTIVE, Event, JobState

ERROR_TEXT_LIMIT = 4_000
"""Characters of an error message that are kept."""
TENANT_BYTES = 1_024
"""The longest name of a tenant, in UTF-8. PostgreSQL limits an index entry to 2,704 bytes,
object stores limit a path to 1,024.
"""
MOST_SHOWN = 100
"""How many characters of a rejected name a message shows."""


@dataclass(frozen=True, kw_only=True, order=True)
class JobID:
    """A job's name within a tenant: database, table and index."""

    db: str
    table: str
    job: str

    def __post_init__(self) -> None:
        for part in ("db", "table", "job"):
            check_printable_name(f"job name's {part}", getattr(self, part))

    def __str__(self) -> str:
        return f"{self.db}.{self.table}/{self.job}"


@dataclass(frozen=True, kw_only=True, order=True)
class JobKey:
    """A row's identity: tenant, the Delta table's `metaData.id`, job name."""

    tenant: str
    table_id: str
    job_name: str

    def __post_init__(self) -> None:
        check_tenant(self.tenant)
        check_printable_name("table id", self.table_id)
        check_printable_name("job name", self.job_name)

    def __str__(self) -> str:
        return f"{self.job_name!r} of tenant {self.tenant!r} on table {self.table_id}"


@dataclass(frozen=True, kw_only=True)
class NewJob:
    """A job to register; `watermark` is the commit before the tenant's first, if that is known."""

    tenant: str
    name: JobID
    table_id: str
    spec: JobSpec
    watermark: Moment = START

    @property
    def key(self) -> JobKey:
        return JobKey(tenant=self.tenant, table_id=self.table_id, job_name=self.name.job)


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """The latest iteration: range, times, code, message, row counts.

    `attempts` counts consecutive failures; `shared_by` counts the jobs that the iteration was
    claimed for, which share one scan; `repairs` counts how often the job was repaired since its
    last range was done.
    """

    from_: Moment | None = None
    to: Moment | None = None
    start_at: datetime | None = None
    end_at: datetime | None = None
    code: int = 0
    message: str = ""
    counts: Mapping[str, int] = field(default_factory=dict, hash=False)
    attempts: int = 0
    shared_by: int = 1
    repairs: int = 0

    def to_json(self) -> dict[str, Any]:
        """The status as the ISCP log stores it, under the design note's names."""
        return {
            "from": None if self.from_ is None else str(self.from_),
            "to": None if self.to is None else str(self.to),
            "start_at": None if self.start_at is None else self.start_at.isoformat(),
            "end_at": None if self.end_at is None else self.end_at.isoformat(),
            "error_code": self.code,
            "error_msg": self.message,
            "counts": dict(self.counts),
            "attempts": self.attempts,
            "shared_by": self.shared_by,
            "repairs": self.repairs,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> JobStatus:
        """Read what `to_json` gave."""
        return cls(
            from_=_parse_optional(Moment.parse, value["from"]),
            to=_parse_optional(Moment.parse, value["to"]),
            start_at=_parse_optional(datetime.fromisoformat, value["start_at"]),
            end_at=_parse_optional(datetime.fromisoformat, value["end_at"]),
            code=value["error_code"],
            message=value["error_msg"],
            counts=value["counts"],
            attempts=value["attempts"],
            shared_by=value["shared_by"],
            # Rows of earlier versions lack it.
            repairs=value.get("repairs", 0),
        )


@dataclass(frozen=True, kw_only=True)
class Job:
    """A whole row of the log.

    `seq` grows with every change except of spec and pause, also across registrations: it is the
    fence of the run that holds the job. `run_id` is the run of the latest iteration; `batch` is its
    record. A paused job is not planned until it is resumed; what is queued or running continues.
    `happened` is the event that turned an earlier row into this one; a log writes it to its
    history.
    """

    key: JobKey
    registration: int
    name: JobID
    spec: JobSpec
    state: JobState
    watermark: Moment
    status: JobStatus
    create_at: datetime
    drop_at: datetime | None = None
    seq: int = 0
    run_id: str | None = None
    batch: BatchRecord | None = None
    queued_to: Moment | None = None
    """The end of the iteration that waits for its run; it starts at the watermark."""
    paused_at: datetime | None = None
    rebuild: bool = False
    """Whether to build the job again: start over when the running iteration has ended."""
    changed_at: datetime | None = None
    """When the row last made a transition, other than of spec or pause."""
    collected_at: datetime | None = None
    """When the data of a dropped job was deleted, though its row stays."""
    happened: Event | None = field(default=None, compare=False)

    @property
    def priority(self) -> int:
        return self.spec.detail.priority

    @property
    def active(self) -> bool:
        """Whether an iteration is queued or runs."""
        return self.state in ACTIVE


def check_tenant(tenant: Any) -> str:
    """`tenant` if databases can store it as a name. Raises ConfigError if not."""
    if isinstance(tenant, str) and is_name(tenant):
        return tenant
    text = repr(tenant)
    raise ConfigError(
        f"The tenant {text if len(text) <= MOST_SHOWN else f'{text[:MOST_SHOWN]}…'} cannot "
        f"be stored as a name: it must be text without NUL, of at most {TENANT_BYTES:,} bytes. "
        "Rename it in the source."
    )


def is_name(tenant: str) -> bool:
    """Whether databases can store and index the text as a tenant's name."""
    if tenant.isascii():
        return "\0" not in tenant and len(tenant) <= TENANT_BYTES
    return to_sql_text(tenant) == tenant and len(tenant.encode()) <= TENANT_BYTES


def to_sql_text(text: str) -> str:
    """`text` without what SQL text columns reject: NUL and halves of surrogate pairs."""
    return text.replace("\0", "").encode(errors="replace").decode()


def _parse_optional(read: Any, value: Any) -> Any:
    return None if value is None else read(value)
