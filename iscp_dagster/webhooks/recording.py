"""What a sender writes back: the attempts, what became of the events, how the endpoint is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from iscp_dagster.webhooks.answers import Answer, Health, Outcome, Verdict
from iscp_dagster.webhooks.claims import Message
from iscp_dagster.webhooks.putting import elect, lock, numbers
from iscp_dagster.webhooks.tables import (
    ENDPOINTS,
    IS_PENDING,
    ISCP_ATTEMPTS,
    ISCP_ENDPOINTS,
    ISCP_OUTBOX,
    OUTBOX,
    State,
)
from sql_transactions.given import given, insert_into, without_nul

ACTIVE = "active"
_ENDS = {Verdict.DELIVERED: State.DELIVERED, Verdict.DEAD: State.DEAD}
_CHANGED = (OUTBOX.number, OUTBOX.state, OUTBOX.attempts, OUTBOX.next_at, OUTBOX.failed_at)


@dataclass(frozen=True, kw_only=True)
class EndpointState:
    """An endpoint as the outbox has it."""

    name: str
    state: str = ACTIVE
    """`active`, `paused` or `disabled`."""
    reason: str = ""
    changed_at: datetime | None = None
    health: Health = field(default_factory=Health)
    delivered_at: datetime | None = None
    seq: int = 0
    """Grows when a person pauses or resumes it."""

    @property
    def active(self) -> bool:
        return self.state == ACTIVE


@dataclass(frozen=True, kw_only=True)
class Result:
    """One attempt, and what follows from it."""

    message: Message
    answer: Answer
    outcome: Outcome
    at: datetime
    seconds: float
    halves: tuple[Message, ...] = ()
    """The batches that a split one's events are sent in."""


def record(
    connection: sa.Connection,
    endpoint: EndpointState,
    results: Sequence[Result],
    now: datetime,
) -> None:
    """Record attempts of an endpoint's messages, and the endpoint's health after the last.

    Idempotent for the events: what has ended stays as it is.
    """
    if results:
        rows = [row for each in results for row in _rows(each, now)]
        lanes = _ended(connection, endpoint.name, rows, now)
        elect(connection, lanes)
        for half in (half for each in results for half in each.halves):
            _recompose(connection, half)
        connection.execute(sa.insert(ISCP_ATTEMPTS), [_attempt(endpoint.name, e) for e in results])
    delivered = any(each.answer.accepted for each in results)
    _keep_health(connection, endpoint, {"delivered_at": now} if delivered else {})


def _ended(
    connection: sa.Connection, endpoint: str, rows: Sequence[dict[str, Any]], now: datetime
) -> set[tuple[str, str]]:
    """Write the deliveries back; returns the lanes in which something ended."""
    lock(connection, OUTBOX.number.in_(numbers(connection, (row["number"] for row in rows))))
    new = given(connection.dialect, _CHANGED, rows)
    unended = new.c.state < int(State.DELIVERED)
    values = {
        "state": sa.case((unended, OUTBOX.state), else_=new.c.state),
        "attempts": new.c.attempts,
        "next_at": new.c.next_at,
        "failed_at": new.c.failed_at,
        "ended_at": sa.case((unended, None), else_=sa.literal(now, OUTBOX.ended_at.type)),
    }
    changed = sa.update(ISCP_OUTBOX).where(OUTBOX.number == new.c.number, IS_PENDING)
    done = connection.execute(changed.values(values).returning(OUTBOX.lane, OUTBOX.state)).all()
    return {(endpoint, row.lane) for row in done if row.state >= State.DELIVERED}


def _recompose(connection: sa.Connection, batch: Message) -> None:
    numbered = numbers(connection, (each.number for each in batch.events))
    mine = sa.update(ISCP_OUTBOX).where(OUTBOX.number.in_(numbered), IS_PENDING)
    connection.execute(mine.values(batch_id=batch.id))


def _rows(result: Result, now: datetime) -> list[dict[str, Any]]:
    outcome = result.outcome
    # Which event of a split batch the attempt failed for is not known yet.
    counted = outcome.verdict is not Verdict.SPLIT
    failed = counted and not result.answer.accepted
    return [
        {
            "number": each.number,
            "state": int(_ENDS.get(outcome.verdict, State.NEXT)),
            "attempts": each.attempts + counted,
            "next_at": outcome.next_at or each.next_at,
            "failed_at": (each.failed_at or now) if failed else each.failed_at,
        }
        for each in result.message.events
    ]


def _attempt(endpoint: str, result: Result) -> dict[str, Any]:
    return {
        "message_id": result.message.id,
        "endpoint": endpoint,
        "at": result.at,
        "seconds": result.seconds,
        "events": len(result.message.events),
        "status": result.answer.status,
        "answer": without_nul(result.answer.text),
        "verdict": result.outcome.verdict.value,
        "next_at": result.outcome.next_at,
    }


def _keep_health(
    connection: sa.Connection, endpoint: EndpointState, delivered: dict[str, Any]
) -> None:
    """Write what the attempts amount to, unless a person changed the endpoint meanwhile."""
    # A person's pause stands; it is written with a higher `seq`.
    unchanged = (ENDPOINTS.name == endpoint.name, ENDPOINTS.seq == endpoint.seq)
    values = _values(endpoint) | delivered
    connection.execute(sa.update(ISCP_ENDPOINTS).where(*unchanged).values(values))


def _values(endpoint: EndpointState) -> dict[str, Any]:
    return {
        "state": endpoint.state,
        "reason": endpoint.reason,
        "changed_at": endpoint.changed_at,
        "in_a_row": endpoint.health.in_a_row,
        "failing_since": endpoint.health.failing_since,
    }


def add_endpoints(connection: sa.Connection, names: Sequence[str], now: datetime) -> None:
    """Make the rows of endpoints that have none. Idempotent."""
    rows = [
        {"name": name, "delivered_at": None, "seq": 0}
        | _values(EndpointState(name=name, changed_at=now))
        for name in sorted(names)
    ]
    if rows:
        insert = insert_into(connection.dialect, ISCP_ENDPOINTS).on_conflict_do_nothing()
        connection.execute(insert, rows)


def endpoints(
    connection: sa.Connection, names: Sequence[str] | None = None
) -> dict[str, EndpointState]:
    """The endpoints that have a row, by name; with `names`, of these."""
    chosen = sa.select(ISCP_ENDPOINTS).order_by(ENDPOINTS.name)
    if names is not None:
        chosen = chosen.where(ENDPOINTS.name.in_(names))
    return {row.name: _endpoint(row) for row in connection.execute(chosen)}


def change(
    connection: sa.Connection, name: str, state: str, reason: str, now: datetime
) -> EndpointState:
    """Have a person pause or resume an endpoint; resuming begins its retries anew, at once."""
    add_endpoints(connection, [name], now)
    mine = ENDPOINTS.name == name
    values: dict[str, Any] = {"state": state, "reason": reason, "changed_at": now}
    if state == ACTIVE:
        values |= {"in_a_row": 0, "failing_since": None}
        tried = (OUTBOX.endpoint == name, IS_PENDING, OUTBOX.failed_at.is_not(None))
        anew = sa.update(ISCP_OUTBOX).where(*tried)
        connection.execute(anew.values(next_at=now, attempts=0, failed_at=None))
    connection.execute(
        sa.update(ISCP_ENDPOINTS).where(mine).values(values | {"seq": ENDPOINTS.seq + 1})
    )
    return endpoints(connection, [name])[name]


def _endpoint(row: sa.Row[Any]) -> EndpointState:
    return EndpointState(
        name=row.name,
        state=row.state,
        reason=row.reason,
        changed_at=row.changed_at,
        health=Health(in_a_row=row.in_a_row, failing_since=row.failing_since),
        delivered_at=row.delivered_at,
        seq=row.seq,
    )
