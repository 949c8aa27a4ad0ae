"""Finds what holds for some of many items only, by trying ever smaller sets of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def halves(items: Sequence[Item]) -> list[Sequence[Item]]:
    """The first and the second half of the items, without empty ones."""
    middle = len(items) // 2
    return [half for half in (items[:middle], items[middle:]) if half]


def in_halves(
    items: Sequence[Item], attempt: Callable[[Sequence[Item]], Answer | None]
) -> Iterator[tuple[Sequence[Item], Answer]]:
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
