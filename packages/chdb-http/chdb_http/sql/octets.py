"""Text of requests: usually UTF-8; any other bytes pass through unchanged."""

from __future__ import annotations

import re

_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")


def to_text(data: bytes) -> str:
    """Decode bytes, UTF-8 or not; `to_bytes` restores them exactly."""
    return data.decode("utf-8", "surrogateescape")


def to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def from_header(value: str) -> str:
    """A header's text: it comes as Latin-1, clients send UTF-8."""
    return to_text(value.encode("latin-1"))


def to_header(value: str) -> bytes:
    """A header's value: on one line, without blanks at its ends (RFC 9110, section 5.5)."""
    return to_bytes(_CONTROLS.sub(" ", value).strip(" "))


def has_controls(text: str) -> bool:
    """True for control characters such as line breaks, which would end a header early."""
    return _CONTROLS.search(text) is not None
