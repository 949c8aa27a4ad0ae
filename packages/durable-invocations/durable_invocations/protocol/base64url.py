"""Base64 for URLs without padding; each text has one form."""

from __future__ import annotations

import base64
import binascii


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def decoded(text: str) -> bytes | None:
    """The bytes that `encoded` writes as `text`; None if there are none."""
    try:
        data = base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    except (binascii.Error, UnicodeEncodeError):
        return None
    return data if encoded(data) == text else None
