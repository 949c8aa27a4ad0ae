"""Events on their way: the outbox's pending events, deliveries and attempts."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime

from iscp_dagster.events.timestamps import SourceTimestamp
from iscp_dagster.model.errors import IscpError
from iscp_dagster.webhooks.tables import DeliveryState

LANE_DIGITS = 32


class OutboxFullError(IscpError):
    """So many events of a trigger wait for an endpoint that no more are taken; nothing was lost."""

    code = 1_800


@dataclass(frozen=True, kw_only=True)
class PendingEvent:
    """An event to deliver to each of its endpoints; its body is what every attempt sends."""

    event_id: str
    trigger: str
    tenant: str
    key: str
    """The event key (events.keys)."""
    event_type: str
    source_timestamp: SourceTimestamp
    recorded: datetime
    body: bytes
    """JSON in UTF-8."""
    endpoints: tuple[str, ...]

    @property
    def lane(self) -> str:
        """A digest of trigger, tenant and key, within which events are sent in order."""
        parts = json.dumps([self.trigger, self.tenant, self.key]).encode()
        return hashlib.sha256(parts).hexdigest()[:LANE_DIGITS]


@dataclass(frozen=True, kw_only=True)
class EventDelivery:
    """The delivery of one event to one endpoint, as the outbox keeps it."""

    number: int
    event_id: str
    endpoint: str
    lane: str
    """See `PendingEvent.lane`."""
    state: DeliveryState
    trigger: str
    tenant: str
    key: str
    event_type: str
    source_timestamp: SourceTimestamp
    recorded: datetime
    body: bytes
    attempts: int
    next_at: datetime
    """No attempt is made before; without meaning once it has ended."""
    failed_at: datetime | None
    """The first failure since it became pending."""
    ended_at: datetime | None
    batch_id: str | None

    @property
    def pending(self) -> bool:
        return self.state <= DeliveryState.BEHIND


@dataclass(frozen=True, kw_only=True)
class DeliveryAttempt:
    """One request that was sent, or could not be."""

    message_id: str
    """The webhook-id: of an event, or of a batch."""
    endpoint: str
    at: datetime
    seconds: float
    events: int
    status: int | None
    """None: there was no answer."""
    answer: str
    """The beginning of the answer, or why there was none."""
    verdict: str
    next_at: datetime | None
    """When the next attempt follows, if one does."""
