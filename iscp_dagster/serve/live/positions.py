"""How far a subscriber has received a tenant's changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

_OF_BASE = -(2**40)
"""The ordinal of the first of the rows that a history begins with."""


class ChangePosition(NamedTuple):
    """A place among one tenant's changes: all up to it, itself included, have been sent.

    `ordinal` counts the tenant's changes in commit `version` from 0; -1: none of that commit.
    Below that, it counts the rows as of `version` that the tenant's history begins with.
    """

    version: int
    ordinal: int = -1

    @classmethod
    def from_commit(cls, version: int) -> ChangePosition:
        """The position after the whole commit."""
        return cls(version + 1)

    @classmethod
    def from_base(cls, version: int, sent: int) -> ChangePosition:
        """The position after `sent` of the rows that the history begins with."""
        return cls(version, _OF_BASE + sent)

    @property
    def base_sent(self) -> int | None:
        """How many of those rows have been sent; None if all."""
        if self == START:
            return 0
        return self.ordinal - _OF_BASE if self.ordinal < -1 else None


Positions = Mapping[str, ChangePosition]
"""By tenant."""

START = ChangePosition(-1)
"""Before a tenant's history, with the rows that it begins with."""


def is_kept(position: ChangePosition, begin: int | None) -> bool:
    """Whether all changes after the position are kept if the history begins at `begin`.

    The history begins with the rows as of a commit; who has received that commit continues from it.
    At START all of it is still to be sent.
    """
    if begin is None or position == START:
        return True
    if position.base_sent is not None:
        return position.version == begin
    return position >= ChangePosition.from_commit(begin)
