"""Names of tables that are files: the database `default` looks for each table there too."""

from __future__ import annotations

import os.path
import re
from pathlib import Path
from typing import TYPE_CHECKING

from iscp_dagster.clickhouse.embedded.errors import Code, EngineError
from iscp_dagster.clickhouse.embedded.octets import to_bytes
from iscp_dagster.clickhouse.embedded.pieces import is_found
from iscp_dagster.clickhouse.embedded.tokens import Kind, unquote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iscp_dagster.clickhouse.embedded.tokens import Token

_HEX = re.compile(rb"\\x([0-9a-fA-F]{2})")
_HEREDOC = re.compile(r"\$\w*\$", re.ASCII)
_LONGEST = 1 << 16
_UPWARD = re.compile(rb"(\.|\\x2e)\\?(\.|\\x2e)\\?(/|\\x2f)|\\N", re.IGNORECASE)
_GLOB = re.compile(r"[*?{]")
_LONGEST_PATH = 4096
# With these the engine makes `..` out of choices: `{.,x}{.,x}`.
_DOTS_IN_BRACES = re.compile(r"[{,]\s*[.,}]|\.\s*[,}]")
_BEGUN = re.compile(r"[{,.]\s*\Z")


def is_upward(path: str) -> bool:
    """True where a path may lead above its folder, by `..` or by choices that become it."""
    return ".." in path or ("{" in path and is_found(_DOTS_IN_BRACES, path, _BEGUN))


def is_in(path: str, folder: object) -> bool:
    return path == str(folder) or path.startswith(f"{folder}/")


def check_name(
    word: Token, before: Token | None, folders: Sequence[Path], *, named: bool = False
) -> None:
    """Raises `EngineError` 291 for a quoted name or a string that is a file outside of `folders`.

    A string is data more often than a name, so it must be one of the data's own files.
    """
    named |= word.kind is Kind.QUOTED or (before is not None and before.is_word("FROM", "JOIN"))
    if word.kind in {Kind.QUOTED, Kind.STRING} and not _is_long(word.value):
        check_text(_text(word.value), folders, named=named)


def check_value(value: str, folders: Sequence[Path], *, named: bool = False) -> None:
    """As `check_name`, of a parameter, which may be a name too."""
    if not _is_long(to_bytes(f"'{value}'")):
        check_text(value, folders, named=named)


def check_text(text: str, folders: Sequence[Path], *, named: bool = False) -> None:
    """As `check_name`, of the text itself."""
    whole = os.path.normpath(folders[0] / text)
    inside = not is_upward(text) and any(is_in(whole, folder) for folder in folders)
    if "\0" in text or inside:
        return
    glob = _is_glob_over if named else _is_glob_within
    if glob(text, folders) or any(
        _is_outside(path, folders, named=named) and _is_file(path)
        for path in {whole, _real(whole), _real(str(folders[0] / text))}
    ):
        raise EngineError(
            Code.DATABASE_ACCESS_DENIED,
            f"`{text}` is a file and is not inside `{folders[0]}`. Read files with file(), and "
            "give a table another name",
        )


def _is_long(raw: bytes) -> bool:
    r"""True for a text that is too long for a path; 291 for one that may become short enough.

    What makes a path shorter is `..`, or slashes in a row, which take up to 8 bytes: `\x2f\x2e`.
    """
    if len(raw) <= _LONGEST:
        return False
    slashes = sum(raw.count(mark) for mark in (b"/", rb"\x2f", rb"\x2F"))
    if is_found(_UPWARD, raw) or _UPWARD.search(raw[-12:-1] + b"/") or 8 * slashes > len(raw):
        raise EngineError(
            Code.DATABASE_ACCESS_DENIED,
            f"A string of {len(raw)} bytes that may lead upward by `..` is not allowed on the "
            "embedded server. Insert it as a row",
        )
    return True


def _is_outside(path: str, folders: Sequence[Path], *, named: bool) -> bool:
    reached = named or is_in(path, folders[0].parent)
    return reached and not any(is_in(path, each) for each in folders)


def _real(path: str) -> str:
    """Where it leads: a link, such as /proc/self/root, may be another name of the data."""
    return path if len(path) > _LONGEST_PATH else os.path.realpath(path)


def _glob_start(fixed: str, folders: Sequence[Path]) -> tuple[str, str]:
    """The folder that the part before a glob's first choice leads to, and how its files begin."""
    folder, _, begun = fixed.rpartition("/")
    start = folders[0] / (folder or ("/" if fixed.startswith("/") else "."))
    return os.path.realpath(start), begun


def _is_glob_within(text: str, folders: Sequence[Path]) -> bool:
    """True where a glob begins like one of the data's own files."""
    found = _GLOB.search(text)
    if found is None:
        return False
    start, begun = _glob_start(text[: found.start()], folders)
    try:
        return _is_outside(start, folders, named=False) and any(
            each.name.startswith(begun) for each in Path(start).iterdir()
        )
    except OSError:  # No such folder, so there are no files in it.
        return False


def _is_glob_over(text: str, folders: Sequence[Path]) -> bool:
    """True where the choices of a glob may include the data's own files."""
    found = _GLOB.search(text)
    if found is None:
        return False
    data = os.path.realpath(folders[0].parent)
    start, _ = _glob_start(text[: found.start()], folders)
    choices = text[found.start() :]
    shallow = "**" not in text and "{" not in text
    least = data.count("/") - start.rstrip("/").count("/")
    too_short = shallow and choices.count("/") < least
    above = is_in(data, start.rstrip("/")) and not too_short
    return is_upward(text) or is_in(start, data) or above


def _is_file(path: str) -> bool:
    try:
        return Path(path).is_file()
    except OSError:  # Too long for a path, so it is no file's.
        return False


def _text(raw: bytes) -> str:
    tag = _HEREDOC.match(raw.decode("latin-1"))
    if tag is not None:
        return raw[tag.end() : -tag.end()].decode("utf-8", "replace")
    plain = _HEX.sub(lambda found: bytes([int(found[1], 16)]), raw).replace(rb"\N", b"")
    return unquote(plain.replace("“".encode(), b'"').replace("”".encode(), b'"'))
