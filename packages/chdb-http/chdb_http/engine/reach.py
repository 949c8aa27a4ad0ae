"""Checks what a statement accesses outside of the tables, before the engine runs it.

The engine's rights and the kernel refuse what is not allowed; this check says why, as the real
server does, and gives the right to files to statements that name them openly, inside the
allowed folders. It refuses what it cannot read.
"""

from __future__ import annotations

import os.path
import re
from itertools import islice
from typing import TYPE_CHECKING

from chdb_http.sql.errors import Code, EngineError, truncate_value
from chdb_http.sql.pieces import is_found
from chdb_http.sql.tokens import TokenKind, iter_tokens, unquote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from chdb_http.sql.tokens import Token

EXPRESSIONS = "input_format_values_interpret_expressions"
"""The setting that lets the engine evaluate expressions, and so queries, in rows."""
# Most statements contain none of these words and need no further check.
_SUSPECT = re.compile(
    rb"""file|python|disk|executable|url|attach|rocksdb|role|local|_expressions|\\[xN]
        |definer|security|refresh|\xe2\x80\x9c""",
    re.IGNORECASE | re.VERBOSE,
)
_FILES = ("file", "filecluster", "deltalakelocal")
_URLS = ("url", "urlcluster")
_WEB = re.compile(r"https?://", re.IGNORECASE)
# Words before a table's name; its columns follow it in brackets.
_BEFORE_TABLE = ("CREATE", "OR", "REPLACE", "TEMPORARY", "TABLE", "IF", "NOT", "EXISTS")
# EmbeddedRocksDB takes a folder without asking for a right; without a folder it is not a call.
_REFUSED = (
    *("python", "disk", "executable", "executablepool", "embeddedrocksdb", "filesystem"),
    # Their metadata may name files of any folder.
    *("iceberglocal", "iceberglocalcluster", "paimonlocal", "paimonlocalcluster"),
)
# With these, the name of a function, an engine or a setting would be misread here.
_ESCAPED = re.compile(rb"\\[xN]|\A\xe2\x80\x9c")
# Enough for the settings and functions looked for, with each character written as an escape.
_LONGEST_NAME = 256
# From choices like these the engine makes `..`: `{.,x}{.,x}`.
_DOTS_IN_BRACES = re.compile(r"[{,]\s*[.,}]|\.\s*[,}]")
_BEGUN = re.compile(r"[{,.]\s*\Z")


def detect_file_access(text: bytes, folders: Sequence[Path]) -> bool:
    """True when the statement names files inside of `folders`, the first of which is the default.

    Raises `EngineError` 291 for a file outside of them, 497 for what runs a program, brings its
    own disk or hides a name, 358 for INTO OUTFILE, 78 for FROM INFILE, 511 for a role, 48 for what
    is not supported and 62 for an unexpected character.
    """
    if not is_found(_SUSPECT, text):
        return False
    words = list(iter_tokens(text))
    closing, attaches, reads_files = _match_brackets(words), False, False
    for at, word in enumerate(words):
        before = words[at - 1] if at else None
        after = words[at + 1] if at + 1 < len(words) else None
        _check_clause(word, before, after)
        # Another statement may come first, before PARALLEL WITH.
        attaches |= word.is_word("ATTACH")
        if attaches and word.kind is TokenKind.STRING and before and before.is_word("FROM"):
            raise EngineError(Code.ACCESS_DENIED, "ATTACH ... FROM a folder is not allowed")
        called = after is not None and after.is_mark(b"(")
        if called and word.is_name and len(word.value) < _LONGEST_NAME:
            reads_files |= _check_call(words, at, closing, folders)
    _check_expressions(words, reads_files=reads_files)
    return reads_files


def check_columns(text: bytes) -> None:
    """Raise `EngineError` 36 for a text that is anything but a list of columns."""
    depth = end = 0
    for word in iter_tokens(text):
        if word.is_mark(b";") or (word.kind is TokenKind.MARK and word.value >= b"\x80"):
            depth = -1
        if word.kind is TokenKind.MARK and word.value in {b"(", b"[", b"{"}:
            depth += 1
        elif word.kind is TokenKind.MARK and word.value in {b")", b"]", b"}"}:
            depth -= 1
        end = word.end
        if depth < 0:
            break
    if depth or text[end:].strip():
        raise EngineError(
            Code.BAD_ARGUMENTS, "The structure of an external table is not a list of columns"
        )


def _check_clause(word: Token, before: Token | None, after: Token | None) -> None:
    if word.kind is TokenKind.MARK and word.value >= b"\x80":
        raise EngineError(
            Code.SYNTAX_ERROR,
            f"Syntax error: failed at position {word.start + 1}: unexpected character",
        )
    if (
        word.kind is TokenKind.QUOTED
        and _is_used(before, after)
        and _ESCAPED.search(word.value[:1024])
    ):
        raise EngineError(
            Code.ACCESS_DENIED,
            "Write the name of a function, an engine or a setting without escapes",
        )
    if (
        (word.is_word("DEFINER") and after is not None and after.is_mark(b"="))
        or (word.is_word("SECURITY") and before is not None and before.is_word("SQL"))
        or (word.is_word("REFRESH") and after is not None and after.is_word("EVERY", "AFTER"))
    ):
        raise EngineError(
            Code.NOT_IMPLEMENTED,
            "DEFINER, SQL SECURITY and REFRESH are not supported by the embedded server: a view "
            "has the rights of whoever reads it",
        )
    if before is None:
        return
    if word.is_word("OUTFILE") and before.is_word("INTO"):
        raise EngineError(Code.INTO_OUTFILE_NOT_ALLOWED, "INTO OUTFILE is not allowed")
    if word.is_word("INFILE") and before.is_word("FROM"):
        raise EngineError(
            Code.UNKNOWN_TYPE_OF_QUERY, "Query has infile and was send directly to server"
        )
    if word.is_word("ROLE") and before.is_word("SET"):
        raise EngineError(Code.UNKNOWN_ROLE, "There are no roles to set")


def _is_used(before: Token | None, after: Token | None) -> bool:
    """Whether a name is in the place of a function, an engine or a setting."""
    follows = after is not None and (after.is_mark(b"(") or after.is_mark(b"="))
    leads = before is not None and (before.is_word("ENGINE") or before.is_mark(b"="))
    return follows or leads


def _check_expressions(words: list[Token], *, reads_files: bool) -> None:
    """Refuse `EXPRESSIONS` in a statement that names a file, or makes or alters a table or view."""
    names = (word for word in words if word.is_name and len(word.value) < _LONGEST_NAME)
    if any(_get_lower_name(word) == EXPRESSIONS for word in names) and (
        reads_files or any(word.is_word("CREATE", "REPLACE", "ALTER", "ATTACH") for word in words)
    ):
        raise EngineError(
            Code.ACCESS_DENIED,
            f"{EXPRESSIONS} may not be in a statement that makes a table or names a file. Set it "
            "for an INSERT or a SELECT without files",
        )


def _match_brackets(words: list[Token]) -> dict[int, int]:
    """Where each opening bracket is closed."""
    closing: dict[int, int] = {}
    opened: list[int] = []
    for at, word in enumerate(words):
        if word.kind is TokenKind.MARK and word.value in {b"(", b"[", b"{"}:
            opened.append(at)
            closing[at] = len(words)
        elif word.kind is TokenKind.MARK and word.value in {b")", b"]", b"}"} and opened:
            closing[opened.pop()] = at
    return closing


def _get_lower_name(word: Token) -> str:
    return unquote(word.value).lower()


def _check_call(
    words: list[Token], at: int, closing: Mapping[int, int], folders: Sequence[Path]
) -> bool:
    """True for a call that reads files."""
    name = _get_lower_name(words[at])
    if name in _REFUSED:
        raise EngineError(
            Code.ACCESS_DENIED,
            f"{name}() is not allowed on the embedded server: it runs programs or reaches other "
            "disks or files. Use a ClickHouse server of your own for it",
        )
    if name not in (*_FILES, *_URLS) or _is_table(words, at):
        return False
    # A cluster's function takes the cluster first, and the engine File its format.
    takes_two = name.endswith("cluster") or _is_engine(words[max(at - 2, 0) : at])
    arguments = _split_arguments(words, at + 1, closing)[: 2 if takes_two else 1]
    check = _check_path if name in _FILES else _check_url
    is_bare = bool(
        takes_two and arguments and arguments[0][:1] and arguments[0][0].kind is TokenKind.WORD
    )
    for argument in arguments[1:] if is_bare else arguments:
        check(argument, folders)
    if at and words[at - 1].is_word("AS") and name in _FILES:
        raise EngineError(
            Code.NOT_IMPLEMENTED,
            f"A table AS {name}() is not supported by the embedded server. Use ENGINE = File(...)",
        )
    return name in _FILES


def _is_table(words: list[Token], at: int) -> bool:
    """True for a table's name: `CREATE TABLE url (...)`, `INSERT INTO url (...)`, `db.url`."""
    if not at:
        return False
    previous = words[at - 1]
    columns = words[0].is_word("CREATE", "INSERT", "REPLACE") and previous.is_word(
        "TABLE", "EXISTS", "INTO"
    )
    before = islice(words, at)
    return previous.is_mark(b".") or (
        columns and all(word.is_word(*_BEFORE_TABLE, "INSERT", "INTO") for word in before)
    )


def _is_engine(before: list[Token]) -> bool:
    words = [word for word in before if not word.is_mark(b"=")]
    return bool(words) and words[-1].is_word("ENGINE")


def _split_arguments(
    words: list[Token], opening: int, closing: Mapping[int, int]
) -> list[list[Token]]:
    """The words of a call's arguments; of inner brackets, only the opening one."""
    arguments: list[list[Token]] = []
    current: list[Token] = []
    at = opening + 1
    while at < closing[opening]:
        if words[at].is_mark(b","):
            arguments.append(current)
            current = []
        else:
            current.append(words[at])
        at = closing.get(at, at) + 1
    return [*arguments, current] if current else arguments


def _parse_plain_string(argument: list[Token]) -> str | None:
    """The text of a string that is written without escapes; None for anything else."""
    raw = argument[0].value if len(argument) == 1 and argument[0].kind is TokenKind.STRING else b""
    return unquote(raw) if raw.startswith(b"'") and b"\\" not in raw else None


def _check_url(argument: list[Token], folders: Sequence[Path]) -> None:
    url = _parse_plain_string(argument)
    if url is None or not _WEB.match(url):
        raise EngineError(
            Code.DATABASE_ACCESS_DENIED,
            "Write a URL as a string that begins with http:// or https://. Read "
            f"a file with file(), from inside `{folders[0]}`",
        )


def _check_path(argument: list[Token], folders: Sequence[Path]) -> None:
    path = _parse_plain_string(argument)
    if path is None:
        raise EngineError(
            Code.DATABASE_ACCESS_DENIED,
            "Write the path of a file as a string, so that the server can see that it lies "
            f"inside `{folders[0]}`",
        )
    full_path = os.path.normpath(folders[0] / path)
    if _is_upward(path) or not any(_is_in(full_path, folder) for folder in folders):
        raise EngineError(
            Code.DATABASE_ACCESS_DENIED,
            f"File `{truncate_value(path)}` is not inside `{folders[0]}`. Put it there, or allow "
            "its "
            "folder with --allowed-path",
        )


def _is_upward(path: str) -> bool:
    """True where a path may leave its folder: by `..`, braces that make it, or a row's value."""
    return ".." in path or "{_" in path or ("{" in path and is_found(_DOTS_IN_BRACES, path, _BEGUN))


def _is_in(path: str, folder: object) -> bool:
    return path == str(folder) or path.startswith(f"{folder}/")
