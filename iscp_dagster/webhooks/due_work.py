"""What a sender takes from the outbox: the due deliveries, composed into messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from operator import attrgetter
from typing import Any

import sqlalchemy as sa

from iscp_dagster.events.timestamps import SourceTimestamp
from iscp_dagster.webhooks.deliveries import EventDelivery
from iscp_dagster.webhooks.lanes import build_number_query, lock_deliveries
from iscp_dagster.webhooks.tables import IS_NEXT, IS_PENDING, ISCP_OUTBOX, OUTBOX, DeliveryState
from sql_transactions.row_values import build_rows_table

BatchIdMaker = Callable[[Sequence[str]], str]
"""Makes a batch's id from the ids of its events, in their order."""

_BATCH_BODY = b'{"data": [%s]}'


@dataclass(frozen=True, kw_only=True)
class WebhookMessage:
    """What one request carries: an event, or a batch of them."""

    id: str
    """The webhook-id, in every attempt."""
    events: tuple[EventDelivery, ...]
    batch: bool = False

    @property
    def body(self) -> bytes:
        bodies = [delivery.body for delivery in self.events]
        return _BATCH_BODY % b", ".join(bodies) if self.batch else bodies[0]

    @property
    def attempts(self) -> int:
        """How many attempts were made before."""
        return max(delivery.attempts for delivery in self.events)

    @property
    def failed_at(self) -> datetime | None:
        """When the first of its events failed."""
        return min(
            (delivery.failed_at for delivery in self.events if delivery.failed_at), default=None
        )


def split_batch(
    message: WebhookMessage, make_batch_id: BatchIdMaker
) -> tuple[WebhookMessage, WebhookMessage]:
    """A batch of several events as two; cut within a lane only if it has no other.

    Otherwise one half might be sent with a lane's later events while the other waits.
    """
    ordered = sorted(message.events, key=lambda delivery: (delivery.lane, delivery.number))
    ends = list(accumulate(Counter(delivery.lane for delivery in ordered).values()))[:-1]
    middle = len(ordered) // 2
    cut = min(ends, key=lambda end: abs(end - middle), default=middle)
    return _make_batch(ordered[:cut], make_batch_id), _make_batch(ordered[cut:], make_batch_id)


def _make_batch(events: Sequence[EventDelivery], make_batch_id: BatchIdMaker) -> WebhookMessage:
    ordered = tuple(sorted(events, key=attrgetter("number")))
    return WebhookMessage(
        id=make_batch_id([delivery.event_id for delivery in ordered]), events=ordered, batch=True
    )


@dataclass(frozen=True, kw_only=True)
class SenderWork:
    """Messages to send one after the other, until one must be tried again later."""

    messages: tuple[WebhookMessage, ...]
    lanes: frozenset[str]
    """The lanes of which nothing else may be sent meanwhile."""


def read_due_work(
    connection: sa.Connection, endpoint: str, now: datetime, *, room: int, busy: Collection[str]
) -> list[SenderWork]:
    """The due work of at most `room` lanes that are not `busy`; only reads.

    It includes the following events of a lane if there is room.
    """
    heads = _read_lane_heads(connection, endpoint, now, room, busy)
    room_per_lane = room // len(heads) if heads else 0
    return [
        SenderWork(
            messages=tuple(
                WebhookMessage(id=delivery.event_id, events=(delivery,))
                for delivery in (
                    head,
                    *_read_followers(connection, endpoint, lane, head, room_per_lane - 1),
                )
            ),
            lanes=frozenset([lane]),
        )
        for lane, head in heads
    ]


def compose_due_batches(
    connection: sa.Connection,
    endpoint: str,
    now: datetime,
    *,
    room: int,
    size: int,
    busy: Collection[str],
    make_batch_id: BatchIdMaker,
) -> list[SenderWork]:
    """At most `room` batches of at most `size` events that are due, in lanes that are not `busy`.

    The composition is recorded in the caller's transaction, which must be committed before the
    first attempt; a batch that was sent before keeps its composition.
    """
    heads = _read_lane_heads(connection, endpoint, now, room * size, busy)
    work: list[SenderWork] = []
    busy_lanes = set(busy)
    for batch in dict.fromkeys(head.batch_id for _, head in heads):
        recorded = None if batch is None else _read_recorded_batch(connection, endpoint, batch)
        if recorded is not None and not recorded.lanes & busy_lanes and len(work) < room:
            work.append(recorded)
            busy_lanes |= recorded.lanes
    unbatched = [
        (lane, head) for lane, head in heads if head.batch_id is None and lane not in busy_lanes
    ]
    while unbatched and len(work) < room:
        portion, unbatched = unbatched[:size], unbatched[size:]
        work.append(_compose_batch(connection, endpoint, portion, size, make_batch_id))
    return work


def find_next_due(connection: sa.Connection, endpoint: str) -> datetime | None:
    """When the endpoint's next delivery is due, even if under way; None: nothing waits."""
    query = sa.select(OUTBOX.next_at).where(OUTBOX.endpoint == endpoint, IS_NEXT)
    due_at: datetime | None = connection.scalar(query.order_by(OUTBOX.next_at).limit(1))
    return due_at


def _read_recorded_batch(connection: sa.Connection, endpoint: str, batch: str) -> SenderWork:
    conditions = (OUTBOX.endpoint == endpoint, OUTBOX.batch_id == batch, IS_PENDING)
    rows = connection.execute(
        sa.select(ISCP_OUTBOX).where(*conditions).order_by(OUTBOX.number)
    ).all()
    return _make_batch_sequence(batch, [(row.lane, to_delivery(row)) for row in rows])


def _compose_batch(
    connection: sa.Connection,
    endpoint: str,
    heads: Sequence[tuple[str, EventDelivery]],
    size: int,
    make_batch_id: BatchIdMaker,
) -> SenderWork:
    members = list(heads)
    for lane, head in heads:
        if len(members) == size:
            break
        followers = _read_followers(connection, endpoint, lane, head, size - len(members))
        members += [(lane, delivery) for delivery in followers]
    members.sort(key=lambda member: member[1].number)
    new_id = make_batch_id([delivery.event_id for _, delivery in members])
    numbers = build_number_query(connection, (delivery.number for _, delivery in members))
    lock_deliveries(connection, OUTBOX.number.in_(numbers))
    update = sa.update(ISCP_OUTBOX).where(OUTBOX.number.in_(numbers), IS_PENDING)
    connection.execute(update.values(batch_id=new_id))
    return _make_batch_sequence(new_id, members)


def _make_batch_sequence(id_: str, members: Sequence[tuple[str, EventDelivery]]) -> SenderWork:
    message = WebhookMessage(id=id_, events=tuple(delivery for _, delivery in members), batch=True)
    return SenderWork(messages=(message,), lanes=frozenset(lane for lane, _ in members))


def _read_lane_heads(
    connection: sa.Connection, endpoint: str, now: datetime, room: int, busy: Collection[str]
) -> list[tuple[str, EventDelivery]]:
    """The lanes' next deliveries that are due, oldest due first."""
    query = sa.select(ISCP_OUTBOX).where(
        OUTBOX.endpoint == endpoint, IS_NEXT, OUTBOX.next_at <= now
    )
    if busy:
        lanes = build_rows_table(
            connection.dialect, [OUTBOX.lane], [{"lane": lane} for lane in sorted(busy)]
        )
        query = query.where(OUTBOX.lane.not_in(sa.select(lanes)))
    # Only in this order does the index return the first without reading all others.
    rows = connection.execute(query.order_by(OUTBOX.next_at).limit(room))
    return [(row.lane, to_delivery(row)) for row in rows]


def _read_followers(
    connection: sa.Connection, endpoint: str, lane: str, head: EventDelivery, most: int
) -> Iterator[EventDelivery]:
    """The deliveries after the head of a lane that are in no batch yet, at most `most`."""
    if most <= 0:
        return
    query = (
        sa.select(ISCP_OUTBOX)
        .where(OUTBOX.endpoint == endpoint, OUTBOX.lane == lane, IS_PENDING)
        .where(OUTBOX.number > head.number)
        .order_by(OUTBOX.number)
        .limit(most)
    )
    for row in connection.execute(query).all():
        if row.batch_id is not None:
            return
        yield to_delivery(row)


def to_delivery(row: sa.Row[Any]) -> EventDelivery:
    """The delivery in a row of the outbox."""
    return EventDelivery(
        number=row.number,
        event_id=row.event_id,
        endpoint=row.endpoint,
        lane=row.lane,
        state=DeliveryState(row.state),
        trigger=row.trigger_name,
        tenant=row.tenant,
        key=row.event_key,
        event_type=row.event_type,
        source_timestamp=SourceTimestamp(
            nanos=row.source_nanos, version=row.source_version, ordinal=row.source_ordinal
        ),
        recorded=row.recorded,
        body=row.body.encode(),
        attempts=row.attempts,
        next_at=row.next_at,
        failed_at=row.failed_at,
        ended_at=row.ended_at,
        batch_id=row.batch_id,
    )
