"""Items in portions of limited number and size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def portioned(
    items: Iterable[T], size: Callable[[T], int], *, most: int, most_size: int
) -> Iterator[list[T]]:
    """Yield the items in order, at most `most` of them and `most_size` in all at a time.

    An item larger than `most_size` comes alone.
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
