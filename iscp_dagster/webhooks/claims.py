"""What a sender takes from the outbox: what is due, and in which messages it goes."""

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
from iscp_dagster.webhooks.pending import Delivery
from iscp_dagster.webhooks.putting import lock, numbers
from iscp_dagster.webhooks.tables import IS_NEXT, IS_PENDING, ISCP_OUTBOX, OUTBOX, State
from sql_transactions.given import given

BatchId = Callable[[Sequence[str]], str]
"""Makes a batch's id from the ids of its events, in their order."""

_BATCH_BODY = b'{"data": [%s]}'


@dataclass(frozen=True, kw_only=True)
class Message:
    """What one request carries: an event, or a batch of them."""

    id: str
    """The webhook-id, in every attempt."""
    events: tuple[Delivery, ...]
    batch: bool = False

    @property
    def body(self) -> bytes:
        bodies = [each.body for each in self.events]
        return _BATCH_BODY % b", ".join(bodies) if self.batch else bodies[0]

    @property
    def attempts(self) -> int:
        """How many were made before."""
        return max(each.attempts for each in self.events)

    @property
    def failed_at(self) -> datetime | None:
        """When the first of them failed."""
        return min((each.failed_at for each in self.events if each.failed_at), default=None)


def halves(message: Message, batch_id: BatchId) -> tuple[Message, Message]:
    """A batch of several events as two; only that of a single lane is cut within it.

    Otherwise one half might be sent with a lane's later events while the other waits.
    """
    ordered = sorted(message.events, key=lambda each: (each.lane, each.number))
    ends = list(accumulate(Counter(each.lane for each in ordered).values()))[:-1]
    middle = len(ordered) // 2
    cut = min(ends, key=lambda end: abs(end - middle), default=middle)
    return _batch_of(ordered[:cut], batch_id), _batch_of(ordered[cut:], batch_id)


def _batch_of(events: Sequence[Delivery], batch_id: BatchId) -> Message:
    held = tuple(sorted(events, key=attrgetter("number")))
    return Message(id=batch_id([each.event_id for each in held]), events=held, batch=True)


@dataclass(frozen=True, kw_only=True)
class Work:
    """Messages to send one after the other, until one must be tried again later."""

    messages: tuple[Message, ...]
    lanes: frozenset[str]
    """The lanes that nothing else may be sent of meanwhile."""


def claim(
    connection: sa.Connection, endpoint: str, now: datetime, *, room: int, busy: Collection[str]
) -> list[Work]:
    """What is due of at most `room` lanes, none of them `busy`; only reads.

    Events that follow in a lane come along where there is room.
    """
    heads = _heads(connection, endpoint, now, room, busy)
    share = room // len(heads) if heads else 0
    return [
        Work(
            messages=tuple(
                Message(id=each.event_id, events=(each,))
                for each in (head, *_followers(connection, endpoint, lane, head, share - 1))
            ),
            lanes=frozenset([lane]),
        )
        for lane, head in heads
    ]


def compose(
    connection: sa.Connection,
    endpoint: str,
    now: datetime,
    *,
    room: int,
    size: int,
    busy: Collection[str],
    batch_id: BatchId,
) -> list[Work]:
    """At most `room` batches of at most `size` events that are due, in lanes that are not `busy`.

    The composition is recorded in the caller's transaction, which must be committed before the
    first attempt; a batch that was sent before is composed as it was.
    """
    heads = _heads(connection, endpoint, now, room * size, busy)
    work: list[Work] = []
    taken = set(busy)
    for batch in dict.fromkeys(head.batch_id for _, head in heads):
        recorded = None if batch is None else _recorded(connection, endpoint, batch)
        if recorded is not None and not recorded.lanes & taken and len(work) < room:
            work.append(recorded)
            taken |= recorded.lanes
    fresh = [(lane, head) for lane, head in heads if head.batch_id is None and lane not in taken]
    while fresh and len(work) < room:
        some, fresh = fresh[:size], fresh[size:]
        work.append(_composed(connection, endpoint, some, size, batch_id))
    return work


def due(connection: sa.Connection, endpoint: str) -> datetime | None:
    """When the endpoint's next delivery is due, those under way included; None: nothing waits."""
    first = sa.select(OUTBOX.next_at).where(OUTBOX.endpoint == endpoint, IS_NEXT)
    found: datetime | None = connection.scalar(first.order_by(OUTBOX.next_at).limit(1))
    return found


def _recorded(connection: sa.Connection, endpoint: str, batch: str) -> Work:
    chosen = (OUTBOX.endpoint == endpoint, OUTBOX.batch_id == batch, IS_PENDING)
    rows = connection.execute(sa.select(ISCP_OUTBOX).where(*chosen).order_by(OUTBOX.number)).all()
    return _batch(batch, [(row.lane, delivery(row)) for row in rows])


def _composed(
    connection: sa.Connection,
    endpoint: str,
    heads: Sequence[tuple[str, Delivery]],
    size: int,
    batch_id: BatchId,
) -> Work:
    held = list(heads)
    for lane, head in heads:
        if len(held) == size:
            break
        more = _followers(connection, endpoint, lane, head, size - len(held))
        held += [(lane, each) for each in more]
    held.sort(key=lambda each: each[1].number)
    made = batch_id([each.event_id for _, each in held])
    numbered = numbers(connection, (each.number for _, each in held))
    lock(connection, OUTBOX.number.in_(numbered))
    recorded = sa.update(ISCP_OUTBOX).where(OUTBOX.number.in_(numbered), IS_PENDING)
    connection.execute(recorded.values(batch_id=made))
    return _batch(made, held)


def _batch(id_: str, held: Sequence[tuple[str, Delivery]]) -> Work:
    message = Message(id=id_, events=tuple(each for _, each in held), batch=True)
    return Work(messages=(message,), lanes=frozenset(lane for lane, _ in held))


def _heads(
    connection: sa.Connection, endpoint: str, now: datetime, room: int, busy: Collection[str]
) -> list[tuple[str, Delivery]]:
    """The lanes' next deliveries that are due, those that were due first first."""
    chosen = sa.select(ISCP_OUTBOX).where(
        OUTBOX.endpoint == endpoint, IS_NEXT, OUTBOX.next_at <= now
    )
    if busy:
        lanes = given(connection.dialect, [OUTBOX.lane], [{"lane": lane} for lane in sorted(busy)])
        chosen = chosen.where(OUTBOX.lane.not_in(sa.select(lanes)))
    # Only in this order does the index give the first without a look at all others.
    rows = connection.execute(chosen.order_by(OUTBOX.next_at).limit(room))
    return [(row.lane, delivery(row)) for row in rows]


def _followers(
    connection: sa.Connection, endpoint: str, lane: str, head: Delivery, most: int
) -> Iterator[Delivery]:
    """The deliveries after the head of a lane that are in no batch yet, at most `most`."""
    if most <= 0:
        return
    chosen = (
        sa.select(ISCP_OUTBOX)
        .where(OUTBOX.endpoint == endpoint, OUTBOX.lane == lane, IS_PENDING)
        .where(OUTBOX.number > head.number)
        .order_by(OUTBOX.number)
        .limit(most)
    )
    for row in connection.execute(chosen).all():
        if row.batch_id is not None:
            return
        yield delivery(row)


def delivery(row: sa.Row[Any]) -> Delivery:
    """The delivery in a row of the outbox."""
    return Delivery(
        number=row.number,
        event_id=row.event_id,
        endpoint=row.endpoint,
        lane=row.lane,
        state=State(row.state),
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
