"""Ids of invocations: 16 random bytes, for people `inv_1` and base64url."""

from __future__ import annotations

import secrets

from durable_invocations.errors import ConfigError
from durable_invocations.protocol.base64url import decoded, encoded

PREFIX = "inv_1"
BYTES = 16


def new_id() -> bytes:
    return secrets.token_bytes(BYTES)


def shown(invocation_id: bytes) -> str:
    """The id as people and URLs have it (StartMessage.debug_id)."""
    return PREFIX + encoded(invocation_id)


def parsed(text: str) -> bytes:
    """The id's bytes. Raises ConfigError if `text` is no invocation's id."""
    held = decoded(text.removeprefix(PREFIX)) if text.startswith(PREFIX) else None
    if held is None or len(held) != BYTES:
        raise ConfigError(f"{text!r} is no invocation's id, which is {PREFIX} and 22 characters.")
    return held
