"""Items in portions of limited number and size, and in ever smaller halves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
Answer = TypeVar("Answer")


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


def halves(items: Sequence[T]) -> list[Sequence[T]]:
    """The first and the second half of the items, without empty ones."""
    middle = len(items) // 2
    return [half for half in (items[:middle], items[middle:]) if half]


def in_halves(
    items: Sequence[T], attempt: Callable[[Sequence[T]], Answer | None]
) -> Iterator[tuple[Sequence[T], Answer]]:
    """Attempt it with all items, then with each half of those for which it gave None, in order.

    Of a single item it must give an answer. One item at fault among n costs 2 log2(n) attempts.
    """
    waiting = [items] if items else []
    while waiting:
        some = waiting.pop()
        answer = attempt(some)
        if answer is not None:
            yield some, answer
        elif len(some) > 1:
            waiting += reversed(halves(some))
        else:
            raise ValueError(f"no answer for {some[0]!r} alone")
