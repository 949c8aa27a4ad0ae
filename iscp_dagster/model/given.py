"""Tells a field that was given from one that was left empty, also where its default was given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class _Empty:
    """Nobody gave it."""

    def __repr__(self) -> str:
        return "EMPTY"


EMPTY: Any = _Empty()
"""What a field holds until `fill` puts its default there."""


def fill(record: Any, defaults: Mapping[str, Any]) -> None:
    """Put a frozen dataclass's `defaults` where it is EMPTY; its `given` names the other fields."""
    given = frozenset(name for name in defaults if getattr(record, name) is not EMPTY)
    for name in set(defaults) - given:
        object.__setattr__(record, name, defaults[name])
    object.__setattr__(record, "given", given)
