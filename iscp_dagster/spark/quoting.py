"""The one place where names and values become Spark's SQL."""

from __future__ import annotations


def quote_identifier(*parts: str) -> str:
    """`catalog`.`table` or `column`, whatever characters the names hold."""
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)


def quote_string(value: str) -> str:
    """A string literal, for statements that bind no parameters."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
