"""Handled events in a table of the receiver's database, for receivers of several processes."""

from __future__ import annotations

import time
from collections.abc import Callable

import sqlalchemy as sa

from idempotent_receiver.store import Standing, Store, lost

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

    def claim(self, event_id: str, holder: str, lease: float) -> Standing:
        standing = self._standing(event_id)
        if standing is None:
            return self._insert(event_id, holder, lease)
        return self._take_over(event_id, holder, lease) if standing is Standing.MINE else standing

    def done(self, event_id: str, holder: str, connection: sa.Connection | None = None) -> None:
        """As in Store; with `connection`, in the transaction that is open there.

        What the receiver writes in that transaction is then written once, whatever happens.
        """
        if connection is None:
            with self._engine.begin() as own:
                self.done(event_id, holder, own)
            return
        changed = sa.update(self._table).where(self._claimed(event_id, holder))
        if connection.execute(changed.values(until=None, at=self._clock())).rowcount != 1:
            raise lost(event_id)

    def release(self, event_id: str, holder: str) -> None:
        with self._engine.begin() as connection:
            connection.execute(sa.delete(self._table).where(self._claimed(event_id, holder)))

    def pause(self, event_id: str, seconds: float) -> None:  # noqa: ARG002 - the protocol's
        self._sleep(min(seconds, POLL))

    def forget(self, seconds: float) -> int:
        with self._engine.begin() as connection:
            old = self._table.c.at < self._clock() - seconds
            return connection.execute(sa.delete(self._table).where(old)).rowcount

    def _claimed(self, event_id: str, holder: str) -> sa.ColumnElement[bool]:
        rows = self._table.c
        return sa.and_(rows.event_id == event_id, rows.holder == holder, rows.until.is_not(None))

    def _standing(self, event_id: str) -> Standing | None:
        """Where the event stands; MINE: its claim ran out, None: nobody has claimed it."""
        rows = self._table.c
        with self._engine.connect() as connection:
            chosen = sa.select(rows.until).where(rows.event_id == event_id)
            row = connection.execute(chosen).first()
        if row is None:
            return None
        if row.until is None:
            return Standing.DONE
        return Standing.HELD if row.until >= self._clock() else Standing.MINE

    def _insert(self, event_id: str, holder: str, lease: float) -> Standing:
        now = self._clock()
        row = {"event_id": event_id, "holder": holder, "at": now, "until": now + lease}
        try:
            with self._engine.begin() as connection:
                connection.execute(sa.insert(self._table).values(row))
        except sa.exc.IntegrityError:
            return Standing.HELD
        return Standing.MINE

    def _take_over(self, event_id: str, holder: str, lease: float) -> Standing:
        now, rows = self._clock(), self._table.c
        over = sa.update(self._table).where(rows.event_id == event_id, rows.until < now)
        with self._engine.begin() as connection:
            taken = connection.execute(over.values(holder=holder, at=now, until=now + lease))
        return Standing.MINE if taken.rowcount == 1 else Standing.HELD
