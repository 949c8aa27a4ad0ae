"""Time and identities, injected wherever they are needed."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

Clock = Callable[[], datetime]
"""Returns the current time, aware UTC."""

NewId = Callable[[], int]
"""Returns a new positive number below 2**63."""

_RANDOM_BITS = 20
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_LENGTH = re.compile(rf"(\d+(?:\.\d+)?)\s*({'|'.join(_SECONDS)})")
DURATION = "a number and ms, s, m, h, d or w, such as 90s or 1.5h"
"""How people write a length of time, for messages and help."""


def get_utc_now() -> datetime:
    """The current time: aware UTC, microseconds."""
    return datetime.now(timezone.utc)


def make_id() -> int:
    """Milliseconds since the epoch and 20 random bits: ordered by time, fits a bigint."""
    millis = time.time_ns() // 1_000_000
    return millis << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)


def parse_duration(text: object) -> timedelta | None:
    """The length of time in `text`, such as `90s`; None for other text, or if it is too long."""
    match = _LENGTH.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        return None
    try:
        return timedelta(seconds=float(match[1]) * _SECONDS[match[2]])
    except OverflowError:
        return None
