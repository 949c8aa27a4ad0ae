"""Short names for events in tests of the outbox and the sender."""

import json
from datetime import timedelta

from watches import NOON

from iscp_dagster.events.timestamps import SourceTimestamp
from iscp_dagster.webhooks.answers import Answer, Outcome, Verdict
from iscp_dagster.webhooks.pending import PendingEvent
from iscp_dagster.webhooks.recording import Result
from sql_transactions.engine import transaction

DELIVERED, DEAD = Outcome(verdict=Verdict.DELIVERED), Outcome(verdict=Verdict.DEAD)


def event(number, *, key=None, to=("alerts",), trigger="alarm", tenant="acme", type_="MATCH"):
    """Event number `number`, of a commit as many seconds after noon; by default of its own key."""
    at = NOON + timedelta(seconds=number)
    return PendingEvent(
        event_id=f"{trigger}-{number}",
        trigger=trigger,
        tenant=tenant,
        key=f"{tenant}/{number if key is None else key}",
        event_type=type_,
        source_timestamp=SourceTimestamp.of(at, version=number),
        recorded=at,
        body=json.dumps({"event_id": f"{trigger}-{number}", "text": "Füße \0"}).encode(),
        endpoints=tuple(to),
    )


def put(outbox, *events, **bounds):
    with transaction(outbox.engine, writes=True) as connection:
        outbox.put(connection, events, bounds=bounds)


def again(outbox, seconds):
    return Outcome(verdict=Verdict.AGAIN, next_at=outbox.clock() + timedelta(seconds=seconds))


def result(outbox, message, outcome=DELIVERED, status=200, text=""):
    """Return what came of an attempt that took a quarter of a second."""
    answer = Answer(status=status, text=text)
    return Result(message=message, answer=answer, outcome=outcome, at=outbox.clock(), seconds=0.25)
