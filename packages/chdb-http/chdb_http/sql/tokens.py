"""The words of a ClickHouse statement, as its own lexer cuts them (source: ClickHouse, Lexer.cpp).

Works on bytes, because rows in any encoding may follow an INSERT in the same text.
"""

from __future__ import annotations

import re
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from chdb_http.sql.errors import Code, EngineError, truncate_value
from chdb_http.sql.literals import OpenToken
from chdb_http.sql.octets import to_bytes, to_text
from chdb_http.sql.pieces import PIECE, remove_escapes

if TYPE_CHECKING:
    from collections.abc import Iterator

_TURNS = {b"(": 1, b"[": 1, b"{": 1, b")": -1, b"]": -1, b"}": -1}
# The bytes of one step, which makes at most as many tokens: a millisecond or two.
_STEP = 1 << 10
# A text with more of these is not a statement, and each costs a search of the whole text.
_MAX_LONE_DOLLARS = 64

_LEXER = re.compile(
    rb"""
      (?P<space>(?:[ \t-\r]+ | \xc2[\x85\xa0] | \xe1\xa0\x8e | \xe2\x81[\x9f\xa0] | \xe3\x80\x80
                  | \xe2\x80[\x80-\x8d\xa8\xa9\xaf] | \xef\xbb\xbf)+)
    | (?P<line>--|//|\#[\ !])
    | (?P<comment>/\*)
    | (?P<heredoc>\$\w*\$)
    | (?P<string>[xXbB]?'|\xe2\x80\x98)
    | (?P<quoted>[`"]|\xe2\x80\x9c)
    | (?P<number>\d[\w.]*)
    | (?P<word>(?:[A-Za-z_]|\$\w)[\w$]*)
    | (?P<mark>.)
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_DOLLAR_WORD = re.compile(rb"\$\w[\w$]*", re.ASCII)
# U+2212 is a minus sign.
_MARK = re.compile(rb"\xe2\x88\x92|[^\x00-\x20\x7f-\xff!#&\\?:]")
_WORD = re.compile(rb"(?!(?:exit|quit|logout|q)\s*(?:;|\Z))")
_STRING = re.compile(rb"(?![bB]'[01]*+[^01'])")
# A name may begin with a digit too, but no letter follows a point or an exponent's sign.
_NUMBER = re.compile(
    rb"""0[xX][0-9a-fA-F_]*+ (?:\.[0-9a-fA-F]*+)?+ (?:[pP][+-]?\d++)?+ (?!\w)
       | \d(?:_?\d)*+ (?:\.(?:\d(?:_?\d)*+)?+)?+ (?:[eE][+-]?\d(?:_?\d)*+)?+ (?!\w)
       | \w++ (?!\.) (?!(?<=[eEpP])[+-])""",
    re.VERBOSE | re.ASCII,
)


class TokenKind(Enum):
    WORD = "word"
    QUOTED = "quoted"
    STRING = "string"
    NUMBER = "number"
    MARK = "mark"


_WHOLE = frozenset({"mark", "word", "number"})
_KINDS = {"heredoc": TokenKind.STRING, **{kind.value: kind for kind in TokenKind}}
_FORMS = {
    TokenKind.MARK: _MARK,
    TokenKind.WORD: _WORD,
    TokenKind.NUMBER: _NUMBER,
    TokenKind.STRING: _STRING,
}


class Token(NamedTuple):
    """One significant token: `text[start:end]`; `depth` counts the brackets around it."""

    kind: TokenKind
    value: bytes
    start: int
    end: int
    depth: int

    def is_word(self, *words: str) -> bool:
        """True when the token is one of these keywords; case does not matter."""
        return self.kind is TokenKind.WORD and self.value.decode("latin-1").upper() in words

    def is_mark(self, mark: bytes) -> bool:
        return self.kind is TokenKind.MARK and self.value == mark

    @property
    def is_name(self) -> bool:
        """A bare or a quoted identifier."""
        return self.kind in {TokenKind.WORD, TokenKind.QUOTED}


def iter_tokens(text: bytes, start: int = 0) -> Iterator[Token]:
    """The tokens of `text` from `start`; comments and blanks are left out.

    Stops before a string, a quoted name or a comment that has no end. Raises `EngineError` 62 for
    what no statement contains. Time is linear in the text's size.
    """
    return chain.from_iterable(iter_steps(text, start))


def iter_steps(text: bytes, start: int = 0, *, complete: bool = True) -> Iterator[Iterator[Token]]:
    """`iter_tokens` in parts, each of at most about a millisecond's work; a part may be empty.

    Tokens are made lazily, so the rows of an INSERT need not become tokens. When the text is not
    `complete`, a token without an end may still get one, and the last part leaves it out.
    """
    lexer = _Lexer(text, start, complete=complete)
    while lexer.at < len(text):
        yield lexer.step()


class _Lexer:
    """The lexer's place: at `at`, within a token that has begun or between two."""

    def __init__(self, text: bytes, at: int, *, complete: bool) -> None:
        self._text = text
        self.at = at
        self._complete = complete
        self._depth = 0
        self._group = ""
        self._open: OpenToken | None = None
        self._lone_dollars = 0

    def step(self) -> Iterator[Token]:
        until = min(self.at + _STEP, len(self._text))
        while self.at < until:
            token = self._begin_token() if self._open is None else self._resume_token(self._open)
            if token is not None:
                yield token

    def _begin_token(self) -> Token | None:
        start = self.at
        match = _LEXER.match(self._text, start, start + PIECE)
        if match is None:
            return None
        group, value = str(match.lastgroup), match[0]
        self.at = match.end()
        if group in _WHOLE:
            self._check_length(start)
            return self._make_token(_KINDS[group], value, start)
        if group != "space":
            opener = b"\n" if group == "line" else value
            self._group, self._open = group, OpenToken(start=start, at=self.at, opener=opener)
            if self.at == len(self._text):
                return self._resume_token(self._open)
        return None

    def _resume_token(self, begun: OpenToken) -> Token | None:
        closed = begun.look(self._text)
        self.at = begun.at
        if not closed and self.at < len(self._text):
            return None
        self._open = None
        if closed and self._group in _KINDS:
            value = self._text[begun.start : self.at]
            return self._make_token(_KINDS[self._group], value, begun.start)
        if not closed and self._group == "heredoc" and self._complete:
            return self._make_dollar_token(begun.start)
        return None

    def _make_token(self, kind: TokenKind, value: bytes, start: int) -> Token:
        turn = _TURNS.get(value, 0) if kind is TokenKind.MARK else 0
        self._depth += min(turn, 0)
        token = Token(kind, value, start, self.at, self._depth)
        self._depth += max(turn, 0)
        return token

    def _make_dollar_token(self, start: int) -> Token:
        """A name or a mark, where what looked like the start of a $tag$ string has no end."""
        self._lone_dollars += 1
        if self._lone_dollars > _MAX_LONE_DOLLARS:
            raise EngineError(Code.SYNTAX_ERROR, "Syntax error: too many unpaired '$'")
        word = _DOLLAR_WORD.match(self._text, start)
        self.at = start + 1 if word is None else word.end()
        self._check_length(start)
        kind = TokenKind.MARK if word is None else TokenKind.WORD
        return self._make_token(kind, self._text[start : self.at], start)

    def _check_length(self, start: int) -> None:
        if self.at - start >= PIECE:
            raise EngineError(
                Code.SYNTAX_ERROR,
                f"Syntax error: failed at position {start + 1}: a name or a number of {PIECE} "
                "bytes or more. Quote it",
            )


def check_first(text: bytes, first: Token) -> None:
    """Raise `EngineError` 62 for what ClickHouse's lexer rejects or its client takes as a command.

    chDB would run nothing of a statement that begins so, and report no error.
    """
    form = _FORMS.get(first.kind)
    if form is not None and form.match(text, first.start) is None:
        raise EngineError(
            Code.SYNTAX_ERROR,
            f"Unrecognized token: Syntax error: failed at position {first.start + 1} "
            f"({truncate_value(to_text(first.value))})",
        )


def unquote(value: bytes) -> str:
    """The text of a quoted name or string without quotes and escapes."""
    if value[:1] not in {b"'", b"`", b'"'}:
        return to_text(value)
    quote = value[:1]
    return to_text(remove_escapes(value[1:-1].replace(quote * 2, quote)))


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
    raw, items, start = to_bytes(text), [], 0
    for word in iter_tokens(raw):
        if word.depth == 0 and word.is_mark(b","):
            items.append(raw[start : word.start])
            start = word.end
    return [to_text(item).strip() for item in [*items, raw[start:]]]
