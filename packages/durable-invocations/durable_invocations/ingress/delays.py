"""Reads how long a one-way call is delayed: `10s`, `1h 30m`, `PT10S`, or milliseconds."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal

from durable_invocations.durations import CENTURY
from durable_invocations.ingress.refusals import BAD, RefusedError

MOST = CENTURY * 1_000
"""Milliseconds: a longer delay is a mistake."""
_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_NAMES = {
    **dict.fromkeys(("ms", "msec", "millis"), "ms"),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), "h"),
    **dict.fromkeys(("d", "day", "days"), "d"),
    **dict.fromkeys(("w", "week", "weeks"), "w"),
}
_NUMBER = r"[0-9]{1,18}(?:\.[0-9]{1,9})?"
_PART = re.compile(rf"({_NUMBER})\s*([a-z]+)")
_PARTS = re.compile(rf"(?:{_NUMBER}\s*[a-z]+\s*)+")
# ISO 8601 without years and months, whose lengths differ.
_ISO = re.compile(
    rf"P(?:(?P<w>{_NUMBER})W)?(?:(?P<d>{_NUMBER})D)?"
    rf"(?:T(?:(?P<h>{_NUMBER})H)?(?:(?P<m>{_NUMBER})M)?(?:(?P<s>{_NUMBER})S)?)?"
)


def parse_delay(text: str) -> int:
    """The delay in milliseconds, rounded up. Raises RefusedError (400)."""
    duration = _parse_duration(text.strip())
    if duration is None:
        raise RefusedError(
            BAD, f"The delay {text!r} is invalid; write 10s, 1h 30m, PT10S, or milliseconds: 10000."
        )
    millis = int(duration.to_integral_value(ROUND_CEILING))
    if millis > MOST:
        raise RefusedError(BAD, f"The delay {text!r} is longer than a century; give a shorter one.")
    return millis


def _parse_duration(text: str) -> Decimal | None:
    if re.fullmatch(r"[0-9]{1,18}", text):
        return Decimal(text)
    if iso := _ISO.fullmatch(text.upper()):
        parts = {unit: value for unit, value in iso.groupdict().items() if value}
        return _sum_parts(list(parts.items())) if parts and not text.upper().endswith("T") else None
    if not _PARTS.fullmatch(text.lower()):
        return None
    pairs = [(_NAMES.get(unit), value) for value, unit in _PART.findall(text.lower())]
    recognized = [(unit, value) for unit, value in pairs if unit is not None]
    return _sum_parts(recognized) if len(recognized) == len(pairs) else None


def _sum_parts(parts: list[tuple[str, str]]) -> Decimal:
    return sum((Decimal(value) * _UNITS[unit] for unit, value in parts), Decimal(0))
