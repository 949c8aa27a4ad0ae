"""Rows and values as messages show them."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa

LONGEST = 200
"""Most characters of a row or value in a message."""


def format_row(row: pa.Table) -> str:
    """Show the first row's columns by name."""
    return _shorten_text({name: _to_printable(row[name][0]) for name in row.schema.names})


def format_value(value: Any) -> str:
    """Show one of Arrow's scalars."""
    return _shorten_text(_to_printable(value))


def _to_printable(scalar: Any) -> Any:
    try:
        value = scalar.as_py()
        return str(value) if isinstance(value, date | Decimal) else value
    except UnicodeDecodeError:
        is_text = pa.types.is_string(scalar.type) or pa.types.is_large_string(scalar.type)
        return scalar.cast(pa.binary()).as_py() if is_text else f"{scalar.type} that is not UTF-8"
    except (ValueError, OverflowError):
        return f"{scalar.type} {_format_far_time(scalar)}"


def _format_far_time(scalar: Any) -> str:
    """A time before the year 1 or after 9999, which Python does not have, as its number."""
    if not pa.types.is_temporal(scalar.type):
        return "with a time before the year 1 or after 9999"
    integer_type = pa.int32() if pa.types.is_date32(scalar.type) else pa.int64()
    return f"{scalar.cast(integer_type).as_py()} since 1970"


def _shorten_text(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
