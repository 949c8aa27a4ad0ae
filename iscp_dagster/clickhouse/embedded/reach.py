"""What a statement asks for outside of the tables, told before the engine is asked.

The engine's rights and the kernel refuse what lies outside; this says why, as the real server
does, and keeps `file()` out of the data's own files. What it cannot read it refuses.
"""

from __future__ import annotations

import os.path
import re
from typing import TYPE_CHECKING

from iscp_dagster.clickhouse.embedded.errors import Code, EngineError
from iscp_dagster.clickhouse.embedded.tokens import Kind, tokens, unquote

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iscp_dagster.clickhouse.embedded.tokens import Token

# Most statements hold none of these words, and need no second look.
_SUSPECT = re.compile(rb"file|python|disk|executable", re.IGNORECASE)
_FILES = ("file", "filecluster", "filesystem")
_REFUSED = ("python", "disk", "executable", "executablepool")


def check_reach(text: bytes, folders: Sequence[Path]) -> None:
    """Raises `EngineError` 291 for a file outside of `folders`, the first of which is the default.

    497 for what runs a program or brings its own disk, 358 for INTO OUTFILE and 78 for FROM INFILE.
    """
    if _SUSPECT.search(text) is None:
        return
    words = list(tokens(text))
    for at, word in enumerate(words):
        before = words[at - 1] if at else None
        if word.is_word("OUTFILE") and before is not None and before.is_word("INTO"):
            raise EngineError(Code.INTO_OUTFILE_NOT_ALLOWED, "INTO OUTFILE is not allowed")
        if word.is_word("INFILE") and before is not None and before.is_word("FROM"):
            raise EngineError(
                Code.UNKNOWN_TYPE_OF_QUERY, "Query has infile and was send directly to server"
            )
        if word.is_name and at + 1 < len(words) and words[at + 1].is_mark(b"("):
            _check_call(words, at, folders)


def _check_call(words: list[Token], at: int, folders: Sequence[Path]) -> None:
    name = unquote(words[at].value)
    if name.lower() in _REFUSED:
        raise EngineError(
            Code.ACCESS_DENIED,
            f"{name}() is not allowed on the embedded server: it runs programs or reaches other "
            "disks. Use a ClickHouse server of your own for it",
        )
    if name.lower() in _FILES:
        arguments = _arguments(words, at + 1)
        # The engine File takes its format first.
        named = _is_engine(words[:at][-2:]) and arguments and arguments[0][0].kind is Kind.WORD
        for argument in arguments[1:2] if named else arguments[:1]:
            _check_path(argument, folders)


def _is_engine(before: list[Token]) -> bool:
    words = [word for word in before if not word.is_mark(b"=")]
    return bool(words) and words[-1].is_word("ENGINE")


def _arguments(words: list[Token], opening: int) -> list[list[Token]]:
    """The words of the first arguments of a call; commas within brackets part nothing."""
    depth = words[opening].depth
    found: list[list[Token]] = []
    current: list[Token] = []
    for word in words[opening + 1 :]:
        if word.depth == depth:
            break
        if word.depth == depth + 1 and word.is_mark(b","):
            found.append(current)
            current = []
        else:
            current.append(word)
    return [*found, current] if current else found


def _check_path(argument: list[Token], folders: Sequence[Path]) -> None:
    raw = argument[0].value if len(argument) == 1 and argument[0].kind is Kind.STRING else b""
    if not raw.startswith(b"'") or b"\\" in raw:
        raise EngineError(
            Code.DATABASE_ACCESS_DENIED,
            "The path of a file is to be written as a string here, so that it can be seen to lie "
            f"inside `{folders[0]}`",
        )
    path = unquote(raw)
    whole = os.path.normpath(folders[0] / path)
    if ".." in path or not any(_is_in(whole, str(folder)) for folder in folders):
        raise EngineError(
            Code.DATABASE_ACCESS_DENIED,
            f"File `{path}` is not inside `{folders[0]}`. Put it there, or allow its folder with "
            "ISCP_CLICKHOUSE_PATHS",
        )


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")
