"""The outbox: events that the iterations of triggers recorded, and what became of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from iscp_dagster.joblog.sql.engine import prepare
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.clock import Clock, utc_now
from iscp_dagster.webhooks import putting
from iscp_dagster.webhooks.pending import PendingEvent

DEFAULT_PENDING = 100_000
"""How many events of a trigger may wait for an endpoint whose own bound is not given."""


class Outbox:
    """The outbox in the ISCP log's database, SQLite or PostgreSQL; `engine` is the log's."""

    def __init__(self, engine: sa.Engine, *, clock: Clock = utc_now) -> None:
        self.engine = prepare(engine)
        self._clock = clock

    def ensure(self) -> None:
        """Make the tables that are missing. Idempotent."""
        SqlLog(self.engine).ensure()

    def put(
        self,
        connection: sa.Connection,
        events: Sequence[PendingEvent],
        *,
        bounds: Mapping[str, int] | None = None,
    ) -> None:
        """Record events in the caller's transaction, in their order; idempotent by event id.

        `bounds` says how many events of one trigger may wait for an endpoint, by its name. Raises
        OutboxFullError beyond; the caller must roll back.
        """
        putting.put(connection, events, bounds or {}, DEFAULT_PENDING)
