"""What a scan wrote, and how each claim's step ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from iscp_dagster.clickhouse.connect.failures import OvertakenError
from iscp_dagster.delta.read_plans import ReadKind, ReadPlan
from iscp_dagster.joblog.iterations import Claim, FailedStep, WrittenStep
from iscp_dagster.model.batch import Range
from iscp_dagster.model.consumers.protocol import ConsumerReport, merge_facts
from iscp_dagster.model.errors import TEMPORARY, FeedGoneError, IscpError, UnreadableError
from iscp_dagster.model.jobs import JobKey
from iscp_dagster.model.moment import Moment
from iscp_dagster.sync.reading.requests import ReadRequest

if TYPE_CHECKING:
    from iscp_dagster.clickhouse.tables.index_store import IndexStore

ONE_AT_FAULT = frozenset({FeedGoneError.code, UnreadableError.code, OvertakenError.code})
"""The codes of temporary errors that one tenant may cause: its files, or its job that was taken."""


@dataclass(frozen=True, kw_only=True)
class ErrorDetail:
    """The code and message of an IscpError."""

    code: int
    message: str

    @classmethod
    def from_error(cls, error: IscpError) -> ErrorDetail:
        return cls(code=error.code, message=str(error))

    @property
    def tenant_may_be_cause(self) -> bool:
        """Whether one tenant may be the cause, and not a service."""
        return self.code not in TEMPORARY or self.code in ONE_AT_FAULT


@dataclass(frozen=True, kw_only=True)
class WriteResult:
    """What a scan read, and wrote for one job name's tenants; counts are by tenant."""

    request: ReadRequest
    store: IndexStore | None = None
    """The index's tables, the staging table among them; None for any other consumer."""
    inserted: Mapping[str, int] = field(default_factory=dict)
    deleted: Mapping[str, int] = field(default_factory=dict)
    bytes: Mapping[str, int] = field(default_factory=dict)
    reports: Mapping[str, ConsumerReport] = field(default_factory=dict)
    """By tenant, what the consumer reported besides rows."""
    tenant_errors: Mapping[str, ErrorDetail] = field(default_factory=dict)
    """The tenants that failed by themselves."""
    chunks: int = 0
    write_seconds: float = 0.0
    seconds: float = 0.0
    """Duration of the whole scan, the same for all its jobs."""
    error: ErrorDetail | None = None
    """Why it failed for all other tenants."""
    tenant_may_be_cause: bool = False
    """Whether one of these may have caused the error."""
    resent: bool = False
    """Whether rows were sent more than once."""
    next_claims: Mapping[JobKey, Claim | None] | None = None
    """Where the consumer moved the watermarks itself: the claims of the next steps, None after the
    last one.
    """

    def get_error(self, tenant: str) -> ErrorDetail | None:
        """Why the tenant's part failed; None if it did not."""
        return self.tenant_errors.get(tenant) or self.error


@dataclass(frozen=True, kw_only=True)
class RowDelivery:
    """One job's rows as a scan wrote them; they count once published."""

    claim: Claim
    written: WriteResult
    published: datetime | None = None
    """When the watermark moved; None before."""
    earlier: ConsumerReport = field(default_factory=dict)
    """What the consumer reported of the claim's earlier steps."""

    @property
    def tenant(self) -> str:
        return self.claim.key.tenant

    @property
    def job_name(self) -> str:
        return self.claim.key.job_name

    @property
    def store(self) -> IndexStore | None:
        return self.written.store

    @property
    def plan(self) -> ReadPlan:
        return self.written.request.plan

    @property
    def replaces(self) -> bool:
        """Whether its rows are staged, to replace the tenant's rows."""
        return self.plan.kind is ReadKind.SNAPSHOT and self.store is not None

    @property
    def range(self) -> Range:
        """The range that was read: the claim's step, or for a snapshot up to a later version."""
        return self.written.request.range

    @property
    def to(self) -> Moment:
        return self.range.to

    @property
    def inserted(self) -> int:
        return self.written.inserted.get(self.tenant, 0)

    @property
    def deleted(self) -> int:
        return self.written.deleted.get(self.tenant, 0)

    @property
    def bytes(self) -> int:
        return self.written.bytes.get(self.tenant, 0)

    @property
    def report(self) -> ConsumerReport:
        """What the consumer reported besides rows."""
        return self.written.reports.get(self.tenant, {})

    @property
    def total_report(self) -> ConsumerReport:
        """What the consumer reported in all steps so far."""
        return merge_facts(self.earlier, self.report)

    @property
    def gap(self) -> str:
        """The versions whose changes its history will lack, and why; empty: none."""
        return self.written.request.gap

    @property
    def data_version(self) -> int:
        """The Delta version as of which its rows are delivered."""
        return self.to.version

    @property
    def done(self) -> WrittenStep:
        """The claim as done, with the counts that the job's status keeps."""
        counts = {"inserted": self.inserted, "deleted": self.deleted, "bytes": self.bytes}
        reported = {name: value for name, value in self.report.items() if isinstance(value, int)}
        return WrittenStep(claim=self.claim, to=self.to, counts=counts | reported)


Outcome = RowDelivery | FailedStep


def make_failure(
    claim: Claim, error: IscpError | ErrorDetail, reported: ConsumerReport | None = None
) -> FailedStep:
    """The claim, failed with this error; `reported` is what its consumer did nevertheless."""
    message = error.message if isinstance(error, ErrorDetail) else str(error)
    return FailedStep(claim=claim, code=error.code, message=message, reported=reported or {})
