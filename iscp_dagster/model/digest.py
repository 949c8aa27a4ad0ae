"""Short digests that distinguish values, for a cursor that holds thousands of them."""

from __future__ import annotations

import base64
import hashlib

BYTES = 4


def compute_digest(text: str) -> str:
    """Six letters, digits, `-` or `_`; two texts collide once in four billion."""
    digest = hashlib.blake2b(text.encode(), digest_size=BYTES).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
