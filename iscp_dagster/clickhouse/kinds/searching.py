"""Queries of an index besides conditions on its columns: searches and nearest neighbours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Search:
    """An argument that selects rows by more than comparisons of columns."""

    type: str
    """The ClickHouse type of its value."""
    description: str
    condition: Callable[[str], str]
    """Returns the SQL condition, given the SQL of the bound value."""


@dataclass(frozen=True, kw_only=True)
class Neighbourhood:
    """Rows by their distance to a vector, from parameterized views beside the index view."""

    dimension: int
    nearest: str
    """The end of the name of the view with `query`, `k` and, of a table with tenants, `tenant`."""
    distances: str
    """The end of the name of the view without `k`, which has every row."""
