"""Where in a user's module an import failed, and why, in one line."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path

from iscp_dagster.model.errors import IscpError


def mistake(error: BaseException, module: str) -> str:
    """`package/module.py, line 2: why`, of what was raised while `module` was imported."""
    root = module.partition(".")[0]
    places = list(_places(error, root))
    file, line = places[-1] if places else (f"{module.replace('.', '/')}.py", 0)
    return f"{_short(file, root)}{f', line {line}' if line else ''}: {_why(error, root)}"


def _places(error: BaseException, root: str) -> Iterator[tuple[str, int]]:
    """Files and lines of the package on the way to the error, the last one nearest to it."""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if str(frame.f_globals.get("__name__")).partition(".")[0] == root:
            yield frame.f_code.co_filename, line
    if isinstance(error, SyntaxError) and _within(error, root):
        yield error.filename or "", error.lineno or 0


def _short(file: str, root: str) -> str:
    """The file from its package on."""
    parts = _parts(file)
    at = len(parts) - 1 - parts[::-1].index(root) if root in parts else -1
    return "/".join((*parts[at:-1], Path(file).name))


def _parts(file: str) -> tuple[str, ...]:
    """Of a module without a package, its name."""
    return Path(file).with_suffix("").parts


def _why(error: BaseException, root: str) -> str:
    if isinstance(error, IscpError):
        return str(error)
    said = error.msg if isinstance(error, SyntaxError) and _within(error, root) else str(error)
    told = " ".join(f"{type(error).__name__}: {said}".split()).rstrip(".")
    return f"{told}. Correct the file."


def _within(error: SyntaxError, root: str) -> bool:
    return root in _parts(error.filename or "")
