"""Ids of awakeables: `prom_1`, then base64url of the invocation's id and the entry's index."""

from __future__ import annotations

import struct

from durable_invocations.errors import ConfigError
from durable_invocations.protocol.base64url import from_base64url, to_base64url

PREFIX = "prom_1"
_INDEX = struct.Struct(">I")


def make_awakeable_id(invocation_id: bytes, index: int) -> str:
    """The id of the awakeable at `index` of the journal of an invocation (StartMessage.id)."""
    return PREFIX + to_base64url(invocation_id + _INDEX.pack(index))


def parse_awakeable_id(text: str) -> tuple[bytes, int]:
    """The invocation's id, and the index. Raises ConfigError if `text` is not such an id."""
    decoded = from_base64url(text.removeprefix(PREFIX)) if text.startswith(PREFIX) else None
    if decoded is None or len(decoded) <= _INDEX.size:
        raise ConfigError(f"{text!r} is not the id of an awakeable, such as {PREFIX}….")
    (index,) = _INDEX.unpack(decoded[-_INDEX.size :])
    return decoded[: -_INDEX.size], index
