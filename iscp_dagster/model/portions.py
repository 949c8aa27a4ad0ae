"""As many of something at a time as there is room for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def portioned(
    items: Iterable[T], size: Callable[[T], int], *, most: int, most_size: int
) -> Iterator[list[T]]:
    """The items in their order, so many and of such a size at a time at most.

    One that is larger than all may be goes alone.
    """
    some: list[T] = []
    total = 0
    for each in items:
        its = size(each)
        if some and (len(some) == most or total + its > most_size):
            yield some
            some, total = [], 0
        some.append(each)
        total += its
    if some:
        yield some
