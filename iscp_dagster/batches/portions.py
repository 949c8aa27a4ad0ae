"""How a call is split into KeeperMap statements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from iscp_dagster.batches.compare import to_text
from iscp_dagster.batches.protocol import StateWrite
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.portions import portioned

MOST_ROWS = 200
"""Rows per statement; one that fails is settled row by row."""

MOST_CHARACTERS = 60_000
"""States' length per statement; Keeper takes 1 MB in one, ClickHouse 128 KiB per parameter."""


def ids_at_once(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the ids in order, as many at a time as a statement takes."""
    return (ids[start : start + MOST_ROWS] for start in range(0, len(ids), MOST_ROWS))


def writes_at_once(writes: Sequence[StateWrite]) -> Iterator[Sequence[StateWrite]]:
    """Yield the writes in order, as many at a time as a statement takes.

    Raises ConfigError for one that is too long by itself.
    """
    return portioned(writes, _size, most=MOST_ROWS, most_size=MOST_CHARACTERS)


def _size(write: StateWrite) -> int:
    states = [held for held in (write.held, write.seen) if held is not None]
    # A backslash is escaped for the parameter, and perhaps again on its way.
    size = max(len(text) + 3 * text.count("\\") for text in map(to_text, states))
    if size > MOST_CHARACTERS:
        raise ConfigError(
            f"State of job {write.key}: {size} characters with its layout, but KeeperMap takes "
            f"at most {MOST_CHARACTERS}; keep states in sql."
        )
    return size
