"""Time and identities, injected wherever they are needed."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from datetime import datetime, timezone

Clock = Callable[[], datetime]
"""Gives the present as an aware UTC time."""

NewId = Callable[[], int]
"""Gives a positive number below 2**63 that was not given before."""

_RANDOM_BITS = 20


def utc_now() -> datetime:
    """The present, aware UTC, microseconds."""
    return datetime.now(timezone.utc)


def new_id() -> int:
    """Milliseconds since the epoch with 20 random bits behind: ordered by time, fits a bigint."""
    millis = time.time_ns() // 1_000_000
    return millis << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
