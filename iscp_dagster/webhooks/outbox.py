"""The outbox: events that the iterations of triggers recorded, and what became of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from iscp_dagster.joblog.sql import leases
from iscp_dagster.joblog.sql.engine import LOG
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.joblog.sql.tables import ISCP_LEASES
from iscp_dagster.model.clock import Clock, utc_now
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.webhooks import claims, history, putting, recording
from iscp_dagster.webhooks.history import Chosen, Count
from iscp_dagster.webhooks.pending import Attempt, Delivery, PendingEvent
from iscp_dagster.webhooks.recording import ACTIVE, EndpointState
from sql_transactions.engine import prepare, transaction

DEFAULT_PENDING = 100_000
"""How many events of a trigger may wait for an endpoint whose own bound is not given."""
PRUNED_AT_ONCE = 5_000
PAUSED = "paused"
MOST_COUNTED = 100_000
"""How far `numbers` counts."""


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """A trigger's deliveries to its endpoints."""

    events: Mapping[str, int]
    """By state, each counted up to MOST_COUNTED."""
    oldest: datetime | None
    """When the oldest pending one was recorded."""
    endpoints: Mapping[str, EndpointState]


class Outbox:
    """The outbox in the ISCP log's database, SQLite or PostgreSQL; `engine` is the log's."""

    def __init__(self, engine: sa.Engine, *, clock: Clock = utc_now) -> None:
        self.engine = prepare(engine, LOG)
        self.clock = clock

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

    # What people ask for.

    def listed(self, chosen: Chosen | None = None, *, limit: int = 100) -> list[Delivery]:
        """The deliveries recorded last, newest first."""
        with self.reading() as connection:
            return history.listed(connection, chosen or Chosen(), limit)

    def count_states(self, chosen: Chosen | None = None) -> dict[str, int]:
        """How many deliveries are pending, delivered and dead."""
        with self.reading() as connection:
            return history.count_states(connection, chosen or Chosen())

    def show(
        self, event_id: str, endpoint: str | None = None
    ) -> tuple[list[Delivery], list[Attempt]]:
        """The deliveries of an event, and their attempts, oldest first; none if it is unknown."""
        chosen = Chosen(event_id=event_id, endpoint=endpoint)
        with self.reading() as connection:
            deliveries = history.listed(connection, chosen, limit=1_000)
            return deliveries, history.attempts(connection, deliveries)

    def counts(self, trigger: str | None = None) -> list[Count]:
        """How many deliveries there are, by trigger, endpoint and state."""
        with self.reading() as connection:
            return history.counts(connection, trigger)

    def numbers(self, trigger: str, endpoints: Collection[str]) -> Numbers:
        """What is shown of a trigger: quick, however many events there are."""
        with self.reading() as connection:
            known = recording.endpoints(connection, sorted(endpoints))
            return Numbers(
                events=history.counted(connection, trigger, sorted(endpoints), MOST_COUNTED),
                oldest=history.oldest(connection, trigger, sorted(endpoints)),
                endpoints={
                    name: known.get(name, EndpointState(name=name)) for name in sorted(endpoints)
                },
            )

    def resend(self, event_id: str, endpoint: str | None = None) -> int:
        """Send an event again, under its id, delivered or not; returns to how many endpoints.

        One that is still pending is sent without a further wait.
        """
        return self._again(Chosen(event_id=event_id, endpoint=endpoint))

    def replay(self, chosen: Chosen) -> int:
        """Send events of a range of commit times again, under their ids; returns how many.

        `chosen` must have a trigger and a beginning; events of a key are sent in their order.
        Raises ConfigError without.
        """
        if chosen.trigger is None or chosen.source_from is None:
            raise ConfigError("A replay needs a trigger and the time from which on; give both.")
        return self._again(chosen)

    def prune(self, before: datetime) -> int:
        """Delete deliveries and dead letters that ended before, and old attempts; how many."""
        total = 0
        while True:
            with self.writing() as connection:
                gone = history.prune(connection, before, PRUNED_AT_ONCE)
            total += gone
            if gone < PRUNED_AT_ONCE:
                return total

    def endpoints(self) -> dict[str, EndpointState]:
        """The endpoints that a sender served or a person changed, by name."""
        with self.reading() as connection:
            return recording.endpoints(connection)

    def pause(self, endpoint: str, reason: str = "paused by hand") -> EndpointState:
        """Send nothing to it until it is resumed; events are kept, up to its bound."""
        with self.writing() as connection:
            return recording.change(connection, endpoint, PAUSED, reason, self.clock())

    def resume(self, endpoint: str) -> EndpointState:
        """Send to it again, at once and with all tries, whether it was paused or disabled."""
        with self.writing() as connection:
            return recording.change(connection, endpoint, ACTIVE, "", self.clock())

    def served(self, endpoints: Collection[str]) -> frozenset[str]:
        """The endpoints that a sender serves at present."""
        with self.reading() as connection:
            over = leases.lapsed(connection, [_lease(each) for each in endpoints], leases.NOW)
        return frozenset(each for each in endpoints if not over.get(_lease(each), True))

    def waiting(self, endpoints: Collection[str]) -> frozenset[str]:
        """The endpoints for which events wait; quick, however many there are."""
        with self.reading() as connection:
            return frozenset(each for each in endpoints if claims.due(connection, each))

    # What a sender does.

    def hold(self, endpoints: Collection[str], owner: str, seconds: float) -> frozenset[str]:
        """Take or renew the endpoints' leases; returns those that no other sender holds."""
        with self.writing() as connection:
            recording.add_endpoints(connection, sorted(endpoints), self.clock())
            names = {_lease(each): each for each in endpoints}
            held = leases.take(connection, names, owner, seconds, leases.NOW)
            return frozenset(names[each] for each in held)

    def inherit(self, is_gone: Callable[[str], bool]) -> None:
        """Free the endpoints of senders that are gone, so that nobody waits for their leases."""
        columns = ISCP_LEASES.c
        sender = columns.name.like(f"{_lease('')}%")
        with self.writing() as connection:
            for owner in connection.scalars(sa.select(columns.owner).where(sender)).all():
                if is_gone(owner):
                    mine = (sender, columns.owner == owner)
                    connection.execute(sa.delete(ISCP_LEASES).where(*mine))

    def release(self, endpoints: Collection[str], owner: str) -> None:
        """Let other senders have the endpoints at once."""
        columns = ISCP_LEASES.c
        mine = (columns.name.in_(map(_lease, endpoints)), columns.owner == owner)
        with self.writing() as connection:
            connection.execute(sa.delete(ISCP_LEASES).where(*mine))

    def look(self, endpoints: Sequence[str]) -> dict[str, tuple[EndpointState, datetime | None]]:
        """Each endpoint's state, and when its next delivery is due; cheap, whatever is pending."""
        with self.reading() as connection:
            states = recording.endpoints(connection, endpoints)
            return {name: (state, claims.due(connection, name)) for name, state in states.items()}

    def claim(
        self,
        endpoint: str,
        *,
        room: int,
        busy: Collection[str],
        size: int = 1,
        batch_id: claims.BatchId | None = None,
    ) -> list[claims.Work]:
        """What is due for an endpoint whose lease the caller holds.

        At most `room` pieces of work in lanes that are not `busy`: with `batch_id`, batches of at
        most `size` events, which are recorded before this returns.
        """
        now = self.clock()
        if batch_id is None:
            with self.reading() as connection:
                return claims.claim(connection, endpoint, now, room=room, busy=busy)
        with self.writing() as connection:
            return claims.compose(
                connection, endpoint, now, room=room, size=size, busy=busy, batch_id=batch_id
            )

    def record(self, endpoint: EndpointState, results: Sequence[recording.Result]) -> None:
        """Record attempts of the endpoint's messages, and its state after the last of them."""
        with self.writing() as connection:
            recording.record(connection, endpoint, results, self.clock())

    def reading(self) -> AbstractContextManager[sa.Connection]:
        """One transaction that only reads."""
        return transaction(self.engine, writes=False)

    def writing(self) -> AbstractContextManager[sa.Connection]:
        """One transaction."""
        return transaction(self.engine, writes=True)

    def _again(self, chosen: Chosen) -> int:
        with self.writing() as connection:
            return sum(putting.again(connection, history.conditions(chosen), self.clock()))


def _lease(endpoint: str) -> str:
    return f"sender:{endpoint}"
