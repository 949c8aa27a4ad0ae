"""Reads how long a one-way call is delayed: `10s`, `1h 30m`, `PT10S`, or milliseconds."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal

from durable_invocations.durations import CENTURY
from durable_invocations.ingress.refusals import BAD, RefusedError

MOST = CENTURY * 1_000
"""Milliseconds: what is due later than that is a mistake."""
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


def milliseconds(text: str) -> int:
    """The delay in milliseconds, rounded up. Raises RefusedError (400)."""
    found = _read(text.strip())
    if found is None:
        raise RefusedError(
            BAD, f"The delay {text!r} is not one; write 10s, 1h 30m, PT10S, or milliseconds: 10000."
        )
    whole = int(found.to_integral_value(ROUND_CEILING))
    if whole > MOST:
        raise RefusedError(BAD, f"The delay {text!r} is longer than a century; give a shorter one.")
    return whole


def _read(text: str) -> Decimal | None:
    if re.fullmatch(r"[0-9]{1,18}", text):
        return Decimal(text)
    if iso := _ISO.fullmatch(text.upper()):
        parts = {unit: value for unit, value in iso.groupdict().items() if value}
        return _summed(list(parts.items())) if parts and not text.upper().endswith("T") else None
    if not _PARTS.fullmatch(text.lower()):
        return None
    named = [(_NAMES.get(unit), value) for value, unit in _PART.findall(text.lower())]
    known = [(unit, value) for unit, value in named if unit is not None]
    return _summed(known) if len(known) == len(named) else None


def _summed(parts: list[tuple[str, str]]) -> Decimal:
    return sum((Decimal(value) * _UNITS[unit] for unit, value in parts), Decimal(0))
