"""Eager state: what a handler knows of its object's state without asking the runtime."""

from __future__ import annotations

from collections.abc import Mapping

from durable_invocations.protocol.results import EMPTY, Result, Value, keys_value


class EagerState:
    """The state as the StartMessage tells it and the handler has changed it since.

    If it is partial, keys that it does not hold may be stored with the runtime. Each entry that
    changes the state must be reflected, also those that are replayed.
    """

    def __init__(self, held: Mapping[bytes, bytes], *, partial: bool) -> None:
        self._held: dict[bytes, bytes | None] = dict(held)
        self._partial = partial

    def get(self, key: bytes) -> Result | None:
        """The result of a GetState; None if the runtime must be asked."""
        if key not in self._held:
            return None if self._partial else EMPTY
        value = self._held[key]
        return EMPTY if value is None else Value(value=value)

    def keys(self) -> Result | None:
        """The result of a GetStateKeys; None if the runtime must be asked."""
        if self._partial:
            return None
        return keys_value(sorted(key for key, value in self._held.items() if value is not None))

    def set(self, key: bytes, value: bytes) -> None:
        self._held[key] = value

    def clear(self, key: bytes) -> None:
        self._held[key] = None

    def clear_all(self) -> None:
        self._held.clear()
        self._partial = False
