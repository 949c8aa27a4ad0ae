"""How far a subscriber has been told the changes of a tenant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Position(NamedTuple):
    """A place among one tenant's changes: those up to it, itself included, have been told.

    `ordinal` counts the tenant's changes in commit `version` from 0; -1: none of that commit.
    """

    version: int
    ordinal: int = -1

    @classmethod
    def after(cls, version: int) -> Position:
        """The position at which the whole commit has been told."""
        return cls(version + 1)


Positions = Mapping[str, Position]
"""By tenant."""

START = Position(-1)
"""Before a tenant's history, with the rows that it begins with."""


def is_past(position: Position, begin: int | None) -> bool:
    """Whether changes after the position are still there if the history begins at `begin`.

    The history begins with the rows as of a commit; whoever was told that commit goes on from it.
    At START all of it is still to be told.
    """
    return begin is None or position == START or position >= Position.after(begin)
