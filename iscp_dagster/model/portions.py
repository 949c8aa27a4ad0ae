"""Items in portions of limited number and size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def split_into_portions(
    items: Iterable[T], *, most: int, size: Callable[[T], int] | None = None, most_size: int = 0
) -> Iterator[list[T]]:
    """Yield the items in order, at most `most` of them and `most_size` in all at a time.

    An item larger than `most_size` comes alone; without `size` their number alone counts.
    """
    portion: list[T] = []
    total = 0
    for item in items:
        added = size(item) if size else 0
        if portion and total + added > most_size:
            yield portion
            portion, total = [], 0
        portion.append(item)
        total += added
        if len(portion) == most:
            yield portion
            portion, total = [], 0
    if portion:
        yield portion
