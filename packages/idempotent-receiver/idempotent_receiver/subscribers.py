"""A subscriber takes each change of a row once, however often it connects again."""

from __future__ import annotations

from collections.abc import Hashable


class Newest:
    """The newest position of each key; what is not newer was taken before.

    A position is a change's `ts_timestamp`, as text or integer: within one key it grows with each
    commit. Not safe for threads.
    """

    def __init__(self) -> None:
        self._newest: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._newest)

    def takes(self, key: Hashable, ts_timestamp: str | int) -> bool:
        """Whether the change is newer than all taken of its key; it then counts as taken.

        Raises ValueError for a timestamp that is no whole number.
        """
        position = _position(ts_timestamp)
        if position <= self._newest.get(key, -1):
            return False
        self._newest[key] = position
        return True

    def reset(self) -> None:
        """Forget every key: a snapshot follows, and whatever it says holds."""
        self._newest.clear()

    def settle(self, ts_timestamp: str | int) -> int:
        """Forget keys that are at or before a position; returns how many.

        Right once a cursor is saved after which nothing at or before that position is told.
        """
        position = _position(ts_timestamp)
        settled = [key for key, newest in self._newest.items() if newest <= position]
        for key in settled:
            del self._newest[key]
        return len(settled)


def _position(said: str | int) -> int:
    # As text, "9" would be newer than "10".
    if isinstance(said, int) and not isinstance(said, bool):
        return said
    if isinstance(said, str) and said.isascii() and said.isdigit():
        return int(said)
    raise ValueError(f"ts_timestamp is {said!r}, not a whole number of nanoseconds, as sent.")
