"""What a statement asks for outside of the tables, told before the engine is asked.

The engine's rights and the kernel refuse what lies outside; this says why, as the real server
does, and keeps `file()`, `url()` and the names of tables out of the data's own files. What it
cannot read it refuses.
"""

from __future__ import annotations

import os.path
import re
from itertools import islice
from typing import TYPE_CHECKING

from iscp_dagster.clickhouse.embedded.errors import Code, EngineError
from iscp_dagster.clickhouse.embedded.own_files import check_name, is_in, is_upward
from iscp_dagster.clickhouse.embedded.pieces import is_found
from iscp_dagster.clickhouse.embedded.tokens import Kind, tokens, unquote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from iscp_dagster.clickhouse.embedded.tokens import Token

# Most statements hold none of these words, and need no second look.
_SUSPECT = re.compile(
    rb"""file|python|disk|executable|url|attach|rocksdb
        |x'|b'|loop|buffer|alias|\.\.|\\[xN/]|[`"'$\x80-\xff]/|[{,]\s*\.|\.\s*[{,}]""",
    re.IGNORECASE | re.VERBOSE,
)
_BEGUN = re.compile(rb"[{,.]\s*\Z")
_FILES = ("file", "filecluster", "filesystem")
_URLS = ("url", "urlcluster")
_WEB = re.compile(r"https?://", re.IGNORECASE)
# What comes before the name of a table, whose bracket holds its columns.
_BEFORE_TABLE = ("CREATE", "OR", "REPLACE", "TEMPORARY", "TABLE", "IF", "NOT", "EXISTS")
# EmbeddedRocksDB takes a folder, and asks for no right; without one it is no call.
_REFUSED = ("python", "disk", "executable", "executablepool", "embeddedrocksdb")


def check_reach(text: bytes, folders: Sequence[Path]) -> None:
    """Raises `EngineError` 291 for a file outside of `folders`, the first of which is the default.

    497 for what runs a program or brings its own disk, 358 for INTO OUTFILE and 78 for FROM INFILE.
    """
    if not is_found(_SUSPECT, text, _BEGUN):
        return
    words = list(tokens(text))
    closing, attaches = _closings(words), False
    for at, word in enumerate(words):
        before = words[at - 1] if at else None
        if word.is_word("OUTFILE") and before is not None and before.is_word("INTO"):
            raise EngineError(Code.INTO_OUTFILE_NOT_ALLOWED, "INTO OUTFILE is not allowed")
        if word.is_word("INFILE") and before is not None and before.is_word("FROM"):
            raise EngineError(
                Code.UNKNOWN_TYPE_OF_QUERY, "Query has infile and was send directly to server"
            )
        check_name(word, before, folders, named=_is_parameter(words, at))
        if word.value[:1] in b"xXbB" and word.kind is Kind.STRING and _is_from(before):
            raise EngineError(Code.ACCESS_DENIED, "A table's name in digits is not allowed")
        # Another statement may come first, before PARALLEL WITH.
        attaches |= word.is_word("ATTACH")
        if attaches and word.kind is Kind.STRING and before and before.is_word("FROM"):
            raise EngineError(Code.ACCESS_DENIED, "ATTACH ... FROM a folder is not allowed")
        if word.is_name and at + 1 < len(words) and words[at + 1].is_mark(b"("):
            _check_call(words, at, closing, folders)


def _closings(words: list[Token]) -> dict[int, int]:
    """Where each bracket that opens is closed."""
    found: dict[int, int] = {}
    opened: list[int] = []
    for at, word in enumerate(words):
        if word.kind is Kind.MARK and word.value in {b"(", b"[", b"{"}:
            opened.append(at)
            found[at] = len(words)
        elif word.kind is Kind.MARK and word.value in {b")", b"]", b"}"} and opened:
            found[opened.pop()] = at
    return found


def _is_parameter(words: list[Token], at: int) -> bool:
    """True for the value of `param_x = 'value'`, which may be bound as a name."""
    name = words[at - 2] if at > 1 and words[at - 1].is_mark(b"=") else None
    return name is not None and name.value.startswith(b"param_")


def _is_from(before: Token | None) -> bool:
    return before is not None and before.is_word("FROM", "JOIN")


def _check_call(
    words: list[Token], at: int, closing: Mapping[int, int], folders: Sequence[Path]
) -> None:
    name = unquote(words[at].value)
    if name.lower() in _REFUSED:
        raise EngineError(
            Code.ACCESS_DENIED,
            f"{name}() is not allowed on the embedded server: it runs programs or reaches other "
            "disks. Use a ClickHouse server of your own for it",
        )
    if name.lower() in {"loop", "buffer", "alias"}:
        _check_names(name, _arguments(words, at + 1, closing)[:2], folders)
    if name.lower() in (*_FILES, *_URLS) and not _is_table(words, at):
        # A cluster's function takes the cluster first, the engine File its format.
        two = name.lower().endswith("cluster") or _is_engine(words[max(at - 2, 0) : at])
        arguments = _arguments(words, at + 1, closing)[: 2 if two else 1]
        check = _check_path if name.lower() in _FILES else _check_url
        bare = bool(two and arguments and arguments[0][:1] and arguments[0][0].kind is Kind.WORD)
        for argument in arguments[1:] if bare else arguments:
            check(argument, folders)


def _check_names(name: str, arguments: list[list[Token]], folders: Sequence[Path]) -> None:
    """A database and a table; one argument alone is a table or a function, which is looked at."""
    for argument in arguments if len(arguments) > 1 else []:
        if len(argument) != 1 or argument[0].value[:2].lower() in {b"x'", b"b'"}:
            raise EngineError(Code.ACCESS_DENIED, f"{name}() takes the plain name of a table here")
        check_name(argument[0], None, folders, named=True)


def _is_table(words: list[Token], at: int) -> bool:
    """`CREATE TABLE url (...)`, `INSERT INTO url (...)`, and a name behind its database's."""
    if not at:
        return False
    last = words[at - 1]
    columns = words[0].is_word("CREATE", "INSERT", "REPLACE") and last.is_word(
        "TABLE", "EXISTS", "INTO"
    )
    before = islice(words, at)
    return last.is_mark(b".") or (
        columns and all(word.is_word(*_BEFORE_TABLE, "INSERT", "INTO") for word in before)
    )


def _is_engine(before: list[Token]) -> bool:
    words = [word for word in before if not word.is_mark(b"=")]
    return bool(words) and words[-1].is_word("ENGINE")


def _arguments(words: list[Token], opening: int, closing: Mapping[int, int]) -> list[list[Token]]:
    """The words of a call's arguments; of brackets within them the opening one alone."""
    found: list[list[Token]] = []
    current: list[Token] = []
    at = opening + 1
    while at < closing[opening]:
        if words[at].is_mark(b","):
            found.append(current)
            current = []
        else:
            current.append(words[at])
        at = closing.get(at, at) + 1
    return [*found, current] if current else found


def _plain(argument: list[Token]) -> str | None:
    """The text of a string that is written without escapes."""
    raw = argument[0].value if len(argument) == 1 and argument[0].kind is Kind.STRING else b""
    return unquote(raw) if raw.startswith(b"'") and b"\\" not in raw else None


def _check_url(argument: list[Token], folders: Sequence[Path]) -> None:
    url = _plain(argument)
    if url is None or not _WEB.match(url):
        raise EngineError(
            Code.DATABASE_ACCESS_DENIED,
            "Write a URL as a string that begins with http:// or https://. Read "
            f"a file with file(), from inside `{folders[0]}`",
        )


def _check_path(argument: list[Token], folders: Sequence[Path]) -> None:
    path = _plain(argument)
    if path is None:
        raise EngineError(
            Code.DATABASE_ACCESS_DENIED,
            "Write the path of a file as a string, so that the server can see that it lies "
            f"inside `{folders[0]}`",
        )
    whole = os.path.normpath(folders[0] / path)
    if is_upward(path) or not any(is_in(whole, folder) for folder in folders):
        raise EngineError(
            Code.DATABASE_ACCESS_DENIED,
            f"File `{path}` is not inside `{folders[0]}`. Put it there, or allow its folder with "
            "ISCP_CLICKHOUSE_PATHS",
        )
