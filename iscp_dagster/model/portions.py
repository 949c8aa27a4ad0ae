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

    An item larger than `most_size` comes alone; without `size` only their number counts.
    """
    portion: list[T] = []
    total = 0
    for item in items:
        item_size = size(item) if size else 0
        if portion and total + item_size > most_size:
            yield portion
            portion, total = [], 0
        portion.append(item)
        total += item_size
        if len(portion) == most:
            yield portion
            portion, total = [], 0
    if portion:
        yield portion


def split_into_halves(items: Sequence[T]) -> list[Sequence[T]]:
    """The first and the second half of the items, without empty ones."""
    middle = len(items) // 2
    return [half for half in (items[:middle], items[middle:]) if half]


def bisect_on_failure(
    items: Sequence[T], attempt: Callable[[Sequence[T]], Answer | None]
) -> Iterator[tuple[Sequence[T], Answer]]:
    """Attempt all items, then each half of those for which `attempt` gave None, in order.

    A single item must give an answer. One item at fault among n costs 2 log2(n) attempts.
    """
    pending = [items] if items else []
    while pending:
        portion = pending.pop()
        answer = attempt(portion)
        if answer is not None:
            yield portion, answer
        elif len(portion) > 1:
            pending += reversed(split_into_halves(portion))
        else:
            raise ValueError(f"no answer for {portion[0]!r} alone")
