"""A subscriber takes each change of a row once, however often it connects again."""

from __future__ import annotations

from collections.abc import Hashable


class NewestPositions:
    """The newest position of each key; what is not newer was taken before.

    A position is a change's `ts_timestamp`, as text or integer: within one key it grows with each
    commit. Not safe for threads.
    """

    def __init__(self) -> None:
        self._newest: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._newest)

    def accept(self, key: Hashable, ts_timestamp: str | int) -> bool:
        """Whether the change is newer than all taken of its key; it then counts as taken.

        Raises ValueError for a timestamp that is not a whole number.
        """
        position = _parse_position(ts_timestamp)
        if position <= self._newest.get(key, -1):
            return False
        self._newest[key] = position
        return True

    def reset(self) -> None:
        """Forget every key: a snapshot follows, and its rows are current."""
        self._newest.clear()

    def forget_upto(self, ts_timestamp: str | int) -> int:
        """Forget keys that are at or before a position; returns how many.

        Call it once a cursor is saved after which nothing at or before that position is sent.
        """
        position = _parse_position(ts_timestamp)
        settled = [key for key, newest in self._newest.items() if newest <= position]
        for key in settled:
            del self._newest[key]
        return len(settled)


def _parse_position(position: str | int) -> int:
    # As text, "9" would be newer than "10".
    if isinstance(position, int) and not isinstance(position, bool):
        return position
    if isinstance(position, str) and position.isascii() and position.isdigit():
        return int(position)
    raise ValueError(f"ts_timestamp is {position!r}, not a whole number of nanoseconds, as sent.")
