"""As many names as one request carries: ClickHouse takes parameters as part of the URL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from urllib.parse import quote

from iscp_dagster.model.portions import portioned

MOST_NAMES = 100
MOST_CHARACTERS = 12_000
"""Of a request line, which many proxies end at 16 KiB."""


def portions(names: Iterable[str]) -> Iterator[list[str]]:
    """The names in their order, some at a time; one that is longer than all may be goes alone."""
    return portioned(names, _length, most=MOST_NAMES, most_size=MOST_CHARACTERS)


def _length(name: str) -> int:
    return len(quote(name, safe=""))
