"""The engines of all tables that are made: what differs on a cluster or another server."""

from __future__ import annotations

ALL_ROWS = "MergeTree"
"""Keeps every row that is inserted."""


def render_replacing_engine(version: str, deleted: str = "") -> str:
    """Return an engine that keeps the last row of each key, by the SQL of two columns.

    A row whose `deleted` is true is deleted.
    """
    return f"Replacing{ALL_ROWS}({', '.join(filter(None, (version, deleted)))})"
