"""From the text of a request to a `Statement`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chdb_http.sql.errors import Code, EngineError
from chdb_http.sql.insert_head import InsertHead
from chdb_http.sql.statement import Statement, Verb
from chdb_http.sql.tokens import check_first, iter_steps, unquote

if TYPE_CHECKING:
    from collections.abc import Generator

    from chdb_http.sql.tokens import Token

_SELECTING = ("SELECT", "WITH", "FROM")
_READING = (*_SELECTING, "SHOW", "DESCRIBE", "DESC", "EXPLAIN", "EXISTS", "CHECK", "USE", "SET")
# What may follow WITH after a column that is called parallel.
_WITH = ("TOTALS", "ROLLUP", "CUBE", "FILL", "TIES")
# A word before FORMAT that makes it a name and not a clause.
_NAMING = ("FROM", "JOIN", "AS", "TABLE", "SELECT", "BY", "AND", "OR", "WHERE", "DISTINCT")


def parse(text: bytes, *, complete: bool) -> Statement | None:
    """Read the statement at the start of `text`; None if more of the request is needed.

    `complete` says that nothing follows, and then the result is never None. Raises `EngineError` 62
    for an empty text and for a second statement, as ClickHouse's HTTP interface does.
    """
    turns = parse_in_turns(text, complete=complete)
    while True:
        try:
            next(turns)
        except StopIteration as end:
            statement: Statement | None = end.value
            return statement


def parse_in_turns(text: bytes, *, complete: bool) -> Generator[None, None, Statement | None]:
    """`parse` as a generator that yields after each step, about every millisecond."""
    insert, parser = InsertHead(), _StatementParser()
    for step in iter_steps(text, complete=complete):
        for word in step:
            insert.take(word)
            if insert.ended:
                return insert.build_statement(text, complete=complete)
            if not (complete or insert.may_begin):
                return None
            parser.take(word)
        yield
    if insert.begun and (statement := insert.build_statement(text, complete=complete)) is not None:
        return statement
    return parser.build_statement(text, inserts=insert.begun) if complete else None


class _StatementParser:
    """Reads a statement without rows, a word at a time."""

    def __init__(self) -> None:
        self._first: Token | None = None
        self._end: Token | None = None
        self._last: Token | None = None
        self._before: Token | None = None
        self._column = False  # whether `_before` is a name itself
        self._format: tuple[Token, Token] | None = None
        self._may_be_format: tuple[Token, Token] | None = None
        self._outfile = False
        self._several = False

    def take(self, word: Token) -> None:
        """Take the next word. Raises `EngineError` 62 for a second statement."""
        if word.is_mark(b";") and (self._end is not None or word.depth == 0):
            self._end = self._end or word
            return
        if self._end is not None:
            raise _make_multiple_error(self._end)
        if self._first is None and not word.is_mark(b"("):
            self._first = word
        self._note_word(word)
        self._column = self._before is not None and _is_name_next(self._before)
        self._before, self._last = self._last, word

    def _note_word(self, word: Token) -> None:
        if word.is_word("SETTINGS"):
            self._format = self._may_be_format or self._format
        self._may_be_format = None
        last, before = self._last, self._before
        self._several |= _is_next_statement(before, last, word)
        if last is None or last.depth:
            return
        self._outfile |= last.is_word("INTO") and word.is_word("OUTFILE")
        is_name = self._column and before is not None and before.is_word("TABLE")
        if before is not None and word.is_name and _is_clause(before, last, is_name=is_name):
            self._may_be_format = (last, word)

    def build_statement(self, text: bytes, *, inserts: bool) -> Statement:
        """The statement, without its final semicolon."""
        first = self._first
        if first is None:
            raise EngineError(Code.SYNTAX_ERROR, "Syntax error: Empty query")
        check_first(text, first)
        if self._outfile:
            raise EngineError(Code.INTO_OUTFILE_NOT_ALLOWED, "INTO OUTFILE is not allowed")
        end = len(text) if self._end is None else self._end.start
        clause = self._may_be_format or self._format
        return Statement(
            verb=self._choose_verb(first, inserts=inserts),
            text=text[:end],
            cut=end if clause is None else clause[0].start,
            format=None if clause is None else unquote(clause[1].value),
            reads_only=first.is_word(*_READING) and not (inserts or self._several),
            sets=first.is_word("SET") or self._several,
        )

    def _choose_verb(self, first: Token, *, inserts: bool) -> Verb:
        if first.is_word("KILL"):
            return Verb.KILL
        if not first.is_word(*_SELECTING) or inserts:
            return Verb.OTHER
        return Verb.SELECT


def _make_multiple_error(end: Token) -> EngineError:
    return EngineError(
        Code.SYNTAX_ERROR,
        f"Syntax error (Multi-statements are not allowed): failed at position {end.end} "
        "(end of query). Send one statement per request",
    )


def _is_next_statement(before: Token | None, last: Token | None, word: Token) -> bool:
    """True for the first word of any statement after PARALLEL WITH."""
    if before is None or last is None or not last.is_word("WITH"):
        return False
    return before.is_word("PARALLEL") and not word.is_word(*_WITH)


def _is_clause(before: Token, word: Token, *, is_name: bool) -> bool:
    """True when `word` is the FORMAT of a clause; `is_name`: `before` is itself a name."""
    if word.depth or not word.is_word("FORMAT"):
        return False
    return is_name or not _is_name_next(before)


def _is_name_next(word: Token) -> bool:
    """Whether a name follows the word, even one that reads like a keyword."""
    return word.is_word(*_NAMING) or word.is_mark(b",") or word.is_mark(b".")
