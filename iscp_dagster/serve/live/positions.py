"""How far a subscriber has been told the changes of a tenant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

_OF_BASE = -(2**40)
"""The ordinal of the first of the rows that a history begins with."""


class Position(NamedTuple):
    """A place among one tenant's changes: those up to it, itself included, have been told.

    `ordinal` counts the tenant's changes in commit `version` from 0; -1: none of that commit.
    Below that, it counts the rows as of `version` that the tenant's history begins with.
    """

    version: int
    ordinal: int = -1

    @classmethod
    def after(cls, version: int) -> Position:
        """The position at which the whole commit has been told."""
        return cls(version + 1)

    @classmethod
    def in_base(cls, version: int, told: int) -> Position:
        """The position after `told` of the rows that the history begins with."""
        return cls(version, _OF_BASE + told)

    @property
    def base_told(self) -> int | None:
        """How many of those rows have been told; None if all."""
        if self == START:
            return 0
        return self.ordinal - _OF_BASE if self.ordinal < -1 else None


Positions = Mapping[str, Position]
"""By tenant."""

START = Position(-1)
"""Before a tenant's history, with the rows that it begins with."""


def is_kept(position: Position, begin: int | None) -> bool:
    """Whether all changes after the position are there if the history begins at `begin`.

    The history begins with the rows as of a commit; whoever was told that commit goes on from it.
    At START all of it is still to be told.
    """
    if begin is None or position == START:
        return True
    if position.base_told is not None:
        return position.version == begin
    return position >= Position.after(begin)
