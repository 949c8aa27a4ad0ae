"""Ids of invocations: 16 random bytes, for people `inv_1` and base64url."""

from __future__ import annotations

import secrets

from durable_invocations.errors import ConfigError
from durable_invocations.protocol.base64url import from_base64url, to_base64url

PREFIX = "inv_1"
BYTES = 16


def make_id() -> bytes:
    return secrets.token_bytes(BYTES)


def format_id(invocation_id: bytes) -> str:
    """The id for people and URLs (StartMessage.debug_id)."""
    return PREFIX + to_base64url(invocation_id)


def parse_id(text: str) -> bytes:
    """The id's bytes. Raises ConfigError if `text` is not an invocation's id."""
    decoded = from_base64url(text.removeprefix(PREFIX)) if text.startswith(PREFIX) else None
    if decoded is None or len(decoded) != BYTES:
        raise ConfigError(
            f"{text!r} is not the id of an invocation, which is {PREFIX} and 22 characters."
        )
    return decoded
