"""Names in portions that fit one request: ClickHouse takes parameters in the URL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from urllib.parse import quote

from iscp_dagster.model.portions import split_into_portions

MOST_NAMES = 100
MOST_CHARACTERS = 12_000
"""Limit within a request line, which many proxies cap at 16 KiB."""


def split_names(names: Iterable[str]) -> Iterator[list[str]]:
    """Yield the names in order, in portions; a name above the limit is a portion by itself."""
    return split_into_portions(
        names,
        most=MOST_NAMES,
        size=lambda name: len(quote(name, safe="")),
        most_size=MOST_CHARACTERS,
    )
