"""Statements that make deliveries pending, and keep one of each lane next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from iscp_dagster.model.portions import split_into_portions
from iscp_dagster.webhooks.pending import OutboxFullError, PendingEvent
from iscp_dagster.webhooks.tables import HAS_ENDED, IS_NEXT, IS_PENDING, ISCP_OUTBOX, OUTBOX, State
from sql_transactions.given import given, insert_into, without_nul

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
    """Insert the events that are not there yet, in their order, for each of their endpoints.

    Raises OutboxFullError if more than `bounds[endpoint]` (or `bound`) events of a trigger would
    be pending for an endpoint, unless none was: an iteration's events are never too many alone.
    """
    rows = [row for event in events for row in _rows(event)]
    added = Counter(_insert(connection, rows))
    for (trigger, endpoint), count in sorted(added.items()):
        _check_room(connection, trigger, endpoint, count, bounds.get(endpoint, bound))
    elect(connection, {(row["endpoint"], row["lane"]) for row in rows})


def elect(connection: sa.Connection, lanes: Collection[Lane]) -> None:
    """Make the first pending delivery of each lane the next one, and only that.

    Who else ends or adds deliveries of the lanes waits until the caller's transaction ends.
    """
    if not lanes:
        return
    listed = _listed(connection, lanes)
    in_them = sa.tuple_(OUTBOX.endpoint, OUTBOX.lane).in_(sa.select(listed))
    # Without the lock, one who ends a delivery would not see those that the caller adds.
    lock(connection, in_them, IS_NEXT)
    earlier = ISCP_OUTBOX.alias("earlier")
    first = (
        sa.select(earlier.c.number)
        .where(earlier.c.endpoint == listed.c.endpoint, earlier.c.lane == listed.c.lane)
        .where(earlier.c.state <= sa.literal_column("1"))
        .order_by(earlier.c.number)
        .limit(1)
        .correlate(listed)
        .scalar_subquery()
    )
    firsts = sa.select(first).select_from(listed)
    demoted = sa.update(ISCP_OUTBOX).where(in_them, IS_NEXT, OUTBOX.number.not_in(firsts))
    promoted = sa.update(ISCP_OUTBOX).where(OUTBOX.number.in_(firsts), OUTBOX.state != State.NEXT)
    connection.execute(demoted.values(state=int(State.BEHIND)))
    connection.execute(promoted.values(state=int(State.NEXT)))


def again(
    connection: sa.Connection, where: Sequence[sa.ColumnElement[bool]], now: Any
) -> tuple[int, int]:
    """Make ended deliveries pending again, and pending ones due; returns how many of each."""
    due = sa.update(ISCP_OUTBOX).where(*where, IS_PENDING).values(next_at=now)
    hurried = connection.execute(due).rowcount
    fresh = {"state": int(State.BEHIND), "next_at": now, "attempts": 0}
    revived = (
        sa.update(ISCP_OUTBOX)
        .where(*where, HAS_ENDED)
        .values(**fresh, failed_at=None, ended_at=None, batch_id=None)
        .returning(OUTBOX.endpoint, OUTBOX.lane)
    )
    lanes = [(row.endpoint, row.lane) for row in connection.execute(revived)]
    elect(connection, set(lanes))
    return len(lanes), hurried


def lock(connection: sa.Connection, *where: sa.ColumnElement[bool]) -> None:
    """Keep others from changing the deliveries until the transaction ends."""
    # On SQLite the transaction has the file to itself.
    if connection.dialect.name == "postgresql":
        # In order, so that two callers never wait for each other.
        held = sa.select(OUTBOX.number).where(*where).order_by(OUTBOX.number)
        connection.execute(held.with_for_update()).all()


def numbers(connection: sa.Connection, chosen: Iterable[int]) -> sa.Select[Any]:
    """The deliveries' numbers as a query; any number of them."""
    rows = [{"number": number} for number in chosen]
    return sa.select(given(connection.dialect, [OUTBOX.number], rows))


def _listed(connection: sa.Connection, lanes: Collection[Lane]) -> sa.FromClause:
    rows = [{"endpoint": endpoint, "lane": lane} for endpoint, lane in sorted(lanes)]
    return given(connection.dialect, [OUTBOX.endpoint, OUTBOX.lane], rows)


def _insert(connection: sa.Connection, rows: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Insert the rows that are not there; yields trigger and endpoint of each new one."""
    for some in split_into_portions(
        rows,
        most=ROWS_PER_STATEMENT,
        size=lambda row: len(row["body"]),
        most_size=BODIES_PER_STATEMENT,
    ):
        placed = [row | {_PLACE.name: place} for place, row in enumerate(some)]
        columns = [OUTBOX[name] for name in _NAMES]
        new = given(connection.dialect, [*columns, _PLACE], placed)
        chosen = sa.select(*(new.c[name] for name in _NAMES)).where(sa.true())
        insert = insert_into(connection.dialect, ISCP_OUTBOX).from_select(
            _NAMES, chosen.order_by(new.c[_PLACE.name])
        )
        done = insert.on_conflict_do_nothing().returning(OUTBOX.trigger_name, OUTBOX.endpoint)
        yield from (tuple(row) for row in connection.execute(done).all())


def _check_room(
    connection: sa.Connection, trigger: str, endpoint: str, added: int, bound: int
) -> None:
    some: sa.Select[Any] = (
        sa.select(sa.literal_column("1"))
        .where(OUTBOX.trigger_name == trigger, OUTBOX.endpoint == endpoint, IS_PENDING)
        .limit(bound + added + 1)
    )
    pending = connection.scalar(sa.select(sa.func.count()).select_from(some.subquery())) or 0
    if pending > bound and pending > added:
        raise OutboxFullError(
            f"Trigger {trigger!r}: {pending - added:,} events wait for endpoint {endpoint!r}, "
            f"which may have {bound:,}, and {added:,} more do not fit. See `iscp endpoint list`: "
            f"have its receiver accept them, resume it, or declare a larger pending=."
        )


def _rows(event: PendingEvent) -> Iterator[dict[str, Any]]:
    at = event.source_timestamp
    row = {
        "event_id": event.event_id,
        "lane": event.lane,
        "state": int(State.BEHIND),
        "trigger_name": event.trigger,
        "tenant": without_nul(event.tenant),
        "event_key": without_nul(event.key),
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
