"""Base64 for URLs without padding; each text has one form."""

from __future__ import annotations

import base64
import binascii


def to_base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def from_base64url(text: str) -> bytes | None:
    """The bytes that `to_base64url` writes as `text`; None if there are none."""
    try:
        data = base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    except (binascii.Error, UnicodeEncodeError):
        return None
    return data if to_base64url(data) == text else None
