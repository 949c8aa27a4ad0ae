"""Where an INSERT ends and its rows begin (source: ClickHouse, ParserInsertQuery.cpp)."""

from __future__ import annotations

from itertools import pairwise

from iscp_dagster.clickhouse.embedded.errors import Code, EngineError
from iscp_dagster.clickhouse.embedded.statement import Statement, Verb
from iscp_dagster.clickhouse.embedded.tokens import Token, tokens, unquote

_BLANKS = (b" ", b"\t", b"\f")


def head_words(text: bytes) -> list[Token]:
    """The tokens of `text`; for an INSERT only those before its rows."""
    words: list[Token] = []
    inserts = False
    for word in tokens(text):
        words.append(word)
        if not inserts:
            inserts = _starts_insert(words)
        elif _ends_head(words):
            break
    return words


def is_insert(words: list[Token]) -> bool:
    """True for INSERT and for `WITH ... INSERT`."""
    return any(_starts_insert(words[: at + 1]) for at in range(len(words)))


def _starts_insert(words: list[Token]) -> bool:
    if words[-1].depth or not words[-1].is_word("INSERT"):
        return False
    return len(words) == 1 or words[0].is_word("WITH")


def _ends_head(words: list[Token]) -> bool:
    word = words[-1]
    if word.depth:
        return False
    return _is_values(words) or (word.is_name and _is_format(words[:-1]))


def _is_values(words: list[Token]) -> bool:
    return words[-1].is_word("VALUES") and not _names_a_table(words) and not _selects(words)


def _is_format(words: list[Token]) -> bool:
    return bool(words) and words[-1].is_word("FORMAT") and not _names_a_table(words)


def _names_a_table(words: list[Token]) -> bool:
    before = words[-2] if len(words) > 1 else None
    return before is not None and (
        before.is_word("INTO", "TABLE", "FUNCTION", "FROM", "JOIN") or before.is_mark(b".")
    )


def _selects(words: list[Token]) -> bool:
    """True when the rows come from a query, bare or in brackets."""
    at = next(i for i in range(len(words)) if _starts_insert(words[: i + 1]))
    bracketed = any(
        word.depth == 1 and word.is_word("SELECT", "WITH") and before.is_mark(b"(")
        for before, word in pairwise(words[at:])
    )
    return bracketed or any(
        word.depth == 0 and word.is_word("SELECT", "WATCH", "FROM") for word in words[at:]
    )


def parse_insert(text: bytes, words: list[Token], *, complete: bool) -> Statement | None:
    """The insert that `words` begin; None when it is unfinished or takes its rows from a query."""
    _refuse_infile(words)
    if words[-1].is_name and _is_format(words[:-1]):
        return _with_format(text, words, complete=complete)
    if _is_values(words):
        return _with_values(text, words, cut=words[-1].start, complete=complete)
    if complete and not _selects(words):
        return _with_values(text, words, cut=words[-1].end, complete=True)
    return None


def _with_values(text: bytes, words: list[Token], *, cut: int, complete: bool) -> Statement | None:
    end = words[-1].end
    if end == len(text) and not complete:
        return None
    return Statement(
        verb=Verb.INSERT_ROWS, text=text[:end], cut=cut, format="Values", data_start=end
    )


def _with_format(text: bytes, words: list[Token], *, complete: bool) -> Statement | None:
    name = words[-1]
    start = _data_start(text, name.end, complete=complete)
    call = _input_call(words)
    if start is None or (_selects(words) and call is None):
        return None
    return Statement(
        verb=Verb.INSERT_ROWS,
        text=text[: name.end],
        cut=words[-2].start,
        format=unquote(name.value),
        data_start=start,
        input_call=call,
    )


def _data_start(text: bytes, after: int, *, complete: bool) -> int | None:
    """Rows start after the format's name, blanks and at most one line break."""
    start = after
    while text[start : start + 1] in _BLANKS:
        start += 1
    if text[start : start + 1] == b";":
        raise EngineError(
            Code.SYNTAX_ERROR, "Syntax error: excessive ';' between FORMAT and the rows"
        )
    if text[start : start + 1] == b"\r":
        start += 1
    if text[start : start + 1] == b"\n":
        return start + 1
    return start if complete or start < len(text) else None


def _input_call(words: list[Token]) -> tuple[int, int] | None:
    for word, following in pairwise(words):
        if word.is_word("INPUT") and following.is_mark(b"("):
            return word.start, following.end
    return None


def _refuse_infile(words: list[Token]) -> None:
    for word, following in pairwise(words):
        if word.depth == 0 and word.is_word("FROM") and following.is_word("INFILE"):
            raise EngineError(
                Code.UNKNOWN_TYPE_OF_QUERY, "Query has infile and was send directly to server"
            )
