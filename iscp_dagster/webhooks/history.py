"""What people and pages see of the outbox, and can have sent again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from itertools import product
from typing import Any

import sqlalchemy as sa

from iscp_dagster.events.timestamps import SourceTimestamp
from iscp_dagster.webhooks.deliveries import DeliveryAttempt, EventDelivery
from iscp_dagster.webhooks.due_work import to_delivery
from iscp_dagster.webhooks.tables import (
    ATTEMPTS,
    HAS_ENDED,
    IS_PENDING,
    ISCP_ATTEMPTS,
    ISCP_OUTBOX,
    OUTBOX,
    DeliveryState,
)

_MOST_NANOS = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class OutboxSelection:
    """Which deliveries; None: any."""

    trigger: str | None = None
    endpoint: str | None = None
    tenant: str | None = None
    state: str | None = None
    """`pending`, `delivered` or `dead`."""
    event_id: str | None = None
    source_from: datetime | None = None
    """Of commits at this time or later."""
    source_to: datetime | None = None
    """Of commits before this time."""


@dataclass(frozen=True, kw_only=True)
class DeliveryCount:
    """How many deliveries of a trigger to an endpoint are in a state."""

    trigger: str
    endpoint: str
    state: str
    events: int
    oldest: datetime
    """When the first of them was recorded."""


def build_conditions(selection: OutboxSelection) -> list[sa.ColumnElement[bool]]:
    """The conditions that select the deliveries."""
    columns = {
        "trigger": OUTBOX.trigger_name,
        "endpoint": OUTBOX.endpoint,
        "tenant": OUTBOX.tenant,
        "event_id": OUTBOX.event_id,
    }
    values = {column: getattr(selection, name) for name, column in columns.items()}
    where: list[Any] = [
        column == _to_encodable(value) for column, value in values.items() if value is not None
    ]
    if selection.state is not None:
        where.append(_build_state_condition(selection.state))
    if selection.source_from is not None:
        where.append(OUTBOX.source_nanos >= _to_nanos(selection.source_from))
    if selection.source_to is not None:
        where.append(OUTBOX.source_nanos < _to_nanos(selection.source_to))
    return where


def list_deliveries(
    connection: sa.Connection, selection: OutboxSelection, limit: int
) -> list[EventDelivery]:
    """The deliveries recorded last, newest first."""
    query = (
        sa.select(ISCP_OUTBOX).where(*build_conditions(selection)).order_by(OUTBOX.number.desc())
    )
    return [to_delivery(row) for row in connection.execute(query.limit(limit))]


def list_attempts(
    connection: sa.Connection, deliveries: Sequence[EventDelivery]
) -> list[DeliveryAttempt]:
    """The attempts of these deliveries and their batches, oldest first."""
    ids = {delivery.event_id for delivery in deliveries} | {
        delivery.batch_id for delivery in deliveries
    }
    conditions = (
        ATTEMPTS.message_id.in_([id_ for id_ in ids if id_ is not None]),
        ATTEMPTS.endpoint.in_({delivery.endpoint for delivery in deliveries}),
    )
    columns = [ATTEMPTS[field.name] for field in fields(DeliveryAttempt)]
    query = sa.select(*columns).where(*conditions).order_by(ATTEMPTS.number)
    return [DeliveryAttempt(**row._asdict()) for row in connection.execute(query)]


def count_deliveries(connection: sa.Connection, trigger: str | None) -> list[DeliveryCount]:
    """The deliveries by trigger, endpoint and state."""
    grouping = (OUTBOX.trigger_name, OUTBOX.endpoint, OUTBOX.state)
    where = () if trigger is None else (OUTBOX.trigger_name == trigger,)
    query = sa.select(*grouping, sa.func.count(), sa.func.min(OUTBOX.recorded)).where(*where)
    counts: dict[tuple[str, str, str], DeliveryCount] = {}
    for name, endpoint, state, events, oldest in connection.execute(query.group_by(*grouping)):
        label = DeliveryState(state).label
        previous = counts.get((name, endpoint, label))
        counts[name, endpoint, label] = DeliveryCount(
            trigger=name,
            endpoint=endpoint,
            state=label,
            events=events + (previous.events if previous else 0),
            oldest=min(oldest, previous.oldest) if previous else oldest,
        )
    return [counts[key] for key in sorted(counts)]


def count_states(connection: sa.Connection, selection: OutboxSelection) -> dict[str, int]:
    """The chosen deliveries by state, 0 included."""
    counts = dict.fromkeys(
        (DeliveryState.NEXT.label, DeliveryState.DELIVERED.label, DeliveryState.DEAD.label), 0
    )
    query = sa.select(OUTBOX.state, sa.func.count()).where(*build_conditions(selection))
    for state, number in connection.execute(query.group_by(OUTBOX.state)):
        counts[DeliveryState(state).label] += number
    return counts


def count_trigger_states(
    connection: sa.Connection, trigger: str, endpoints: Sequence[str], most: int
) -> dict[str, int]:
    """The trigger's deliveries to these endpoints by state, each counted up to `most`.

    Fast, however many there are.
    """
    counts = dict.fromkeys(
        (DeliveryState.NEXT.label, DeliveryState.DELIVERED.label, DeliveryState.DEAD.label), 0
    )
    for endpoint, state in product(endpoints, DeliveryState):
        conditions = (
            OUTBOX.trigger_name == trigger,
            OUTBOX.endpoint == endpoint,
            OUTBOX.state == state,
        )
        matching = sa.select(sa.literal_column("1")).where(*conditions).limit(most).subquery()
        number = connection.scalar(sa.select(sa.func.count()).select_from(matching)) or 0
        counts[state.label] = min(counts[state.label] + number, most)
    return counts


def find_oldest_pending(
    connection: sa.Connection, trigger: str, endpoints: Sequence[str]
) -> datetime | None:
    """When the oldest pending delivery to these endpoints was recorded; None: nothing waits."""
    times = [
        connection.scalar(
            sa.select(sa.func.min(OUTBOX.recorded)).where(
                OUTBOX.trigger_name == trigger, OUTBOX.endpoint == endpoint, OUTBOX.state == state
            )
        )
        for endpoint, state in product(endpoints, (DeliveryState.NEXT, DeliveryState.BEHIND))
    ]
    return min((time for time in times if time is not None), default=None)


def prune(connection: sa.Connection, before: datetime, most: int) -> int:
    """Delete at most `most` old deliveries and as many attempts; returns the larger count."""
    old_deliveries = sa.select(OUTBOX.number).where(HAS_ENDED, OUTBOX.ended_at < before).limit(most)
    deleted_deliveries = connection.execute(
        sa.delete(ISCP_OUTBOX).where(OUTBOX.number.in_(old_deliveries))
    ).rowcount
    old_attempts = sa.select(ATTEMPTS.number).where(ATTEMPTS.at < before).limit(most)
    deleted_attempts = connection.execute(
        sa.delete(ISCP_ATTEMPTS).where(ATTEMPTS.number.in_(old_attempts))
    ).rowcount
    return max(deleted_deliveries, deleted_attempts)


def _build_state_condition(state: str) -> sa.ColumnElement[bool]:
    if state == DeliveryState.NEXT.label:
        return IS_PENDING
    return OUTBOX.state == int(DeliveryState[state.upper()])


def _to_nanos(at: datetime) -> int:
    # The column holds no years before 1678 or after 2261, and no event is that far away.
    return min(max(SourceTimestamp.from_datetime(at, version=0).nanos, -_MOST_NANOS), _MOST_NANOS)


def _to_encodable(text: str) -> str:
    """The text as a database takes it; an argument that is not UTF-8 matches nothing."""
    return text.encode(errors="backslashreplace").decode()
