"""The body of a webhook: exactly six fields, and the same bytes in each attempt."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from iscp_dagster.events.hysteresis import EventType
from iscp_dagster.events.keys import format_micros
from iscp_dagster.events.timestamps import SourceTimestamp
from iscp_dagster.model.errors import SchemaError
from iscp_dagster.model.moment import EPOCH

EXACT = 2**53 - 1
"""The greatest whole number that every reader of JSON keeps."""


@dataclass(frozen=True, kw_only=True)
class TriggerEvent:
    """What a webhook reports: the trigger, MATCH or UNMATCH, and the row.

    `timestamp` is when the event was recorded, aware; `source_timestamp` when the row changed.
    """

    event_id: str
    event_type: EventType
    trigger_name: str
    timestamp: datetime
    source_timestamp: SourceTimestamp
    data: Mapping[str, Any]

    def encode_body(self) -> bytes:
        """JSON in UTF-8 of the six fields in this order; docs/event-ids.md describes each type.

        Raises SchemaError for a value that has no JSON form, naming its column.
        """
        fields = {
            "event_id": self.event_id,
            "event_type": EventType(self.event_type).value,
            "trigger_name": self.trigger_name,
            "timestamp": format_millis(self.timestamp),
            "source_timestamp": self.source_timestamp.text,
            "data": {name: to_json_value(value, column=name) for name, value in self.data.items()},
        }
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def format_millis(at: datetime) -> str:
    """An aware time as ISO 8601 in UTC, cut to milliseconds, with Z."""
    utc = at.astimezone(EPOCH.tzinfo).replace(tzinfo=None)
    return f"{utc.isoformat(timespec='milliseconds')}Z"


def to_json_value(value: object, *, column: str) -> object:
    """A column's value as JSON holds it. Raises SchemaError that names `column`."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        return value if abs(value) <= EXACT else str(value)
    if isinstance(value, list | tuple):
        return [to_json_value(element, column=f"{column}[]") for element in value]
    if isinstance(value, Mapping):
        return {
            str(name): to_json_value(field, column=f"{column}.{name}")
            for name, field in value.items()
        }
    return _to_json_scalar(value, column)


def _to_json_scalar(value: object, at: str) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else _format_not_finite(value)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        return format_micros(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise SchemaError(
        f"Column {at!r} holds a {type(value).__name__}, which has no form in JSON; leave the "
        "column out with columns=[...]."
    )


def _format_not_finite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
