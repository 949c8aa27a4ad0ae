"""Short names for events in tests of the outbox and the sender."""

import json
from datetime import timedelta

from iscp_dagster.events.timestamps import SourceTimestamp
from iscp_dagster.webhooks.answers import AttemptOutcome, EndpointAnswer, MessageVerdict
from iscp_dagster.webhooks.deliveries import PendingEvent
from iscp_dagster.webhooks.recording import AttemptResult
from runtime_support.manual_clock import NOON
from sql_transactions.engine import begin_transaction

DELIVERED = AttemptOutcome(verdict=MessageVerdict.DELIVERED)
DEAD = AttemptOutcome(verdict=MessageVerdict.DEAD)


def event(number, *, key=None, to=("alerts",), trigger="alarm", tenant="acme"):
    """Event number `number`, of a commit as many seconds after noon; by default of its own key."""
    at = NOON + timedelta(seconds=number)
    return PendingEvent(
        event_id=f"{trigger}-{number}",
        trigger=trigger,
        tenant=tenant,
        key=f"{tenant}/{number if key is None else key}",
        event_type="MATCH",
        source_timestamp=SourceTimestamp.from_datetime(at, version=number),
        recorded=at,
        body=json.dumps({"event_id": f"{trigger}-{number}", "text": "Füße \0"}).encode(),
        endpoints=tuple(to),
    )


def put(outbox, *events, **bounds):
    with begin_transaction(outbox.engine, writes=True) as connection:
        outbox.record_events(connection, events, bounds=bounds)


def again(outbox, seconds):
    next_at = outbox.clock() + timedelta(seconds=seconds)
    return AttemptOutcome(verdict=MessageVerdict.AGAIN, next_at=next_at)


def result(outbox, message, outcome=DELIVERED, status=200, text=""):
    """Return what came of an attempt that took a quarter of a second."""
    answer = EndpointAnswer(status=status, text=text)
    return AttemptResult(
        message=message, answer=answer, outcome=outcome, at=outbox.clock(), seconds=0.25
    )
