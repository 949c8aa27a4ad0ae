"""Consumers of an iteration's data.

Batches are Arrow record batches. An insert batch has the job's columns plus
`_version` (int64, the commit) and `_timestamp` (microseconds, UTC); a
delete batch has tenant, key and these two.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Protocol, runtime_checkable

from iscp_dagster.model.batch import Range
from iscp_dagster.model.errors import IscpError
from iscp_dagster.model.jobs import JobID

ConsumerReport = Mapping[str, Any]
"""What a consumer reports besides rows, see `DataRetriever.report`."""
MOST_LISTED = 50
"""How many of a list's latest entries are kept."""


def merge_facts(earlier: ConsumerReport, later: ConsumerReport) -> ConsumerReport:
    """Merge the reports of two steps: add numbers, join lists, else keep the later value."""
    return {
        **earlier,
        **{name: _merge_values(earlier.get(name), value) for name, value in later.items()},
    }


def _merge_values(earlier: Any, later: Any) -> Any:
    if isinstance(earlier, int) and isinstance(later, int):
        return earlier + later
    if isinstance(earlier, list) and isinstance(later, list):
        return [*earlier, *later][-MOST_LISTED:]
    return later


class DataType(IntEnum):
    """What the batches are; the numbers are part of the protocol."""

    SNAPSHOT = 0
    """All rows at the end of the range: they replace the tenants' rows in the consumer."""
    TAIL = 1
    """The changes of the range, the last one of each key: upserts and deletes."""


class DataRetriever(Protocol):
    """One job's view of a scan that it shares with the iteration's other jobs."""

    @property
    def job(self) -> JobID:
        """The job whose rows these are."""

    @property
    def tenants(self) -> frozenset[str]:
        """The tenants whose rows it delivers: all that are due for the same commits."""

    @property
    def registrations(self) -> Mapping[str, int]:
        """The registration of each tenant's job; with the range it identifies the delivery."""

    @property
    def range(self) -> Range:
        """The commits that the rows come from."""

    @property
    def data_type(self) -> DataType:
        """Whether it delivers all rows or only changes."""

    @property
    def fences(self) -> Mapping[str, int]:
        """For each tenant, a number that grows with every run that takes the tenant's job.

        Reject a run whose number is lower than one you have seen: another run has taken over.
        """

    @property
    def refused(self) -> Mapping[str, IscpError]:
        """The tenants whose rows no longer come, since another run took the job or the consumer
        rejected them: discard their rows.
        """

    @property
    def task(self) -> int:
        """Which part of the scan this is; 0 except for consumers that run in Spark's executors."""

    @property
    def batch_name(self) -> str:
        """The batch's name: the same when it is written again after a crash, else a new one."""

    def next(self, *, delete_first: bool = False) -> tuple[Any | None, Any | None, bool]:
        """(insert batch, delete batch, whether there is no more); an absent batch is None.

        Upsert the insert batch of a tail: an updated row is in it with its new values, and is not
        in the delete batch. With `delete_first` the delete batch also has the key of every row of
        the insert batch, new rows included: delete first, then insert, and you need no upsert.
        Without a key each batch of a tail has the rows of one tenant. A snapshot has no deletes.
        Waits while a slower consumer blocks the scan. Raises the error that ended the scan early,
        and FenceError when other runs have taken all tenants; the whole range then comes again.
        """

    def split_by_tenant(self, batch: Any | None) -> Mapping[str, Any]:
        """Split a batch into one for each tenant; an absent batch gives none."""

    def read_marked_rows(self) -> Any | None:
        """The same rows as one table with a column `_deleted`, in the scan's order; None: no more.

        For consumers that store deletes as rows: a tail's deletes also have the inserts' columns.
        """

    def set_aside(self, rows: Mapping[str, int]) -> None:
        """Report, by tenant, how many rows were not taken but kept elsewhere for a person."""

    def refuse(self, tenant: str, error: IscpError) -> None:
        """Reject one tenant's rows: only its job fails, and no more of its rows come."""

    def report(self, tenant: str, facts: ConsumerReport) -> None:
        """Report what the iteration did for a tenant: shown with its outcome, merged with the
        reports of its earlier ranges; numbers are counts that the job's status keeps too.
        """

    def report_resend(self) -> None:
        """Report that rows were sent again, since no answer came: the first copy may still land."""

    def update_watermark(self, connection: Any = None) -> None:
        """Move the watermark in the consumer's own transaction, once everything is consumed.

        `connection` is a SQLAlchemy connection to the database that holds the ISCP log; what the
        consumer writes through it commits together with the watermark. Later calls do nothing.
        Raises FenceError if a tenant's job was taken: roll back the transaction, since it has that
        tenant's rows too. `consume` is called again for the others.
        Without a connection, or without a call, the watermark moves after `consume` returns, so the
        same range may come again after a crash: writing it again must then change nothing.
        """


@runtime_checkable
class Consumer(Protocol):
    """Takes what an iteration delivers to one job.

    Made as `Consumer(source, consumer_info)` for each iteration. Raise an IscpError to say whether
    the failure is temporary (code 1-9999) or permanent; any other exception is permanent.
    """

    def consume(self, retriever: DataRetriever) -> None:
        """Call `retriever.next` until there is no more. Returning is success."""
