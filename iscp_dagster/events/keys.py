"""The part of an event's id that names the row: docs/event-ids.md describes the encoding."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import TypeAlias

from iscp_dagster.model.errors import KeyColumnError
from iscp_dagster.model.moment import EPOCH

KeyValue: TypeAlias = str | int | bool | float | Decimal | date | datetime | bytes
"""What a key column may hold, as Arrow returns it."""


def make_event_key(tenant: str | None, values: Sequence[KeyValue]) -> str:
    """The text that names one row of one tenant; no two rows of a table have the same.

    `tenant` is None for a table without a tenant column. Such a table's only key value is written
    as it is; every other key as a JSON array of texts, the tenant first (null if there is none).
    Raises KeyColumnError for a key without values, and for a value that is null or not a scalar.
    """
    texts = [format_key_value(value) for value in values]
    if not texts:
        raise KeyColumnError("A change has no key value; give its source table a key.")
    if tenant is None and len(texts) == 1:
        return texts[0]
    return json.dumps([tenant, *texts], ensure_ascii=False, separators=(",", ":"))


def format_key_value(value: object) -> str:
    """A key column's value as text; values of one column that are equal have one text."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    return _format_other(value)


def _format_other(value: object) -> str:
    if isinstance(value, Decimal | float):
        return _format_number(value)
    if isinstance(value, datetime):
        return format_micros(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    raise KeyColumnError(
        f"A key value is {value!r} ({type(value).__name__}); a key is text, a number, a boolean, "
        "a date, a time or bytes, and never null. Repair the row, or declare another key."
    )


def _format_number(value: Decimal | float) -> str:
    """A number without needless zeros, so that a widened column keeps its keys' texts."""
    if value == 0:
        return "0"
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_micros(value: datetime) -> str:
    """ISO 8601 with microseconds; an aware time in UTC with Z, a naive one without zone."""
    if value.tzinfo is None:
        return value.isoformat(timespec="microseconds")
    utc = value.astimezone(EPOCH.tzinfo).replace(tzinfo=None)
    return f"{utc.isoformat(timespec='microseconds')}Z"
