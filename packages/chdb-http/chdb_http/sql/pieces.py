"""Searches texts of any size without blocking the other threads.

A call in C keeps Python's lock until it returns; each here covers at most about `PIECE` characters.
"""

from __future__ import annotations

import re
from typing import AnyStr

PIECE = 1 << 12
# The longest match that is sure to be found across two pieces.
_OVERLAP = 1 << 6


def is_found(
    pattern: re.Pattern[AnyStr], text: AnyStr, begun: re.Pattern[AnyStr] | None = None
) -> bool:
    """True where the pattern matches; `begun` matches a piece that may end within a match.

    Matches of up to 64 characters are always found. For a longer one, True may only mean that one
    seems to begin.
    """
    last_start = max(len(text) - PIECE - _OVERLAP, 0)
    for start in range(0, max(len(text), 1), PIECE):
        end = start + PIECE + _OVERLAP
        if pattern.search(text, start, end) is not None:
            return True
        if begun and start < last_start and begun.search(text, start, end) is not None:
            return True
    return False


def remove_escapes(value: bytes) -> bytes:
    """The text without escapes: each backslash stands for the character after it."""
    parts, start = [], 0
    while (place := value.find(b"\\", start)) >= 0:
        parts += [value[start:place], value[place + 1 : place + 2] or b"\\"]
        start = place + 2
    return b"".join([*parts, value[start:]])
