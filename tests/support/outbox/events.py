"""Short names for events in tests of the outbox and the sender."""

import json
from datetime import timedelta

from watches import NOON

from iscp_dagster.events.timestamps import SourceTimestamp
from iscp_dagster.webhooks.pending import PendingEvent


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
