"""Statements that make deliveries pending, and keep one delivery of each lane next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from iscp_dagster.model.portions import split_into_portions
from iscp_dagster.webhooks.deliveries import OutboxFullError, PendingEvent
from iscp_dagster.webhooks.tables import (
    HAS_ENDED,
    IS_NEXT,
    IS_PENDING,
    ISCP_OUTBOX,
    OUTBOX,
    DeliveryState,
)
from sql_transactions.row_values import build_rows_table, escape_nul, make_insert

Lane = tuple[str, str]
"""An endpoint, and the digest of a trigger, tenant and key."""

ROWS_PER_STATEMENT = 1_000
BODIES_PER_STATEMENT = 16_000_000
"""Characters of bodies; PostgreSQL takes 256 MB of JSON at once."""
_PLACE = sa.column("place", sa.BigInteger)
_NAMES = [column.key for column in OUTBOX if column.key != "number"]


def put(
    connection: sa.Connection, events: Sequence[PendingEvent], bounds: Mapping[str, int], bound: int
) -> None:
    """Insert the events that are new, in their order, for each of their endpoints.

    Raises OutboxFullError if more than `bounds[endpoint]` (or `bound`) events of a trigger would
    be pending for an endpoint, unless none was: one iteration's events always fit by themselves.
    """
    rows = [row for event in events for row in _build_rows(event)]
    added = Counter(_insert(connection, rows))
    for (trigger, endpoint), count in sorted(added.items()):
        _check_room(connection, trigger, endpoint, count, bounds.get(endpoint, bound))
    promote_first_deliveries(connection, {(row["endpoint"], row["lane"]) for row in rows})


def promote_first_deliveries(connection: sa.Connection, lanes: Collection[Lane]) -> None:
    """Make the first pending delivery of each lane the next one, and only that.

    Others that end or add deliveries of the lanes wait until the caller's transaction ends.
    """
    if not lanes:
        return
    lane_rows = _build_lane_rows(connection, lanes)
    in_lanes = sa.tuple_(OUTBOX.endpoint, OUTBOX.lane).in_(sa.select(lane_rows))
    # Without the lock, a sender that ends a delivery would not see those that the caller adds.
    lock_deliveries(connection, in_lanes, IS_NEXT)
    earlier = ISCP_OUTBOX.alias("earlier")
    first = (
        sa.select(earlier.c.number)
        .where(earlier.c.endpoint == lane_rows.c.endpoint, earlier.c.lane == lane_rows.c.lane)
        .where(earlier.c.state <= sa.literal_column("1"))
        .order_by(earlier.c.number)
        .limit(1)
        .correlate(lane_rows)
        .scalar_subquery()
    )
    firsts = sa.select(first).select_from(lane_rows)
    demoted = sa.update(ISCP_OUTBOX).where(in_lanes, IS_NEXT, OUTBOX.number.not_in(firsts))
    promoted = sa.update(ISCP_OUTBOX).where(
        OUTBOX.number.in_(firsts), OUTBOX.state != DeliveryState.NEXT
    )
    connection.execute(demoted.values(state=int(DeliveryState.BEHIND)))
    connection.execute(promoted.values(state=int(DeliveryState.NEXT)))


def requeue_deliveries(
    connection: sa.Connection, where: Sequence[sa.ColumnElement[bool]], now: Any
) -> tuple[int, int]:
    """Make ended deliveries pending again, and pending ones due; returns how many of each."""
    hurry = sa.update(ISCP_OUTBOX).where(*where, IS_PENDING).values(next_at=now)
    hurried = connection.execute(hurry).rowcount
    reset = {"state": int(DeliveryState.BEHIND), "next_at": now, "attempts": 0}
    requeue = (
        sa.update(ISCP_OUTBOX)
        .where(*where, HAS_ENDED)
        .values(**reset, failed_at=None, ended_at=None, batch_id=None)
        .returning(OUTBOX.endpoint, OUTBOX.lane)
    )
    lanes = [(row.endpoint, row.lane) for row in connection.execute(requeue)]
    promote_first_deliveries(connection, set(lanes))
    return len(lanes), hurried


def lock_deliveries(connection: sa.Connection, *where: sa.ColumnElement[bool]) -> None:
    """Keep others from changing the deliveries until the transaction ends."""
    # On SQLite the transaction has the file to itself.
    if connection.dialect.name == "postgresql":
        # In order, so that two callers never wait for each other.
        query = sa.select(OUTBOX.number).where(*where).order_by(OUTBOX.number)
        connection.execute(query.with_for_update()).all()


def build_number_query(connection: sa.Connection, numbers: Iterable[int]) -> sa.Select[Any]:
    """The deliveries' numbers as a query; any number of them."""
    rows = [{"number": number} for number in numbers]
    return sa.select(build_rows_table(connection.dialect, [OUTBOX.number], rows))


def _build_lane_rows(connection: sa.Connection, lanes: Collection[Lane]) -> sa.FromClause:
    rows = [{"endpoint": endpoint, "lane": lane} for endpoint, lane in sorted(lanes)]
    return build_rows_table(connection.dialect, [OUTBOX.endpoint, OUTBOX.lane], rows)


def _insert(connection: sa.Connection, rows: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Insert the rows that are new; yields the trigger and endpoint of each."""
    for portion in split_into_portions(
        rows,
        most=ROWS_PER_STATEMENT,
        size=lambda row: len(row["body"]),
        most_size=BODIES_PER_STATEMENT,
    ):
        numbered = [row | {_PLACE.name: place} for place, row in enumerate(portion)]
        columns = [OUTBOX[name] for name in _NAMES]
        values = build_rows_table(connection.dialect, [*columns, _PLACE], numbered)
        query = sa.select(*(values.c[name] for name in _NAMES)).where(sa.true())
        insert = make_insert(connection.dialect, ISCP_OUTBOX).from_select(
            _NAMES, query.order_by(values.c[_PLACE.name])
        )
        statement = insert.on_conflict_do_nothing().returning(OUTBOX.trigger_name, OUTBOX.endpoint)
        yield from (tuple(row) for row in connection.execute(statement).all())


def _check_room(
    connection: sa.Connection, trigger: str, endpoint: str, added: int, bound: int
) -> None:
    query: sa.Select[Any] = (
        sa.select(sa.literal_column("1"))
        .where(OUTBOX.trigger_name == trigger, OUTBOX.endpoint == endpoint, IS_PENDING)
        .limit(bound + added + 1)
    )
    pending = connection.scalar(sa.select(sa.func.count()).select_from(query.subquery())) or 0
    if pending > bound and pending > added:
        raise OutboxFullError(
            f"Trigger {trigger!r}: {pending - added:,} events wait for endpoint {endpoint!r}, "
            f"which may have {bound:,}, and {added:,} more do not fit. See `iscp endpoint list`: "
            f"have its receiver accept them, resume it, or declare a larger pending=."
        )


def _build_rows(event: PendingEvent) -> Iterator[dict[str, Any]]:
    at = event.source_timestamp
    row = {
        "event_id": event.event_id,
        "lane": event.lane,
        "state": int(DeliveryState.BEHIND),
        "trigger_name": event.trigger,
        "tenant": escape_nul(event.tenant),
        "event_key": escape_nul(event.key),
        "event_type": event.event_type,
        "source_nanos": at.nanos,
        "source_version": at.version,
        "source_ordinal": at.ordinal,
        "recorded": event.recorded,
        "body": event.body.decode(),
        "next_at": event.recorded,
        "attempts": 0,
        "failed_at": None,
        "ended_at": None,
        "batch_id": None,
    }
    for endpoint in event.endpoints:
        yield row | {"endpoint": endpoint}
