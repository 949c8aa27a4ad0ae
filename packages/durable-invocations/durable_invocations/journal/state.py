"""Eager state: what a handler knows of its object's state without a request to the runtime."""

from __future__ import annotations

from collections.abc import Mapping

from durable_invocations.protocol.results import EMPTY, Result, Value, make_keys_value


class EagerState:
    """The state in the StartMessage, with the handler's changes since.

    If it is partial, the runtime may store more keys. Apply each entry that changes the state,
    replayed ones too.
    """

    def __init__(self, values: Mapping[bytes, bytes], *, partial: bool) -> None:
        self._values: dict[bytes, bytes | None] = dict(values)
        self._partial = partial

    def get(self, key: bytes) -> Result | None:
        """The result of a GetState; None if only the runtime knows."""
        if key not in self._values:
            return None if self._partial else EMPTY
        value = self._values[key]
        return EMPTY if value is None else Value(value=value)

    def keys(self) -> Result | None:
        """The result of a GetStateKeys; None if only the runtime knows."""
        if self._partial:
            return None
        return make_keys_value(
            sorted(key for key, value in self._values.items() if value is not None)
        )

    def set(self, key: bytes, value: bytes) -> None:
        self._values[key] = value

    def clear(self, key: bytes) -> None:
        self._values[key] = None

    def clear_all(self) -> None:
        self._values.clear()
        self._partial = False
