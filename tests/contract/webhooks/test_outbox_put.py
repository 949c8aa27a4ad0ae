"""Putting events into the outbox: once, in order, bounded, in the caller's transaction."""

import sqlalchemy as sa

from iscp_dagster.webhooks import lanes
from iscp_dagster.webhooks.deliveries import OutboxFullError
from iscp_dagster.webhooks.tables import ISCP_OUTBOX, OUTBOX, DeliveryState
from sql_transactions.engine import begin_transaction
from support.errors import raises_naming
from support.outbox.outbox_events import event, put


def list_rows(outbox):
    rows = sa.select(OUTBOX.event_id, OUTBOX.endpoint, OUTBOX.state).order_by(OUTBOX.number)
    with outbox.engine.connect() as connection:
        return [(row[0], row[1], DeliveryState(row[2]).name) for row in connection.execute(rows)]


def test_an_event_is_put_once_for_each_endpoint_and_only_the_first_of_a_key_is_next(outbox):
    put(outbox, event(1, key="a"), event(2, key="b", to=("alerts", "audit")))
    put(outbox, event(2, key="b", to=("alerts", "audit")), event(3, key="a"))
    assert list_rows(outbox) == [
        ("alarm-1", "alerts", "NEXT"),
        ("alarm-2", "alerts", "NEXT"),
        ("alarm-2", "audit", "NEXT"),
        ("alarm-3", "alerts", "BEHIND"),
    ]
    # Equal keys of two tenants or triggers do not wait for each other.
    put(outbox, event(4, key="a", tenant="globex"), event(5, key="a", trigger="other"))
    assert [state for *_, state in list_rows(outbox)[4:]] == ["NEXT"] * 2


def test_events_that_the_caller_rolls_back_are_not_put(outbox):
    with begin_transaction(outbox.engine, writes=True) as connection:
        outbox.record_events(connection, [event(1)])
        connection.get_transaction().rollback()
    assert list_rows(outbox) == []


def test_beyond_the_bound_of_a_trigger_nothing_is_taken_and_the_error_is_temporary(outbox):
    put(outbox, event(1), event(2), alerts=3)
    with raises_naming(OutboxFullError, "'alarm'", 2, "'alerts'", 3, "pending="):
        put(outbox, event(3), event(4), alerts=3)
    assert len(list_rows(outbox)) == 2
    assert not OutboxFullError("x").permanent
    put(outbox, event(1), event(3), alerts=3)
    put(outbox, *[event(number, trigger="other") for number in range(9)], alerts=3)
    assert len(list_rows(outbox)) == 12


def test_a_body_of_any_size_comes_back_byte_by_byte(outbox):
    events = [event(number) for number in range(2_500)]
    put(outbox, *events)
    with outbox.engine.connect() as connection:
        bodies = connection.scalars(sa.select(ISCP_OUTBOX.c.body).order_by(OUTBOX.number)).all()
    assert [body.encode() for body in bodies] == [each.body for each in events]


def test_large_bodies_are_put_few_at_a_time(outbox, monkeypatch):
    """PostgreSQL takes 256 MB of JSON at once, and events of any size must get in."""
    monkeypatch.setattr(lanes, "BODIES_PER_STATEMENT", 2 * len(event(1).body))
    statements = []
    sa.event.listen(
        outbox.engine, "before_cursor_execute", lambda *args: statements.append(args[2])
    )
    put(outbox, *map(event, range(1, 6)))
    assert [row[0] for row in list_rows(outbox)] == [f"alarm-{number}" for number in range(1, 6)]
    assert sum(each.startswith("INSERT INTO iscp_outbox") for each in statements) == 3
