"""The words of a ClickHouse statement, as its own lexer cuts them (ClickHouse doc: SQL syntax).

Works on bytes, because rows in any encoding may follow an INSERT in the same text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_OPENING = b"([{"
_CLOSING = b")]}"

_LEXER = re.compile(
    rb"""
      (?P<space>[\s\x00\xa0]+ | \xef\xbb\xbf)
    | (?P<comment>--[^\n]*\n? | \#[ !][^\n]*\n? | /\*.*?\*/)
    | (?P<string>'(?:[^'\\]|\\.|'')*')
    | (?P<heredoc>\$(?P<tag>\w*)\$.*?\$(?P=tag)\$)
    | (?P<quoted>`(?:[^`\\]|\\.|``)*` | "(?:[^"\\]|\\.|"")*")
    | (?P<number>\d[\w.]*)
    | (?P<word>[A-Za-z_\x80-\xff$][\w\x80-\xff$]*)
    | (?P<mark>.)
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_UNFINISHED = (b"'", b"`", b'"', b"/*")


class Kind(Enum):
    WORD = "word"
    QUOTED = "quoted"
    STRING = "string"
    NUMBER = "number"
    MARK = "mark"


@dataclass(frozen=True, kw_only=True)
class Token:
    """One significant token: `text[start:end]`; `depth` counts the brackets around it."""

    kind: Kind
    value: bytes
    start: int
    end: int
    depth: int

    def is_word(self, *words: str) -> bool:
        """True when the token is one of these keywords; case does not matter."""
        return self.kind is Kind.WORD and self.value.decode("latin-1").upper() in words

    def is_mark(self, mark: bytes) -> bool:
        return self.kind is Kind.MARK and self.value == mark

    @property
    def is_name(self) -> bool:
        """A bare or a quoted identifier."""
        return self.kind in {Kind.WORD, Kind.QUOTED}


def tokens(text: bytes, start: int = 0) -> Iterator[Token]:
    """The tokens of `text` from `start`; comments and blanks are left out.

    Stops before a string, a quoted name or a comment that has no end: it may still arrive.
    """
    depth = 0
    for found in _LEXER.finditer(text, start):
        group = "string" if found["heredoc"] else found.lastgroup
        if group in {"space", "comment"}:
            continue
        if group == "mark" and text.startswith(_UNFINISHED, found.start()):
            return
        value = found[0]
        depth -= value in _CLOSING if group == "mark" else 0
        yield Token(
            kind=Kind(group), value=value, start=found.start(), end=found.end(), depth=depth
        )
        depth += value in _OPENING if group == "mark" else 0


def unquote(value: bytes) -> str:
    """The text of a quoted name or string without quotes and escapes."""
    if value[:1] not in {b"'", b"`", b'"'}:
        return value.decode("utf-8", "replace")
    quote = value[:1]
    inner = value[1:-1].replace(quote * 2, quote)
    return re.sub(rb"\\(.)", rb"\1", inner, flags=re.DOTALL).decode("utf-8", "replace")


def from_tsv(value: bytes) -> str:
    """The text of one value of TabSeparated output."""
    return unquote(b"'" + value.rstrip(b"\n") + b"'")


def quote_string(value: str) -> str:
    """A SQL string literal that the engine reads back as exactly `value`."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def quote_name(value: str) -> str:
    """A SQL identifier that names exactly `value`."""
    escaped = value.replace("\\", "\\\\").replace("`", "\\`")
    return f"`{escaped}`"


def split_list(text: str) -> list[str]:
    """The items of a comma separated list; commas within brackets and strings do not split."""
    raw, items, start = text.encode(), [], 0
    for word in tokens(raw):
        if word.depth == 0 and word.is_mark(b","):
            items.append(raw[start : word.start])
            start = word.end
    return [item.decode().strip() for item in [*items, raw[start:]]]
