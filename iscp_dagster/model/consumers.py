"""What consumes an iteration's data.

Batches are Arrow record batches. An insert batch has the job's columns and beside them
`_version` (int64, the commit) and `_timestamp` (microseconds, UTC); a
delete batch has tenant, key and these two.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from iscp_dagster.model.batch import Range
    from iscp_dagster.model.errors import IscpError
    from iscp_dagster.model.jobs import JobID


class DataType(IntEnum):
    """What the batches are; the numbers are part of the protocol."""

    SNAPSHOT = 0
    """All rows at the end of the range: they replace what the consumer holds of the tenants."""
    TAIL = 1
    """The changes of the range, the last one of each key: upserts and deletes."""


class DataRetriever(Protocol):
    """One job's view of an iteration's scan, which its siblings share."""

    @property
    def job(self) -> JobID:
        """The job that is consumed for."""

    @property
    def tenants(self) -> frozenset[str]:
        """Whose rows come: of as many as are due."""

    @property
    def registrations(self) -> Mapping[str, int]:
        """Of each tenant's job: with the range it names what is delivered to that tenant."""

    @property
    def range(self) -> Range:
        """Which commits the rows are of."""

    @property
    def data_type(self) -> DataType:
        """Whether all rows come, or changes."""

    @property
    def fences(self) -> Mapping[str, int]:
        """By tenant, a number that grows with every run that takes the tenant's job.

        Who has seen a higher one refuses this run's rows: it stood still, and another has gone on.
        """

    @property
    def task(self) -> int:
        """Which part of the scan it is: 0, but for consumers that run in Spark's executors."""

    @property
    def build(self) -> str:
        """Names the batch: the same when it is written again after a crash, else another."""

    def next(self, *, delete_first: bool = False) -> tuple[Any | None, Any | None, bool]:
        """(insert batch, delete batch, whether there is no more); an absent batch is None.

        Upsert the insert batch of a tail: an updated row is in it with its new values, and is not
        in the delete batch. With `delete_first` the delete batch also has the key of every row of
        the insert batch, new rows included: delete first, then insert, and you need no upsert.
        Without a key a batch of a tail has the rows of one tenant. A snapshot has no deletes.
        Waits while a slower sibling blocks the scan. Raises the error that ended the scan early,
        and FenceError when another run has taken the job; the whole range then comes again.
        """

    def by_tenant(self, batch: Any | None) -> Mapping[str, Any]:
        """A batch's rows as a batch a tenant; nothing of an absent one."""

    def marked(self) -> Any | None:
        """The same rows as a table with `_deleted` beside, in the scan's order; None: no more.

        For a consumer that keeps both alike; a tail's deletes have the columns of inserts then.
        """

    def set_aside(self, rows: Mapping[str, int]) -> None:
        """So many of a tenant's rows could not be taken, and are kept elsewhere for a person."""

    def refuse(self, tenant: str, error: IscpError) -> None:
        """One tenant's rows cannot be taken: its job alone fails, and no more of them come."""

    def sent_again(self) -> None:
        """Rows were sent more than once, since no answer came: the first attempt may land yet."""

    def update_watermark(self, connection: Any = None) -> None:
        """Everything was consumed: move the watermark, once, in a transaction of the consumer's.

        `connection` is a SQLAlchemy connection to the database that holds the ISCP log; what the
        consumer writes by it commits together with the watermark. Without it, or when the
        consumer never calls this, the watermark moves after `consume` returned, so the same range
        may come again after a crash: writing it again must then change nothing.
        """


@runtime_checkable
class Consumer(Protocol):
    """Takes what an iteration delivers to one job.

    Made as `Consumer(source, consumer_info)` for each iteration. Raise an IscpError to say whether
    the failure is temporary (code 1-9999) or permanent; any other exception is permanent.
    """

    def consume(self, retriever: DataRetriever) -> None:
        """Call `retriever.next` until there is no more. Returning is success."""
