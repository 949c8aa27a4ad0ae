"""Short names for events in tests of the outbox and the sender."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

from iscp_dagster.events.timestamps import SourceTimestamp
from iscp_dagster.webhooks.pending import PendingEvent

NOON = datetime(2025, 6, 18, 12, tzinfo=timezone.utc)


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


class Watch:
    """A clock that only a test moves, in seconds after noon."""

    def __init__(self, seconds=0.0):
        self.now = NOON + timedelta(seconds=seconds)

    def __call__(self):
        return self.now

    def move(self, seconds):
        self.now += timedelta(seconds=seconds)
