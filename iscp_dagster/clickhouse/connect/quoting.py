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


def ident(*parts: str) -> str:
    """`database`.`table` or `column`, whatever characters the names hold."""
    return ".".join(f"`{_escaped(part, '`')}`" for part in parts)


def text(value: str) -> str:
    """A string literal, for the few places where ClickHouse binds no parameter."""
    return f"'{_escaped(value, chr(39))}'"


def _escaped(value: str, quote: str) -> str:
    return "".join(_ESCAPES.get(char, f"\\{char}" if char == quote else char) for char in value)
