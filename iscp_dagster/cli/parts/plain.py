"""Text of others on a terminal: it says what it says, and tells the terminal nothing."""

from __future__ import annotations

import re

from rich.markup import escape

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_BUT_COLOURS = re.compile(rf"(?!\x1b\[[0-9;]*m){_CONTROL.pattern}")


def plain(text: str, *, colours: bool = False) -> str:
    r"""`text` with what would move, colour or command a terminal written out, as `\x1b`.

    Lines and tabs stay, and with `colours` those of the ends of logs.
    """
    return (_BUT_COLOURS if colours else _CONTROL).sub(_written_out, text)


def cell(text: str) -> str:
    """The same for a table of rich's, whose markup it is not."""
    return escape(plain(text))


def word(text: str) -> str:
    """The same of a name, which has no lines of its own."""
    return cell(text.replace("\n", "\\n").replace("\t", "\\t"))


def _written_out(found: re.Match[str]) -> str:
    return f"\\x{ord(found[0]):02x}"
