"""Where an action's deletion vector is stored (Delta protocol, "Deletion Vector Descriptor")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
UUID_LENGTH = 20
GROUP = 5


def vector_file(action: Mapping[str, Any]) -> str | None:
    """The file's path, relative to the table or absolute; None without one (inline, no vector)."""
    descriptor = action.get("deletionVector") or {}
    where = descriptor.get("pathOrInlineDv", "")
    if descriptor.get("storageType") == "p":
        return str(where)
    if descriptor.get("storageType") != "u":
        return None
    prefix, name = where[:-UUID_LENGTH], decode_uuid(where[-UUID_LENGTH:])
    return f"{prefix}/deletion_vector_{name}.bin" if prefix else f"deletion_vector_{name}.bin"


def decode_uuid(text: str) -> UUID:
    """A UUID of 20 characters in Z85: big-endian groups of five characters for four bytes."""
    groups = [text[start : start + GROUP] for start in range(0, len(text), GROUP)]
    return UUID(bytes=b"".join(_number(group).to_bytes(4, "big") for group in groups))


def _number(group: str) -> int:
    number = 0
    for character in group:
        number = number * len(Z85) + Z85.index(character)
    return number
