"""Ids by which others complete an awakeable: `prom_1`, then base64url of invocation and index."""

from __future__ import annotations

import struct

from durable_invocations.errors import ConfigError
from durable_invocations.protocol.base64url import decoded, encoded

PREFIX = "prom_1"
_INDEX = struct.Struct(">I")


def awakeable_id(invocation_id: bytes, index: int) -> str:
    """The id of the awakeable at `index` of the journal of an invocation (StartMessage.id)."""
    return PREFIX + encoded(invocation_id + _INDEX.pack(index))


def parsed(text: str) -> tuple[bytes, int]:
    """The invocation's id, and the index. Raises ConfigError if `text` is no such id."""
    held = decoded(text.removeprefix(PREFIX)) if text.startswith(PREFIX) else None
    if held is None or len(held) <= _INDEX.size:
        raise ConfigError(f"{text!r} is no awakeable's id, which a handler got as {PREFIX}….")
    (index,) = _INDEX.unpack(held[-_INDEX.size :])
    return held[: -_INDEX.size], index
