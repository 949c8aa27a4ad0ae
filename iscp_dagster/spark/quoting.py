"""The one place where names and values become Spark's SQL."""

from __future__ import annotations


def ident(*parts: str) -> str:
    """`catalog`.`table` or `column`, whatever characters the names hold."""
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)


def text(value: str) -> str:
    """A string literal, for statements that bind no parameters."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
