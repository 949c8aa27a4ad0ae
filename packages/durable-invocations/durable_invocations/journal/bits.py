"""Sets of entry indexes as whole numbers, one bit an index: a copy costs next to nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def bit(index: int) -> int:
    return 1 << index


def of(indexes: Iterable[int]) -> int:
    held = 0
    for index in indexes:
        held |= 1 << index
    return held


def has(held: int, index: int) -> bool:
    return bool(held >> index & 1)


def up_to(index: int) -> int:
    """All indexes from 0 to this one."""
    return (1 << index + 1) - 1


def each(held: int) -> Iterator[int]:
    """The indexes in ascending order."""
    while held:
        lowest = held & -held
        yield lowest.bit_length() - 1
        held ^= lowest
