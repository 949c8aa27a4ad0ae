"""Where an INSERT ends and its rows begin (source: ClickHouse, ParserInsertQuery.cpp)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from chdb_http.sql.errors import Code, EngineError
from chdb_http.sql.statement import Statement, Verb
from chdb_http.sql.tokens import unquote

if TYPE_CHECKING:
    from chdb_http.sql.tokens import Token

_BLANKS = re.compile(rb"[ \t\f]*")
# Do not wait for the end of more blanks than this; the rest of them belongs to the rows.
_MANY_BLANKS = 1 << 12


class InsertHead:
    """Reads the head of an INSERT, a word at a time.

    `begun` is true for INSERT and for `WITH ... INSERT`; `selects` when its rows come from a query,
    bare or in brackets; `ended` when the last word taken is the last before the rows.
    """

    def __init__(self) -> None:
        self.begun = self.selects = self.ended = False
        self._names_format = False
        self._first: Token | None = None
        self._last: Token | None = None
        self._before: Token | None = None
        self._input_call: tuple[int, int] | None = None
        self._settings_at: int | None = None

    def take(self, word: Token) -> None:
        """Take the next word. Raises `EngineError` 78 for FROM INFILE."""
        if self._first is None:
            self._first = word
        if self.begun:
            self._note_word(word)
        else:
            self.begun = self._is_insert(word)
        self._before, self._last = self._last, word

    @property
    def may_begin(self) -> bool:
        """False once the first word shows that this is not an INSERT."""
        return self._first is None or self._first.is_word("INSERT", "WITH")

    def _is_insert(self, word: Token) -> bool:
        if word.depth or not word.is_word("INSERT"):
            return False
        return self._first is word or (self._first is not None and self._first.is_word("WITH"))

    def _note_word(self, word: Token) -> None:
        last = self._last
        if last is None:
            return
        if last.is_word("INPUT") and word.is_mark(b"("):
            self._input_call = self._input_call or (last.start, word.end)
        if last.depth == 0 and last.is_word("FROM") and word.is_word("INFILE"):
            raise EngineError(
                Code.UNKNOWN_TYPE_OF_QUERY, "Query has infile and was send directly to server"
            )
        if word.depth == 0:
            self._note_clause(word, last)
        elif word.depth == 1 and last.is_mark(b"(") and word.is_word("SELECT", "WITH"):
            self.selects = True

    def _note_clause(self, word: Token, last: Token) -> None:
        if word.is_word("SELECT", "WATCH", "FROM"):
            self.selects = True
        if word.is_word("SETTINGS") and not _is_name_next(last) and self._settings_at is None:
            self._settings_at = word.start
        values = word.is_word("VALUES") and not _is_name_next(last) and not self.selects
        self._names_format = word.is_name and self._is_format_name(last)
        self.ended = values or self._names_format

    def _is_format_name(self, last: Token) -> bool:
        if not last.is_word("FORMAT") or _is_name_next(self._before):
            return False
        return not self.selects or self._input_call is not None

    def build_statement(self, text: bytes, *, complete: bool) -> Statement | None:
        """The insert; None when it is unfinished or takes its rows from a query."""
        last = self._last
        if last is None or not (self.ended or (complete and not self.selects)):
            return None
        if self._names_format:
            return self._build_with_format(text, last, complete=complete)
        if last.end == len(text) and not complete:
            return None
        cut = last.start if self.ended else last.end
        return self._make_insert(text[: last.end], cut=cut, name="Values", start=last.end)

    def _build_with_format(self, text: bytes, name: Token, *, complete: bool) -> Statement | None:
        start = _find_data_start(text, name.end, complete=complete)
        if start is None or self._before is None:
            return None
        cut = self._before.start
        return self._make_insert(text[: name.end], cut=cut, name=unquote(name.value), start=start)

    def _make_insert(self, text: bytes, *, cut: int, name: str, start: int) -> Statement:
        return Statement(
            verb=Verb.INSERT_ROWS,
            text=text,
            cut=cut,
            format=name,
            data_start=start,
            settings_at=self._settings_at,
            input_call=self._input_call if self.selects else None,
        )


def _is_name_next(before: Token | None) -> bool:
    """True when the word after `before` is a name, even if it reads like a keyword."""
    return before is not None and (
        before.is_word("INTO", "TABLE", "FUNCTION", "FROM", "JOIN") or before.is_mark(b".")
    )


def _find_data_start(text: bytes, after: int, *, complete: bool) -> int | None:
    """Where rows start: after the format's name, blanks and one line break; None if not known."""
    blanks = _BLANKS.match(text, after)
    start = after if blanks is None else blanks.end()
    if text[start : start + 1] == b";":
        raise EngineError(
            Code.SYNTAX_ERROR, "Syntax error: excessive ';' between FORMAT and the rows"
        )
    if text[start : start + 1] == b"\r":
        start += 1
    if text[start : start + 1] == b"\n":
        return start + 1
    is_known = complete or start < len(text) or start - after > _MANY_BLANKS
    return start if is_known else None
