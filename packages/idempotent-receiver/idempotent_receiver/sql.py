"""Handled events in a table of the receiver's database, for receivers of several processes."""

from __future__ import annotations

import time
from collections.abc import Callable

import sqlalchemy as sa

from idempotent_receiver.store import ClaimStatus, Store, make_claim_lost_error

POLL = 0.05
"""Seconds between two looks at an event that another handles."""


class SqlStore(Store):
    """A Store in one table of any database that SQLAlchemy knows; `ensure` makes the table.

    `clock` gives seconds since the epoch; receivers that share a table need clocks that differ by
    less than the lease.
    """

    def __init__(
        self,
        engine: sa.Engine,
        table: str = "handled_events",
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._engine, self._clock, self._sleep = engine, clock, sleep
        self._table = sa.Table(
            table,
            sa.MetaData(),
            sa.Column("event_id", sa.String(100), primary_key=True),
            sa.Column("holder", sa.String(40), nullable=False),
            sa.Column("at", sa.Double, nullable=False, index=True),
            sa.Column("until", sa.Double, comment="when the claim runs out; null: done"),
        )

    def ensure(self) -> None:
        """Make the table, unless there is one."""
        self._table.metadata.create_all(self._engine)

    def claim(self, event_id: str, holder: str, lease: float) -> ClaimStatus:
        status = self._get_claim_status(event_id)
        if status is None:
            return self._insert_claim(event_id, holder, lease)
        return (
            self._take_over_claim(event_id, holder, lease) if status is ClaimStatus.MINE else status
        )

    def complete(self, event_id: str, holder: str, connection: sa.Connection | None = None) -> None:
        """As in Store; with `connection`, in the transaction that is open there.

        What the receiver writes in that transaction is then written once, whatever happens.
        """
        if connection is None:
            with self._engine.begin() as own:
                self.complete(event_id, holder, own)
            return
        update = sa.update(self._table).where(self._build_claim_filter(event_id, holder))
        if connection.execute(update.values(until=None, at=self._clock())).rowcount != 1:
            raise make_claim_lost_error(event_id)

    def release(self, event_id: str, holder: str) -> None:
        with self._engine.begin() as connection:
            connection.execute(
                sa.delete(self._table).where(self._build_claim_filter(event_id, holder))
            )

    def wait_for_change(self, event_id: str, seconds: float) -> None:  # noqa: ARG002 - the protocol's
        self._sleep(min(seconds, POLL))

    def forget(self, seconds: float) -> int:
        with self._engine.begin() as connection:
            old = self._table.c.at < self._clock() - seconds
            return connection.execute(sa.delete(self._table).where(old)).rowcount

    def _build_claim_filter(self, event_id: str, holder: str) -> sa.ColumnElement[bool]:
        columns = self._table.c
        return sa.and_(
            columns.event_id == event_id, columns.holder == holder, columns.until.is_not(None)
        )

    def _get_claim_status(self, event_id: str) -> ClaimStatus | None:
        """The event's status; MINE: the caller may claim it, None: nobody has claimed it."""
        columns = self._table.c
        with self._engine.connect() as connection:
            query = sa.select(columns.until).where(columns.event_id == event_id)
            row = connection.execute(query).first()
        if row is None:
            return None
        if row.until is None:
            return ClaimStatus.DONE
        return ClaimStatus.HELD if row.until >= self._clock() else ClaimStatus.MINE

    def _insert_claim(self, event_id: str, holder: str, lease: float) -> ClaimStatus:
        now = self._clock()
        row = {"event_id": event_id, "holder": holder, "at": now, "until": now + lease}
        try:
            with self._engine.begin() as connection:
                connection.execute(sa.insert(self._table).values(row))
        except sa.exc.IntegrityError:
            return ClaimStatus.HELD
        return ClaimStatus.MINE

    def _take_over_claim(self, event_id: str, holder: str, lease: float) -> ClaimStatus:
        now, columns = self._clock(), self._table.c
        update = sa.update(self._table).where(columns.event_id == event_id, columns.until < now)
        with self._engine.begin() as connection:
            result = connection.execute(update.values(holder=holder, at=now, until=now + lease))
        return ClaimStatus.MINE if result.rowcount == 1 else ClaimStatus.HELD
