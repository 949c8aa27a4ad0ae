"""Events as the outbox takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from iscp_dagster.events.hysteresis import FiredEvent
from iscp_dagster.events.ids import IdScheme
from iscp_dagster.events.payload import TriggerEvent
from iscp_dagster.eventtriggers.images import OWNER
from iscp_dagster.model.declared.eventtriggers import Trigger
from iscp_dagster.webhooks.deliveries import PendingEvent


@dataclass(frozen=True, kw_only=True)
class PendingEventBuilder:
    """Gives a fired event its id and body, which are the same in every delivery attempt."""

    trigger: Trigger
    identity: Sequence[str]
    """The tenant and key columns, which every event has."""
    ids: IdScheme
    recorded: datetime
    """The bodies' `timestamp`."""

    def make_event(self, tenant: str, fired: FiredEvent) -> PendingEvent:
        """The event. Raises SchemaError for a value without a form in JSON."""
        name, key, at = self.trigger.name, fired.change.key, fired.timestamp
        event = TriggerEvent(
            event_id=self.ids.make_event_id(name, key, at),
            event_type=fired.type,
            trigger_name=name,
            timestamp=self.recorded,
            source_timestamp=at,
            data=select_payload(fired.change.row, self.trigger.columns, self.identity),
        )
        return PendingEvent(
            event_id=event.event_id,
            trigger=name,
            tenant=tenant,
            key=key,
            event_type=fired.type.value,
            source_timestamp=at,
            recorded=self.recorded,
            body=event.encode_body(),
            endpoints=self.trigger.endpoints,
        )


def select_payload(
    row: Mapping[str, Any], columns: Sequence[str], identity: Sequence[str]
) -> dict[str, Any]:
    """The row's columns that go into the event, in the row's order; `columns` empty: all."""
    selected = {*identity, *(columns or row)}
    return {name: value for name, value in row.items() if name in selected and name != OWNER}
