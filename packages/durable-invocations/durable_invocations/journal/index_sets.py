"""Sets of entry indexes as integers, one bit per index: cheap to copy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def make_bit(index: int) -> int:
    return 1 << index


def from_indexes(indexes: Iterable[int]) -> int:
    mask = 0
    for index in indexes:
        mask |= 1 << index
    return mask


def has(mask: int, index: int) -> bool:
    return bool(mask >> index & 1)


def mask_up_to(index: int) -> int:
    """All indexes from 0 to this one."""
    return (1 << index + 1) - 1


def iter_indexes(mask: int) -> Iterator[int]:
    """The indexes in ascending order."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
