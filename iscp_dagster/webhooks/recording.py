"""What a sender writes back: attempts, the states of deliveries, the endpoint's health."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from iscp_dagster.webhooks.answers import (
    AttemptOutcome,
    EndpointAnswer,
    EndpointHealth,
    MessageVerdict,
)
from iscp_dagster.webhooks.due_work import WebhookMessage
from iscp_dagster.webhooks.lanes import (
    build_number_query,
    lock_deliveries,
    promote_first_deliveries,
)
from iscp_dagster.webhooks.tables import (
    ENDPOINTS,
    IS_PENDING,
    ISCP_ATTEMPTS,
    ISCP_ENDPOINTS,
    ISCP_OUTBOX,
    OUTBOX,
    DeliveryState,
)
from sql_transactions.row_values import build_rows_table, escape_nul, make_insert

ACTIVE = "active"
_ENDS = {MessageVerdict.DELIVERED: DeliveryState.DELIVERED, MessageVerdict.DEAD: DeliveryState.DEAD}
_CHANGED = (OUTBOX.number, OUTBOX.state, OUTBOX.attempts, OUTBOX.next_at, OUTBOX.failed_at)


@dataclass(frozen=True, kw_only=True)
class EndpointState:
    """An endpoint as the outbox keeps it."""

    name: str
    state: str = ACTIVE
    """`active`, `paused` or `disabled`."""
    reason: str = ""
    changed_at: datetime | None = None
    health: EndpointHealth = field(default_factory=EndpointHealth)
    delivered_at: datetime | None = None
    seq: int = 0
    """Grows when a person pauses or resumes it."""

    @property
    def active(self) -> bool:
        return self.state == ACTIVE


@dataclass(frozen=True, kw_only=True)
class AttemptResult:
    """One attempt, and what follows from it."""

    message: WebhookMessage
    answer: EndpointAnswer
    outcome: AttemptOutcome
    at: datetime
    seconds: float
    halves: tuple[WebhookMessage, ...] = ()
    """The batches that a split batch is sent in."""


def record(
    connection: sa.Connection,
    endpoint: EndpointState,
    results: Sequence[AttemptResult],
    now: datetime,
) -> None:
    """Record attempts of an endpoint's messages, and the endpoint's health after the last.

    Idempotent for the events: what has ended stays as it is.
    """
    if results:
        rows = [row for result in results for row in _build_rows(result, now)]
        lanes = _update_deliveries(connection, endpoint.name, rows, now)
        promote_first_deliveries(connection, lanes)
        for half in (half for result in results for half in result.halves):
            _recompose_batch(connection, half)
        connection.execute(
            sa.insert(ISCP_ATTEMPTS),
            [_build_attempt_row(endpoint.name, result) for result in results],
        )
    delivered = any(result.answer.accepted for result in results)
    _write_endpoint(connection, endpoint, {"delivered_at": now} if delivered else {})


def _update_deliveries(
    connection: sa.Connection, endpoint: str, rows: Sequence[dict[str, Any]], now: datetime
) -> set[tuple[str, str]]:
    """Write the deliveries back; returns the lanes in which something ended."""
    lock_deliveries(
        connection,
        OUTBOX.number.in_(build_number_query(connection, (row["number"] for row in rows))),
    )
    updates = build_rows_table(connection.dialect, _CHANGED, rows)
    still_pending = updates.c.state < int(DeliveryState.DELIVERED)
    values = {
        "state": sa.case((still_pending, OUTBOX.state), else_=updates.c.state),
        "attempts": updates.c.attempts,
        "next_at": updates.c.next_at,
        "failed_at": updates.c.failed_at,
        "ended_at": sa.case((still_pending, None), else_=sa.literal(now, OUTBOX.ended_at.type)),
    }
    statement = sa.update(ISCP_OUTBOX).where(OUTBOX.number == updates.c.number, IS_PENDING)
    updated = connection.execute(
        statement.values(values).returning(OUTBOX.lane, OUTBOX.state)
    ).all()
    return {(endpoint, row.lane) for row in updated if row.state >= DeliveryState.DELIVERED}


def _recompose_batch(connection: sa.Connection, batch: WebhookMessage) -> None:
    numbers = build_number_query(connection, (delivery.number for delivery in batch.events))
    update = sa.update(ISCP_OUTBOX).where(OUTBOX.number.in_(numbers), IS_PENDING)
    connection.execute(update.values(batch_id=batch.id))


def _build_rows(result: AttemptResult, now: datetime) -> list[dict[str, Any]]:
    outcome = result.outcome
    # Which event of a split batch the attempt failed for is not known yet.
    counted = outcome.verdict is not MessageVerdict.SPLIT
    failed = counted and not result.answer.accepted
    return [
        {
            "number": delivery.number,
            "state": int(_ENDS.get(outcome.verdict, DeliveryState.NEXT)),
            "attempts": delivery.attempts + counted,
            "next_at": outcome.next_at or delivery.next_at,
            "failed_at": (delivery.failed_at or now) if failed else delivery.failed_at,
        }
        for delivery in result.message.events
    ]


def _build_attempt_row(endpoint: str, result: AttemptResult) -> dict[str, Any]:
    return {
        "message_id": result.message.id,
        "endpoint": endpoint,
        "at": result.at,
        "seconds": result.seconds,
        "events": len(result.message.events),
        "status": result.answer.status,
        "answer": escape_nul(result.answer.text),
        "verdict": result.outcome.verdict.value,
        "next_at": result.outcome.next_at,
    }


def _write_endpoint(
    connection: sa.Connection, endpoint: EndpointState, delivered: dict[str, Any]
) -> None:
    """Write the endpoint's health, unless a person changed the endpoint meanwhile."""
    # A person's pause prevails; it is written with a higher `seq`.
    unchanged = (ENDPOINTS.name == endpoint.name, ENDPOINTS.seq == endpoint.seq)
    values = _build_endpoint_values(endpoint) | delivered
    connection.execute(sa.update(ISCP_ENDPOINTS).where(*unchanged).values(values))


def _build_endpoint_values(endpoint: EndpointState) -> dict[str, Any]:
    return {
        "state": endpoint.state,
        "reason": endpoint.reason,
        "changed_at": endpoint.changed_at,
        "in_a_row": endpoint.health.consecutive_refusals,
        "failing_since": endpoint.health.failing_since,
    }


def add_endpoints(connection: sa.Connection, names: Sequence[str], now: datetime) -> None:
    """Insert the rows of endpoints that have none. Idempotent."""
    rows = [
        {"name": name, "delivered_at": None, "seq": 0}
        | _build_endpoint_values(EndpointState(name=name, changed_at=now))
        for name in sorted(names)
    ]
    if rows:
        insert = make_insert(connection.dialect, ISCP_ENDPOINTS).on_conflict_do_nothing()
        connection.execute(insert, rows)


def read_endpoints(
    connection: sa.Connection, names: Sequence[str] | None = None
) -> dict[str, EndpointState]:
    """The endpoints that have a row, by name; with `names`, only these."""
    query = sa.select(ISCP_ENDPOINTS).order_by(ENDPOINTS.name)
    if names is not None:
        query = query.where(ENDPOINTS.name.in_(names))
    return {row.name: _to_endpoint_state(row) for row in connection.execute(query)}


def set_endpoint_state(
    connection: sa.Connection, name: str, state: str, reason: str, now: datetime
) -> EndpointState:
    """Pause or resume an endpoint for a person; resuming restarts its retries at once."""
    add_endpoints(connection, [name], now)
    same_name = ENDPOINTS.name == name
    values: dict[str, Any] = {"state": state, "reason": reason, "changed_at": now}
    if state == ACTIVE:
        values |= {"in_a_row": 0, "failing_since": None}
        conditions = (OUTBOX.endpoint == name, IS_PENDING, OUTBOX.failed_at.is_not(None))
        retry = sa.update(ISCP_OUTBOX).where(*conditions)
        connection.execute(retry.values(next_at=now, attempts=0, failed_at=None))
    connection.execute(
        sa.update(ISCP_ENDPOINTS).where(same_name).values(values | {"seq": ENDPOINTS.seq + 1})
    )
    return read_endpoints(connection, [name])[name]


def _to_endpoint_state(row: sa.Row[Any]) -> EndpointState:
    return EndpointState(
        name=row.name,
        state=row.state,
        reason=row.reason,
        changed_at=row.changed_at,
        health=EndpointHealth(consecutive_refusals=row.in_a_row, failing_since=row.failing_since),
        delivered_at=row.delivered_at,
        seq=row.seq,
    )
