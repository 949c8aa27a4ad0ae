"""The one place where identifiers and literals become ClickHouse text."""

from __future__ import annotations

_ESCAPES = {
    "\\": "\\\\",
    "\n": "\\n",
    "\t": "\\t",
    "\r": "\\r",
    "\b": "\\b",
    "\f": "\\f",
    "\0": "\\0",
}


def quote_identifier(*parts: str) -> str:
    """Quote `database`.`table` or `column`, with any characters in the names."""
    return ".".join(f"`{_escape_text(part, '`')}`" for part in parts)


def quote_string(value: str) -> str:
    """Quote a string literal, for the few places where ClickHouse binds no parameter."""
    return f"'{_escape_text(value, chr(39))}'"


def _escape_text(value: str, quote: str) -> str:
    return "".join(_ESCAPES.get(char, f"\\{char}" if char == quote else char) for char in value)
