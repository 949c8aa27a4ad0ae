"""Makes foreign text safe to print: no character in it commands the terminal."""

from __future__ import annotations

import re

from rich.markup import escape

# The last two ranges turn the direction of what is written after them.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_BUT_COLOURS = re.compile(rf"(?!\x1b\[[0-9;]*m){_CONTROL.pattern}")
_LATIN = 0xFF


def plain(text: str, *, colours: bool = False) -> str:
    r"""Write out what would move, turn, colour or command a terminal, such as `\x1b`.

    Newlines and tabs stay; with `colours`, so do colour codes, which logs contain.
    """
    return (_BUT_COLOURS if colours else _CONTROL).sub(_written_out, text)


def cell(text: str) -> str:
    """The same for a cell of a rich table, with rich's markup escaped."""
    return escape(plain(text))


def word(text: str) -> str:
    """The same for a name, in one line."""
    return escape(one_line(text))


def one_line(text: str) -> str:
    """The text as one line that commands no terminal; quoted where it would not be seen."""
    seen = plain(text.replace("\n", "\\n").replace("\t", "\\t"))
    return repr(seen) if seen.isspace() else seen


def _written_out(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code <= _LATIN else f"\\u{code:04x}"
