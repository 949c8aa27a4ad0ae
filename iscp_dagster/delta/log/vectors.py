"""Where an action's deletion vector is stored (Delta protocol, "Deletion Vector Descriptor")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
UUID_LENGTH = 20
GROUP = 5


def get_vector_path(action: Mapping[str, Any]) -> str | None:
    """The file's path, relative to the table or absolute; None without one (inline, no vector)."""
    descriptor = action.get("deletionVector") or {}
    path = descriptor.get("pathOrInlineDv", "")
    if descriptor.get("storageType") == "p":
        return str(path)
    if descriptor.get("storageType") != "u":
        return None
    prefix, name = path[:-UUID_LENGTH], decode_uuid(path[-UUID_LENGTH:])
    return f"{prefix}/deletion_vector_{name}.bin" if prefix else f"deletion_vector_{name}.bin"


def decode_uuid(text: str) -> UUID:
    """A UUID of 20 characters in Z85: big-endian groups of five characters for four bytes."""
    groups = [text[start : start + GROUP] for start in range(0, len(text), GROUP)]
    return UUID(bytes=b"".join(_decode_group(group).to_bytes(4, "big") for group in groups))


def _decode_group(group: str) -> int:
    number = 0
    for character in group:
        number = number * len(Z85) + Z85.index(character)
    return number
