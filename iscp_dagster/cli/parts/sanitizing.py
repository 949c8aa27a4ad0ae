"""Makes foreign text safe to print: no character in it controls the terminal."""

from __future__ import annotations

import re

from rich.markup import escape

# The last two ranges change the direction of the text after them.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_BUT_COLOURS = re.compile(rf"(?!\x1b\[[0-9;]*m){_CONTROL.pattern}")
_LATIN = 0xFF


def escape_control_chars(text: str, *, colours: bool = False) -> str:
    r"""Escape the characters that control a terminal or turn text, such as `\x1b`.

    Newlines and tabs stay; with `colours`, so do colour codes, which logs contain.
    """
    return (_BUT_COLOURS if colours else _CONTROL).sub(_escape_character, text)


def escape_cell(text: str) -> str:
    """The same for a cell of a rich table, with rich's markup escaped."""
    return escape(escape_control_chars(text))


def escape_word(text: str) -> str:
    """The same for a name, in one line."""
    return escape(to_one_line(text))


def to_one_line(text: str) -> str:
    """The escaped text as one line; quoted if it is only white space."""
    escaped = escape_control_chars(text.replace("\n", "\\n").replace("\t", "\\t"))
    return repr(escaped) if escaped.isspace() else escaped


def _escape_character(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code <= _LATIN else f"\\u{code:04x}"
