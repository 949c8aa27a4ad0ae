"""The outbox: events that the iterations of triggers recorded, and their deliveries."""

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
from iscp_dagster.model.clock import Clock, get_utc_now
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.webhooks import due_work, history, lanes, recording
from iscp_dagster.webhooks.deliveries import DeliveryAttempt, EventDelivery, PendingEvent
from iscp_dagster.webhooks.history import DeliveryCount, OutboxSelection
from iscp_dagster.webhooks.recording import ACTIVE, EndpointState
from sql_transactions.engine import begin_transaction, prepare_engine

DEFAULT_PENDING = 100_000
"""How many events of a trigger may wait for an endpoint without a bound of its own."""
PRUNED_AT_ONCE = 5_000
PAUSED = "paused"
MOST_COUNTED = 100_000
"""How far `summarize_trigger` counts."""


@dataclass(frozen=True, kw_only=True)
class TriggerSummary:
    """A trigger's deliveries to its endpoints."""

    events: Mapping[str, int]
    """By state, each counted up to MOST_COUNTED."""
    oldest: datetime | None
    """When the oldest pending one was recorded."""
    endpoints: Mapping[str, EndpointState]


class Outbox:
    """The outbox in the ISCP log's database, SQLite or PostgreSQL; `engine` is the log's."""

    def __init__(self, engine: sa.Engine, *, clock: Clock = get_utc_now) -> None:
        self.engine = prepare_engine(engine, LOG)
        self.clock = clock

    def ensure_log_tables(self) -> None:
        """Make the tables that are missing. Idempotent."""
        SqlLog(self.engine).ensure()

    def record_events(
        self,
        connection: sa.Connection,
        events: Sequence[PendingEvent],
        *,
        bounds: Mapping[str, int] | None = None,
    ) -> None:
        """Record events in the caller's transaction, in their order; idempotent by event id.

        `bounds` says how many events of one trigger may wait for an endpoint, by its name. Raises
        OutboxFullError for more; the caller must roll back.
        """
        lanes.put(connection, events, bounds or {}, DEFAULT_PENDING)

    # For people.

    def list_deliveries(
        self, selection: OutboxSelection | None = None, *, limit: int = 100
    ) -> list[EventDelivery]:
        """The deliveries recorded last, newest first."""
        with self.begin_read() as connection:
            return history.list_deliveries(connection, selection or OutboxSelection(), limit)

    def count_states(self, selection: OutboxSelection | None = None) -> dict[str, int]:
        """How many deliveries are pending, delivered and dead."""
        with self.begin_read() as connection:
            return history.count_states(connection, selection or OutboxSelection())

    def read_event_deliveries(
        self, event_id: str, endpoint: str | None = None
    ) -> tuple[list[EventDelivery], list[DeliveryAttempt]]:
        """The deliveries of an event, newest first, and their attempts, oldest first.

        The attempts are those of each delivery and of its present batch. Both are empty if it is
        unknown.
        """
        selection = OutboxSelection(event_id=event_id, endpoint=endpoint)
        with self.begin_read() as connection:
            deliveries = history.list_deliveries(connection, selection, limit=1_000)
            return deliveries, history.list_attempts(connection, deliveries)

    def count_deliveries(self, trigger: str | None = None) -> list[DeliveryCount]:
        """How many deliveries there are, by trigger, endpoint and state."""
        with self.begin_read() as connection:
            return history.count_deliveries(connection, trigger)

    def summarize_trigger(self, trigger: str, endpoints: Collection[str]) -> TriggerSummary:
        """A trigger's numbers and endpoints; fast, however many events there are."""
        with self.begin_read() as connection:
            states = recording.read_endpoints(connection, sorted(endpoints))
            return TriggerSummary(
                events=history.count_trigger_states(
                    connection, trigger, sorted(endpoints), MOST_COUNTED
                ),
                oldest=history.find_oldest_pending(connection, trigger, sorted(endpoints)),
                endpoints={
                    name: states.get(name, EndpointState(name=name)) for name in sorted(endpoints)
                },
            )

    def resend_event(self, event_id: str, endpoint: str | None = None) -> int:
        """Send an event again, under its id, delivered or not; returns to how many endpoints.

        A pending one is sent without further wait.
        """
        return self._requeue_chosen(OutboxSelection(event_id=event_id, endpoint=endpoint))

    def replay(self, selection: OutboxSelection) -> int:
        """Send events of a range of commit times again, under their ids; returns how many.

        Events of a key are sent in their order. Raises ConfigError unless `selection` has a trigger
        and a `source_from`.
        """
        if selection.trigger is None or selection.source_from is None:
            raise ConfigError("A replay needs a trigger and a start time; give both.")
        return self._requeue_chosen(selection)

    def prune(self, before: datetime) -> int:
        """Delete deliveries and attempts that ended `before`, in portions.

        Returns the sum of the larger of the two counts of each portion.
        """
        total = 0
        while True:
            with self.begin_write() as connection:
                deleted = history.prune(connection, before, PRUNED_AT_ONCE)
            total += deleted
            if deleted < PRUNED_AT_ONCE:
                return total

    def list_endpoints(self) -> dict[str, EndpointState]:
        """The endpoints that a sender served or a person changed, by name."""
        with self.begin_read() as connection:
            return recording.read_endpoints(connection)

    def pause(self, endpoint: str, reason: str = "paused by hand") -> EndpointState:
        """Send nothing to it until it is resumed; events are kept, up to its bound."""
        with self.begin_write() as connection:
            return recording.set_endpoint_state(connection, endpoint, PAUSED, reason, self.clock())

    def resume(self, endpoint: str) -> EndpointState:
        """Send to it again, at once and with all tries, whether it was paused or disabled."""
        with self.begin_write() as connection:
            return recording.set_endpoint_state(connection, endpoint, ACTIVE, "", self.clock())

    def find_served(self, endpoints: Collection[str]) -> frozenset[str]:
        """The endpoints that a sender serves now."""
        with self.begin_read() as connection:
            expired = leases.read_lease_expiry(
                connection, [_format_lease_name(name) for name in endpoints], leases.NOW
            )
        return frozenset(
            name for name in endpoints if not expired.get(_format_lease_name(name), True)
        )

    def find_waiting(self, endpoints: Collection[str]) -> frozenset[str]:
        """The endpoints for which events wait; fast, however many there are."""
        with self.begin_read() as connection:
            return frozenset(name for name in endpoints if due_work.find_next_due(connection, name))

    # For senders.

    def take_leases(self, endpoints: Collection[str], owner: str, seconds: float) -> frozenset[str]:
        """Take or renew the endpoints' leases; returns the endpoints that the caller now holds."""
        with self.begin_write() as connection:
            recording.add_endpoints(connection, sorted(endpoints), self.clock())
            endpoint_by_lease = {_format_lease_name(endpoint): endpoint for endpoint in endpoints}
            held_leases = leases.take_leases(
                connection, endpoint_by_lease, owner, seconds, leases.NOW
            )
            return frozenset(endpoint_by_lease[lease] for lease in held_leases)

    def free_gone_senders(self, is_gone: Callable[[str], bool]) -> None:
        """Free the endpoints of senders that are gone, so that nobody waits for their leases."""
        columns = ISCP_LEASES.c
        is_sender_lease = columns.name.like(f"{_format_lease_name('')}%")
        with self.begin_write() as connection:
            for owner in connection.scalars(sa.select(columns.owner).where(is_sender_lease)).all():
                if is_gone(owner):
                    conditions = (is_sender_lease, columns.owner == owner)
                    connection.execute(sa.delete(ISCP_LEASES).where(*conditions))

    def release(self, endpoints: Collection[str], owner: str) -> None:
        """Let other senders have the endpoints at once."""
        columns = ISCP_LEASES.c
        conditions = (columns.name.in_(map(_format_lease_name, endpoints)), columns.owner == owner)
        with self.begin_write() as connection:
            connection.execute(sa.delete(ISCP_LEASES).where(*conditions))

    def poll_endpoints(
        self, endpoints: Sequence[str]
    ) -> dict[str, tuple[EndpointState, datetime | None]]:
        """Each endpoint's state, and when its next delivery is due; cheap, whatever is pending."""
        with self.begin_read() as connection:
            states = recording.read_endpoints(connection, endpoints)
            return {
                name: (state, due_work.find_next_due(connection, name))
                for name, state in states.items()
            }

    def prepare_work(
        self,
        endpoint: str,
        *,
        room: int,
        busy: Collection[str],
        size: int = 1,
        make_batch_id: due_work.BatchIdMaker | None = None,
    ) -> list[due_work.SenderWork]:
        """The due work of an endpoint whose lease the caller holds.

        At most `room` pieces of work in lanes that are not `busy`: with `make_batch_id`, batches
        of at most `size` events, which are recorded before this returns.
        """
        now = self.clock()
        if make_batch_id is None:
            with self.begin_read() as connection:
                return due_work.read_due_work(connection, endpoint, now, room=room, busy=busy)
        with self.begin_write() as connection:
            return due_work.compose_due_batches(
                connection,
                endpoint,
                now,
                room=room,
                size=size,
                busy=busy,
                make_batch_id=make_batch_id,
            )

    def record_attempts(
        self, endpoint: EndpointState, results: Sequence[recording.AttemptResult]
    ) -> None:
        """Record attempts of the endpoint's messages, and its state after the last of them."""
        with self.begin_write() as connection:
            recording.record(connection, endpoint, results, self.clock())

    def begin_read(self) -> AbstractContextManager[sa.Connection]:
        """One transaction that only reads."""
        return begin_transaction(self.engine, writes=False)

    def begin_write(self) -> AbstractContextManager[sa.Connection]:
        """One transaction."""
        return begin_transaction(self.engine, writes=True)

    def _requeue_chosen(self, selection: OutboxSelection) -> int:
        with self.begin_write() as connection:
            return sum(
                lanes.requeue_deliveries(
                    connection, history.build_conditions(selection), self.clock()
                )
            )


def _format_lease_name(endpoint: str) -> str:
    return f"sender:{endpoint}"
