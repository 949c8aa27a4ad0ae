"""What people and pages are told of the outbox, and what they may have sent again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from itertools import product
from typing import Any

import sqlalchemy as sa

from iscp_dagster.events.timestamps import SourceTimestamp
from iscp_dagster.webhooks.claims import delivery
from iscp_dagster.webhooks.pending import Attempt, Delivery
from iscp_dagster.webhooks.tables import (
    ATTEMPTS,
    HAS_ENDED,
    IS_PENDING,
    ISCP_ATTEMPTS,
    ISCP_OUTBOX,
    OUTBOX,
    State,
)

_MOST_NANOS = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Chosen:
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
class Count:
    """How many deliveries of a trigger to an endpoint are in a state."""

    trigger: str
    endpoint: str
    state: str
    events: int
    oldest: datetime
    """When the first of them was recorded."""


def conditions(chosen: Chosen) -> list[sa.ColumnElement[bool]]:
    """The conditions that choose the deliveries."""
    columns = {
        "trigger": OUTBOX.trigger_name,
        "endpoint": OUTBOX.endpoint,
        "tenant": OUTBOX.tenant,
        "event_id": OUTBOX.event_id,
    }
    named = {column: getattr(chosen, name) for name, column in columns.items()}
    where: list[Any] = [
        column == _encodable(value) for column, value in named.items() if value is not None
    ]
    if chosen.state is not None:
        where.append(_in_state(chosen.state))
    if chosen.source_from is not None:
        where.append(OUTBOX.source_nanos >= _nanos(chosen.source_from))
    if chosen.source_to is not None:
        where.append(OUTBOX.source_nanos < _nanos(chosen.source_to))
    return where


def listed(connection: sa.Connection, chosen: Chosen, limit: int) -> list[Delivery]:
    """The deliveries recorded last, newest first."""
    found = sa.select(ISCP_OUTBOX).where(*conditions(chosen)).order_by(OUTBOX.number.desc())
    return [delivery(row) for row in connection.execute(found.limit(limit))]


def attempts(connection: sa.Connection, deliveries: Sequence[Delivery]) -> list[Attempt]:
    """The attempts of these deliveries, oldest first, those of their batches included."""
    ids = {each.event_id for each in deliveries} | {each.batch_id for each in deliveries}
    of = (
        ATTEMPTS.message_id.in_([id_ for id_ in ids if id_ is not None]),
        ATTEMPTS.endpoint.in_({each.endpoint for each in deliveries}),
    )
    told = [ATTEMPTS[each.name] for each in fields(Attempt)]
    found = sa.select(*told).where(*of).order_by(ATTEMPTS.number)
    return [Attempt(**row._asdict()) for row in connection.execute(found)]


def counts(connection: sa.Connection, trigger: str | None) -> list[Count]:
    """The deliveries by trigger, endpoint and state."""
    by = (OUTBOX.trigger_name, OUTBOX.endpoint, OUTBOX.state)
    where = () if trigger is None else (OUTBOX.trigger_name == trigger,)
    found = sa.select(*by, sa.func.count(), sa.func.min(OUTBOX.recorded)).where(*where)
    held: dict[tuple[str, str, str], Count] = {}
    for name, endpoint, state, events, oldest in connection.execute(found.group_by(*by)):
        label = State(state).label
        other = held.get((name, endpoint, label))
        held[name, endpoint, label] = Count(
            trigger=name,
            endpoint=endpoint,
            state=label,
            events=events + (other.events if other else 0),
            oldest=min(oldest, other.oldest) if other else oldest,
        )
    return [held[each] for each in sorted(held)]


def count_states(connection: sa.Connection, chosen: Chosen) -> dict[str, int]:
    """The chosen deliveries by state, 0 included."""
    found = dict.fromkeys((State.NEXT.label, State.DELIVERED.label, State.DEAD.label), 0)
    rows = sa.select(OUTBOX.state, sa.func.count()).where(*conditions(chosen))
    for state, number in connection.execute(rows.group_by(OUTBOX.state)):
        found[State(state).label] += number
    return found


def counted(
    connection: sa.Connection, trigger: str, endpoints: Sequence[str], most: int
) -> dict[str, int]:
    """The trigger's deliveries to these endpoints by state, each counted up to `most`.

    Quick, however many there are.
    """
    found = dict.fromkeys((State.NEXT.label, State.DELIVERED.label, State.DEAD.label), 0)
    for endpoint, state in product(endpoints, State):
        one = (OUTBOX.trigger_name == trigger, OUTBOX.endpoint == endpoint, OUTBOX.state == state)
        some = sa.select(sa.literal_column("1")).where(*one).limit(most).subquery()
        number = connection.scalar(sa.select(sa.func.count()).select_from(some)) or 0
        found[state.label] = min(found[state.label] + number, most)
    return found


def oldest(connection: sa.Connection, trigger: str, endpoints: Sequence[str]) -> datetime | None:
    """When the oldest pending delivery to these endpoints was recorded; None: nothing waits."""
    times = [
        connection.scalar(
            sa.select(sa.func.min(OUTBOX.recorded)).where(
                OUTBOX.trigger_name == trigger, OUTBOX.endpoint == endpoint, OUTBOX.state == state
            )
        )
        for endpoint, state in product(endpoints, (State.NEXT, State.BEHIND))
    ]
    return min((each for each in times if each is not None), default=None)


def prune(connection: sa.Connection, before: datetime, most: int) -> int:
    """Delete at most `most` deliveries that ended before, and attempts made before; how many."""
    old = sa.select(OUTBOX.number).where(HAS_ENDED, OUTBOX.ended_at < before).limit(most)
    gone = connection.execute(sa.delete(ISCP_OUTBOX).where(OUTBOX.number.in_(old))).rowcount
    made = sa.select(ATTEMPTS.number).where(ATTEMPTS.at < before).limit(most)
    tried = connection.execute(sa.delete(ISCP_ATTEMPTS).where(ATTEMPTS.number.in_(made))).rowcount
    return max(gone, tried)


def _in_state(state: str) -> sa.ColumnElement[bool]:
    if state == State.NEXT.label:
        return IS_PENDING
    return OUTBOX.state == int(State[state.upper()])


def _nanos(at: datetime) -> int:
    # Years before 1678 and after 2261 are beyond what the column holds, and so is no event.
    return min(max(SourceTimestamp.of(at, version=0).nanos, -_MOST_NANOS), _MOST_NANOS)


def _encodable(text: str) -> str:
    """The text as a database takes it; an argument of bytes that are no UTF-8 finds nothing."""
    return text.encode(errors="backslashreplace").decode()
