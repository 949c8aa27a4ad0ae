"""As many names as one request carries: ClickHouse takes parameters as part of the URL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from urllib.parse import quote

MOST_NAMES = 100
MOST_CHARACTERS = 12_000
"""Of a request line, which many proxies end at 16 KiB."""


def portions(names: Iterable[str]) -> Iterator[list[str]]:
    """The names in their order, some at a time; one that is longer than all may be goes alone."""
    some: list[str] = []
    size = 0
    for name in names:
        length = len(quote(name, safe=""))
        if some and (len(some) == MOST_NAMES or size + length > MOST_CHARACTERS):
            yield some
            some, size = [], 0
        some.append(name)
        size += length
    if some:
        yield some
