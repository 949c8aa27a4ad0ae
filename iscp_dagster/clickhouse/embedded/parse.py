"""From the text of a request to a `Statement`."""

from __future__ import annotations

from itertools import pairwise

from iscp_dagster.clickhouse.embedded.errors import Code, EngineError
from iscp_dagster.clickhouse.embedded.insert_head import head_words, is_insert, parse_insert
from iscp_dagster.clickhouse.embedded.statement import Statement, Verb
from iscp_dagster.clickhouse.embedded.tokens import Token, unquote

_SELECTING = ("SELECT", "WITH", "FROM")
_READING = (*_SELECTING, "SHOW", "DESCRIBE", "DESC", "EXPLAIN", "EXISTS", "CHECK", "USE", "SET")
# A word before FORMAT that makes it a name and not a clause.
_NAMING = ("FROM", "JOIN", "AS", "TABLE", "SELECT", "BY", "AND", "OR", "WHERE", "DISTINCT")


def parse(text: bytes, *, complete: bool) -> Statement | None:
    """Read the statement at the start of `text`; None asks for more of the request.

    `complete` says that nothing follows, and then the result is never None. Raises `EngineError` 62
    for an empty text and for a second statement, as ClickHouse's HTTP interface does.
    """
    words = head_words(text)
    if words and is_insert(words):
        insert = parse_insert(text, words, complete=complete)
        if insert is not None:
            return insert
    return _parse_whole(text, words) if complete else None


def _parse_whole(text: bytes, words: list[Token]) -> Statement:
    end = _single_end(text, words)
    words = [word for word in words if word.start < end]
    first = next((word for word in words if not word.is_mark(b"(")), None)
    if first is None:
        raise EngineError(Code.SYNTAX_ERROR, "Syntax error: Empty query")
    at = _format_at(words)
    return Statement(
        verb=_verb(words, first),
        text=text[:end],
        cut=end if at is None else words[at].start,
        format=None if at is None else unquote(words[at + 1].value),
        reads_only=first.is_word(*_READING) and not is_insert(words),
        sets=first.is_word("SET"),
    )


def _single_end(text: bytes, words: list[Token]) -> int:
    """The end of the one statement; a second one is refused."""
    at = next((i for i, word in enumerate(words) if word.is_mark(b";") and word.depth == 0), None)
    if at is None:
        return len(text)
    if any(not word.is_mark(b";") for word in words[at:]):
        place = words[at].end
        raise EngineError(
            Code.SYNTAX_ERROR,
            f"Syntax error (Multi-statements are not allowed): failed at position {place} "
            "(end of query). Send one statement a request",
        )
    return words[at].start


def _verb(words: list[Token], first: Token) -> Verb:
    if first.is_word("KILL"):
        return Verb.KILL
    if not first.is_word(*_SELECTING) or is_insert(words):
        return Verb.OTHER
    if any(a.depth == 0 and a.is_word("INTO") and b.is_word("OUTFILE") for a, b in pairwise(words)):
        raise EngineError(Code.INTO_OUTFILE_NOT_ALLOWED, "INTO OUTFILE is not allowed")
    return Verb.SELECT


def _format_at(words: list[Token]) -> int | None:
    """The place of FORMAT in a trailing `FORMAT name [SETTINGS ...]`."""
    for at in range(len(words) - 2, 0, -1):
        after = words[at + 2] if at + 2 < len(words) else None
        ends = after is None or after.is_word("SETTINGS")
        if ends and words[at + 1].is_name and _is_clause(words[at - 1], words[at]):
            return at
    return None


def _is_clause(before: Token, word: Token) -> bool:
    if word.depth or not word.is_word("FORMAT"):
        return False
    return not before.is_word(*_NAMING) and not (before.is_mark(b",") or before.is_mark(b"."))
